"""What the page shows, as plain values: from the engines' counters and their policies' own words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from draftwing.core import PolicyStatus
from draftwing.parallel.messages import RankStats

ADAPTIVE = "adaptive"
SURE = 1.0  # the ratio that both ends of an interval must lie on one side of
ASTRAY = 0.3  # error of the cost model that is worth a look
STUCK_S = 30.0  # without a step, with requests running


@dataclass(frozen=True, slots=True)
class Depth:
    """depth: 1 is the first draft token. share: of drafts whose token there was accepted."""

    depth: int
    share: float


REASONS = {
    "adaptive: drafts": "drafts pay at this load",
    "adaptive: no gain": "no draft pays at this load",
    "adaptive: no room": "no request has room for a draft and allows one",
    "adaptive: plain turn": "a plain step now and then keeps plain decoding's time known",
    "adaptive: probe": "a try, to find out whether drafts pay by now",
    "adaptive: guard": "the guard has switched speculation off",
}


@dataclass(frozen=True, slots=True)
class View:
    """answer: the first question's, in words. tone: good, bad or unknown. problems: what somebody should look at."""

    answer: str
    tone: str
    detail: str
    policy: PolicyStatus | None
    paused: bool
    replicas: int
    running: int
    waiting: int
    kv_use: float
    tokens: int
    acceptance_length: float | None
    depths: list[Depth] = field(default_factory=list)
    parts: list[tuple[str, float]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def why(self) -> str:
        """The last step's reason, for somebody who doesn't know the policy's short ones."""
        reason = self.policy.reason if self.policy else ""
        return REASONS.get(reason, reason) or "no reason given"


def view(stats: Sequence[RankStats], silent: int = 0) -> View:
    """Of all engines that answer together; policy: the first one's. silent: engines that don't answer."""
    policies = [each.policy for each in stats if each.policy is not None]
    policy = policies[0] if policies else None
    drafts = sum(each.counters.drafts for each in stats)
    accepted = sum(each.counters.accepted_tokens for each in stats)
    deepest = max((len(each.counters.accepted_per_depth) for each in stats), default=0)
    per_depth = [sum(_at(each.counters.accepted_per_depth, depth) for each in stats) for depth in range(deepest)]
    answer, tone, detail = _answer(policies)
    return View(
        answer=answer,
        tone=tone,
        detail=detail,
        policy=policy,
        paused=any(each.paused for each in policies),
        replicas=len(stats),
        running=sum(each.running for each in stats),
        waiting=sum(each.waiting for each in stats),
        kv_use=max((each.kv_use for each in stats), default=0.0),
        tokens=sum(each.counters.generated_tokens for each in stats),
        acceptance_length=1 + accepted / drafts if drafts else None,
        depths=[Depth(depth + 1, count / drafts) for depth, count in enumerate(per_depth)] if drafts else [],
        parts=_parts(stats),
        problems=_problems(stats, policies, silent),
    )


def _answer(policies: Sequence[PolicyStatus]) -> tuple[str, str, str]:
    """In words, its tone, and what it rests on."""
    if policies and all(policy.paused for policy in policies):
        return "Speculation is paused", "unknown", f"Every token is decoded plainly: {policies[0].reason}."
    if tripped := [policy for policy in policies if policy.tripped]:
        detail = f"{tripped[0].reason}. A step in a while still drafts, to find out when it pays again."
        return "The guard holds speculation off", "bad", detail
    if all(policy.mode == "off" for policy in policies):
        return "Speculation is off", "unknown", "Every token is decoded plainly; there is nothing to compare."
    measured = _ratio(policies)
    if measured is None:
        if any(policy.mode == ADAPTIVE for policy in policies):
            return "Not measured yet", "unknown", "The ratio needs some more steps that draft."
        return "Not measured", "unknown", "This mode measures nothing while it runs; mode adaptive does."
    ratio, half = measured
    astray = max((policy.cost_error or 0.0 for policy in policies), default=0.0)
    if astray > ASTRAY:
        detail = f"It rests on step times that are off by {astray:.0%} at the median, so it says little."
        return f"{ratio:.2f}x plain decoding, not to be trusted", "unknown", detail
    low, high = ratio - half, ratio + half
    interval = f"95 % interval {low:.2f} to {high:.2f}: tokens over those that plain decoding makes in the same time."
    if low > SURE:
        return f"{ratio:.2f}x plain decoding", "good", f"Yes, surely faster. {interval}"
    if high < SURE:
        return f"{ratio:.2f}x plain decoding", "bad", f"No, surely slower. {interval}"
    return f"{ratio:.2f}x plain decoding, not sure yet", "unknown", interval


def _ratio(policies: Sequence[PolicyStatus]) -> tuple[float, float] | None:
    """The mean of the engines' ratios, and half of its 95 % interval: they err independently."""
    known = [(policy.ratio, policy.half_width) for policy in policies]
    told = [(ratio, half) for ratio, half in known if ratio is not None and half is not None]
    if not told:
        return None
    return sum(ratio for ratio, _ in told) / len(told), sum(half**2 for _, half in told) ** 0.5 / len(told)


def _parts(stats: Sequence[RankStats]) -> list[tuple[str, float]]:
    """Share of the engines' time by part of a step."""
    names = ("schedule", "draft", "forward", "sample", "commit")
    seconds = [sum(getattr(each.counters, f"{name}_s") for each in stats) for name in names]
    total = sum(seconds)
    return [(name, each / total) for name, each in zip(names, seconds, strict=True)] if total else []


def _problems(stats: Sequence[RankStats], policies: Sequence[PolicyStatus], silent: int) -> list[str]:
    found = [] if stats else ["No engine answers."]
    if stats and silent:
        found.append(f"{silent} of {len(stats) + silent} engines don't answer.")
    paused = sum(policy.paused for policy in policies)
    if 0 < paused < len(policies):
        found.append(f"Speculation is paused on {paused} of {len(policies)} engines only; pause or resume all of them.")
    for policy in policies:
        if policy.tripped and not policy.paused:
            found.append(f"The guard has switched speculation off: {policy.reason}.")
        if policy.cost_error is not None and policy.cost_error > ASTRAY:
            found.append(f"The cost model is off by {policy.cost_error:.0%}; the machine may have other work.")
    for each in stats:
        if each.running and (each.last_step_age_s or 0) > STUCK_S:
            found.append(f"An engine with {each.running} requests made no step for {each.last_step_age_s:.0f} s.")
    counts = {
        "drafts were refused as unsound": sum(each.counters.bad_drafts for each in stats),
        "sequences were put back because the KV cache was full": sum(each.counters.preemptions for each in stats),
        "messages between gateway and engine could not be read": sum(each.bad_frames for each in stats),
    }
    return list(dict.fromkeys(found)) + [f"{count} {what} since start." for what, count in counts.items() if count]


def _at(counts: Sequence[int], place: int) -> int:
    return counts[place] if place < len(counts) else 0
