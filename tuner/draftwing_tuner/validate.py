"""The last word before a profile is published: paired blocks on the real engine, with prompts that taught nothing."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path

from draftwing.core import Request, SamplingParams
from draftwing.engine.step import Engine
from draftwing.policy.artifact import ScheduleRow
from draftwing.policy.base import Policy
from draftwing_tuner.mixed import ADAPTIVE, PLAIN, TABLE, Mixed
from draftwing_tuner.paired import Block, Round, Standing, Traffic, compare, log_ratio, ratio, run_round

LEAST_ROUNDS, STEPS = 3, 16


@dataclass(frozen=True, slots=True)
class Level:
    """What came out at one concurrency. rounds: every policy's blocks, each round."""

    concurrency: int
    standings: tuple[Standing, ...]
    rounds: tuple[Round, ...] = ()


def validate(
    engine: Engine,
    prompts: Seq[Seq[int]],
    policies: Mapping[str, Policy],
    levels: Seq[int],
    folder: Path,
    *,
    max_tokens: int,
    most_rounds: int,
    go_on: Callable[[], bool],
    show: Callable[[int, int], None] = lambda done, wanted: None,
    plans: str = "",
) -> list[Level]:
    """Rounds over all levels in turn, until there are enough or the time is over; each level has the least number.

    policies: the first is plain decoding. plans: what tells these policies from others; earlier rounds of the same
    ones count. The engine must be idle, and is so afterwards, under the policy it had.
    """
    path = folder / f"validate-{hashlib.sha256(plans.encode()).hexdigest()[:8]}.jsonl"
    rounds = _read(path, levels)
    before = engine.policy
    with path.open("a", encoding="utf-8") as file:
        try:
            while (done := min(map(len, rounds.values()))) < most_rounds and (done < LEAST_ROUNDS or go_on()):
                show(done, most_rounds)
                for level in levels:
                    if len(rounds[level]) > done:
                        continue
                    traffic = Traffic(engine, _requests(prompts, max_tokens, f"{level}/{done}"), level)
                    try:
                        blocks = run_round(traffic, policies, STEPS)
                    finally:
                        traffic.drain()
                    rounds[level].append(blocks)
                    entry = {name: [asdict(block) for block in two] for name, two in blocks.items()}
                    file.write(json.dumps({"level": level, "blocks": entry}) + "\n")
                    file.flush()
        finally:
            engine.policy = before
    return [Level(level, tuple(compare(rounds[level], PLAIN)), tuple(rounds[level])) for level in levels]


def better_mode(mixed: Seq[Mixed], levels: Seq[Level], clock: str) -> str:
    """`adaptive` or `table`: what the engine says where its rounds tell them apart, else what replay says.

    Where the table's drafts were withdrawn it is plain decoding.
    """
    logs = [
        log_ratio(one, ADAPTIVE, PLAIN if _slower(level, TABLE, clock) else TABLE, clock)
        for level in levels
        for one in level.rounds
    ]
    live = ratio(logs)
    if live.low > 1 or live.high < 1:
        return ADAPTIVE if live.low > 1 else TABLE
    overall = {setting.name: setting.overall for setting in mixed}
    return max((ADAPTIVE, TABLE), key=lambda mode: overall[mode])


def withdrawn(rows: Seq[ScheduleRow], levels: Seq[Level], policy: str, clock: str) -> list[ScheduleRow]:
    """The schedule, less the drafts of buckets that were slower than plain decoding beyond the interval.

    A bucket between two levels has the verdict of the larger one: drafts gain less there.
    """
    slower = {
        level.concurrency: _slower(level, policy, clock)
        for level in levels
        if any(standing.policy == policy for standing in level.standings)
    }

    def lost(batch: int) -> bool:
        return slower[min((level for level in slower if level >= batch), default=max(slower))]

    return [
        replace(row, branching=(), nodes=0, tokens=1.0, rate=row.rate / row.margin, margin=1.0)
        if slower and lost(row.batch)
        else row
        for row in rows
    ]


def _slower(level: Level, policy: str, clock: str) -> bool:
    """Whether the policy was slower than plain decoding beyond its interval."""
    return any(getattr(standing, clock).high < 1 for standing in level.standings if standing.policy == policy)


def _requests(prompts: Seq[Seq[int]], max_tokens: int, name: str) -> Iterator[Request]:
    """Without end; each pass has a salt of its own, so that nobody finds an earlier answer."""
    params = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
    for number in count():
        lap, place = divmod(number, len(prompts))
        yield Request(f"validate/{name}/{number}", list(prompts[place]), params, salt=f"validate/{name}/{lap}")


def _read(path: Path, levels: Seq[int]) -> dict[int, list[Round]]:
    rounds: dict[int, list[Round]] = {level: [] for level in levels}
    if path.exists():
        text = path.read_text(encoding="utf-8")
        whole = text[: text.rfind("\n") + 1]
        path.write_text(whole, encoding="utf-8")
        for line in whole.splitlines():
            entry = json.loads(line)
            if entry["level"] in rounds:
                blocks = {name: [Block(**block) for block in two] for name, two in entry["blocks"].items()}
                rounds[entry["level"]].append(blocks)
    return rounds
