"""A load that climbs and falls, replayed: every setting serves the same requests, and is told by the time it takes.

Text that taught nothing (held-out prompts) says what a profile is worth: plain decoding, fixed settings, the default
that nobody tuned (`adaptive` without a profile), the profile's table, and `adaptive` with what it knows, over one day.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq
from copy import deepcopy
from dataclasses import dataclass, replace

from draftwing.core import DraftShape
from draftwing.engine.kv_cache import BlockPool
from draftwing.engine.scheduler import Limits
from draftwing.errors import ConfigError
from draftwing.policy.artifact import ScheduleRow
from draftwing.policy.base import Policy
from draftwing.policy.modes import FixedPolicy, OffPolicy, parse_mode
from draftwing.policy.profile import Profile
from draftwing.policy.table import TablePolicy
from draftwing_tuner.history import shape_text
from draftwing_tuner.rates import BLOCK, Ground
from draftwing_tuner.simulate import Closed, Simulation, asks, drive
from draftwing_tuner.tasks import Spread, in_turn

PLAIN, TABLE, ADAPTIVE, UNTUNED = "plain decoding", "table", "adaptive", "untuned default"
EACH = 3  # answers of a sequence in a phase
DEPTHS = range(1, 9)
ROWS = 8192  # of a step, at most


@dataclass(frozen=True, slots=True)
class Mixed:
    """One setting over the day: its rate over plain decoding's at each concurrency, and over all."""

    name: str
    ratios: tuple[float, ...]
    overall: float


Day = tuple[Policy, tuple[int, ...]]


def phases_of(batches: Seq[int]) -> tuple[int, ...]:
    """Up to the largest, and down again."""
    ascending = sorted(set(batches))
    return (*ascending, *ascending[-2::-1])


def serve(ground: Ground, day: Day) -> tuple[float, ...]:
    """Seconds of each phase. ConfigError where the trace has no answers."""
    # A copy: policies learn, each day begins anew, and arrays from an object store are read-only.
    policy, phases = deepcopy(day[0]), day[1]
    answers = ground.trace.requests
    if not answers:
        raise ConfigError("the trace holds no answer to replay")
    most = max(phases)
    longest = max(one.prompt_len + len(one.output) for one in answers) + policy.largest.nodes
    blocks = 2 * most * (longest // BLOCK + 2)
    world = Simulation(
        ground.trace,
        costs=ground.costs,
        policy=policy,
        drafter=ground.replay_drafter(),
        pool=BlockPool(blocks, BLOCK, prefix=all(one.prompt is not None for one in answers)),
        limits=Limits(most, most, ROWS, ROWS),
    )
    number, spent = 0, []
    for concurrency in phases:
        began = world.clock()
        requests = [asks(answers[i % len(answers)], i) for i in range(number, number + EACH * concurrency)]
        number += len(requests)
        drive(world, Closed(requests, concurrency), world.clock)
        spent.append(world.clock() - began)
    return tuple(spent)


def contenders(ground: Ground, profile: Profile, trees: Iterable[DraftShape], most_depth: int) -> dict[str, Policy]:
    """By name: plain decoding, every chain, the trees, the default that nobody tuned, and the profile's two modes."""
    drafter, traits = ground.drafter, ground.replay_drafter().traits
    chains = [_chain(k) for k in DEPTHS if k <= most_depth]
    shapes = dict.fromkeys([*chains, *(tree for tree in trees if tree.nodes)])
    return {
        PLAIN: OffPolicy(),
        **{_named(shape): FixedPolicy(drafter, shape) for shape in shapes},
        UNTUNED: parse_mode(ADAPTIVE, drafter, traits),
        TABLE: TablePolicy(drafter, profile.schedule),
        ADAPTIVE: parse_mode(ADAPTIVE, drafter, traits, replace(profile, frozen=True)),
    }


def _chain(k: int) -> DraftShape:
    return DraftShape((1,) * k, k)


def _named(shape: DraftShape) -> str:
    """The same for the same shape, whoever brings it."""
    return f"fixed k={shape.depth}" if shape == _chain(shape.depth) else f"fixed {shape_text(shape)}"


def compare(ground: Ground, tried: Mapping[str, Policy], batches: Seq[int], spread: Spread) -> list[Mixed]:
    """tried: the first is plain decoding. In its order."""
    phases = phases_of(batches)
    spent = spread(serve, ground, [(policy, phases) for policy in tried.values()])
    plain = spent[0]
    at = {batch: [i for i, phase in enumerate(phases) if phase == batch] for batch in sorted(set(batches))}

    def ratio(times: tuple[float, ...], places: Iterable[int]) -> float:
        chosen = list(places)
        return sum(plain[i] for i in chosen) / sum(times[i] for i in chosen)

    return [
        Mixed(name, tuple(ratio(times, places) for places in at.values()), ratio(times, range(len(phases))))
        for name, times in zip(tried, spent, strict=True)
    ]


def with_table(settings: Seq[Mixed], ground: Ground, schedule: Seq[ScheduleRow]) -> list[Mixed]:
    """The same, but that the table is another one."""
    tried: dict[str, Policy] = {PLAIN: OffPolicy(), TABLE: TablePolicy(ground.drafter, schedule)}
    _, table = compare(ground, tried, [row.batch for row in schedule], in_turn)
    return [table if setting.name == TABLE else setting for setting in settings]


def mixed_rows(settings: Seq[Mixed], batches: Seq[int]) -> tuple[list[str], list[list[str]]]:
    """A table's columns and rows."""
    columns = ["setting", *(f"{batch} at once" for batch in sorted(set(batches))), "overall"]
    return columns, [[s.name, *(f"{ratio:.3f}" for ratio in s.ratios), f"{s.overall:.3f}"] for s in settings]
