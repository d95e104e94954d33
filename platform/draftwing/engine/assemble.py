"""An engine from its parts, without a config."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

from draftwing.drafters.base import Drafter
from draftwing.engine.admission import Admission
from draftwing.engine.features import FeatureTap
from draftwing.engine.kv_cache import BlockPool
from draftwing.engine.runner import Runner
from draftwing.engine.scheduler import Limits
from draftwing.engine.step import Engine
from draftwing.engine.text import Decoder
from draftwing.policy.base import Policy


@dataclass(frozen=True, slots=True)
class TargetFacts:
    """What the engine must know of its target beside the runner. decoder None: no tokenizer."""

    context: int
    eos_token_ids: tuple[int, ...]
    decoder: Decoder | None = None


def assemble(
    runner: Runner,
    facts: TargetFacts,
    *,
    pool: BlockPool,
    limits: Limits,
    drafter: Drafter,
    policy: Policy,
    rejection: bool = False,
    tap: FeatureTap | None = None,
    clock: Callable[[], float] = perf_counter,
) -> Engine:
    """The drafter is bound already; the runner has a cache row for every slot of the pool."""
    admission = Admission(
        pool=pool,
        context=facts.context,
        queue=limits.queue,
        vocab_size=runner.vocab_size,
        eos_token_ids=facts.eos_token_ids,
        decoder=facts.decoder,
    )
    return Engine(
        runner=runner,
        pool=pool,
        limits=limits,
        drafter=drafter,
        policy=policy,
        admission=admission,
        rejection=rejection,
        tap=tap,
        clock=clock,
    )
