"""What the page shows, as plain values: from the engines' counters and their policies' own words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from draftwing.core import PolicyStatus
from draftwing.parallel.messages import RankStats

SURE = 1.0  # the ratio that both ends of an interval must lie on one side of


@dataclass(frozen=True, slots=True)
class Depth:
    """depth: 1 is the first draft token. share: of drafts whose token there was accepted."""

    depth: int
    share: float


@dataclass(frozen=True, slots=True)
class View:
    """answer: the first question's, in words. tone: good, bad or unknown. problems: what somebody should look at."""

    answer: str
    tone: str
    detail: str
    policy: PolicyStatus | None
    replicas: int
    running: int
    waiting: int
    kv_use: float
    tokens: int
    acceptance_length: float | None
    depths: list[Depth] = field(default_factory=list)
    parts: list[tuple[str, float]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def view(stats: Sequence[RankStats]) -> View:
    """Of all engines that answer together; the policy is the first one's that has something to say."""
    policy = next((each.policy for each in stats if each.policy is not None), None)
    drafts = sum(each.counters.drafts for each in stats)
    accepted = sum(each.counters.accepted_tokens for each in stats)
    deepest = max((len(each.counters.accepted_per_depth) for each in stats), default=0)
    per_depth = [sum(_at(each.counters.accepted_per_depth, depth) for each in stats) for depth in range(deepest)]
    answer, tone, detail = _answer(policy)
    return View(
        answer=answer,
        tone=tone,
        detail=detail,
        policy=policy,
        replicas=len(stats),
        running=sum(each.running for each in stats),
        waiting=sum(each.waiting for each in stats),
        kv_use=max((each.kv_use for each in stats), default=0.0),
        tokens=sum(each.counters.generated_tokens for each in stats),
        acceptance_length=1 + accepted / drafts if drafts else None,
        depths=[Depth(depth + 1, count / drafts) for depth, count in enumerate(per_depth)] if drafts else [],
        parts=_parts(stats),
        problems=_problems(stats, policy),
    )


def _answer(policy: PolicyStatus | None) -> tuple[str, str, str]:
    if policy is None or policy.mode == "off":
        return "Speculation is off", "unknown", "Every token is decoded plainly; there is nothing to compare."
    if policy.ratio is None or policy.half_width is None:
        return "Not measured yet", "unknown", "The ratio needs more steps that draft."
    low, high = policy.ratio - policy.half_width, policy.ratio + policy.half_width
    interval = f"95 % interval {low:.2f} to {high:.2f}, by measured step times and tokens."
    if low > SURE:
        return f"{policy.ratio:.2f}x plain decoding", "good", interval
    if high < SURE:
        return f"{policy.ratio:.2f}x plain decoding", "bad", interval
    return f"{policy.ratio:.2f}x plain decoding, not sure yet", "unknown", interval


def _parts(stats: Sequence[RankStats]) -> list[tuple[str, float]]:
    """Share of the engines' time by part of a step."""
    names = ("schedule", "draft", "forward", "sample", "commit")
    seconds = [sum(getattr(each.counters, f"{name}_s") for each in stats) for name in names]
    total = sum(seconds)
    return [(name, each / total) for name, each in zip(names, seconds, strict=True)] if total else []


def _problems(stats: Sequence[RankStats], policy: PolicyStatus | None) -> list[str]:
    found = []
    if not stats:
        found.append("No engine answers.")
    if policy is not None and policy.tripped:
        found.append(f"The guard has switched speculation off: {policy.reason}.")
    counts = {
        "drafts were refused as unsound": sum(each.counters.bad_drafts for each in stats),
        "sequences were put back because the KV cache was full": sum(each.counters.preemptions for each in stats),
        "messages between gateway and engine could not be read": sum(each.bad_frames for each in stats),
    }
    return found + [f"{count} {what}." for what, count in counts.items() if count]


def _at(counts: Sequence[int], place: int) -> int:
    return counts[place] if place < len(counts) else 0
