"""Which reading of a drafter's layer ids is right, by what it drafts: one token ahead, on the target's own text.

A drafter that is given the layer beside the one it was trained on drafts worse and shows no other sign of it. Both
readings draft along the same greedy text (rule R1), so they are compared where both drafted: a sign test.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from draftwing.checkpoints.cache import Progress, silent
from draftwing.checkpoints.feature_layers import MEANINGS, Meaning
from draftwing.config_models import Config, DrafterConfig
from draftwing.core import Request, SamplingParams, StepPlan
from draftwing.drafters.base import Accepted, Controller, FeatureRows, LayerOptions
from draftwing.drafters.registry import check_drafter
from draftwing.engine.drafting import Drafting, Drafts
from draftwing.engine.sequence import Sequence
from draftwing.engine.step import Engine
from draftwing.errors import ConfigError
from draftwing.offline import run_all

TOKENS = 64  # generated per prompt
SURE = 3.0  # standard deviations by which a reading must win to be believed against the usual one


@dataclass(frozen=True, slots=True)
class Prober:
    """make: an engine of a config around the target. prompts: token ids, one text each."""

    make: Callable[[Config], Engine]
    prompts: Seq[list[int]]


@dataclass(frozen=True, slots=True)
class Probe:
    """What one reading did. hits: at each (request, length of its text), whether the drafted token was accepted.

    refused: why the reading is impossible for this target.
    """

    hidden_states: tuple[int, ...] = ()
    hits: dict[tuple[str, int], bool] | None = None
    refused: str = ""

    @property
    def drafted(self) -> int:
        return len(self.hits or ())

    @property
    def accepted(self) -> int:
        return sum((self.hits or {}).values())


@dataclass(frozen=True, slots=True)
class Verdict:
    """chosen: of the probes. sure: it won by more than chance, or no other is possible; else it is the usual one."""

    chosen: Meaning
    sure: bool
    probes: dict[Meaning, Probe]

    def __str__(self) -> str:
        told = [
            f"{meaning}: {probe.refused or f'{probe.accepted} of {probe.drafted} accepted'}"
            for meaning, probe in self.probes.items()
        ]
        return f"layer ids are {self.chosen} of layers ({'; '.join(told)}{'' if self.sure else '; no clear winner'})"


class _Watch(Drafting):
    """Notes for every draft of one token whether it was accepted."""

    def __init__(self, drafting: Drafting) -> None:
        super().__init__(drafting.drafter, drafting.vocab_size)
        self.hits: dict[tuple[str, int], bool] = {}
        self._drafted: list[tuple[str, int] | None] = []

    def propose(self, sequences: Seq[Sequence], plan: StepPlan, controller: Controller) -> Drafts:
        found = super().propose(sequences, plan, controller)
        self._drafted = [
            (s.id, len(s.tokens)) if len(tree) else None for s, tree in zip(sequences, found.trees, strict=True)
        ]
        return found

    def committed(
        self, sequences: Seq[Sequence], accepted: Seq[Accepted], features: Seq[FeatureRows] | None = None
    ) -> None:
        for key, told in zip(self._drafted, accepted, strict=True):
            if key is not None:
                self.hits[key] = len(told.nodes) > 0
        super().committed(sequences, accepted, features)


def settle_layers(config: Config, prober: Prober, tell: Progress = silent) -> Config:
    """The config with every `layer_ids: probe` replaced by what probing says."""
    entries = []
    for i, entry in enumerate(config.drafters):
        options = check_drafter(entry, i)[1]
        if not isinstance(options, LayerOptions) or options.layer_ids != "probe":
            entries.append(entry)
            continue
        tell(f"drafter {entry.name}: probing what its layer ids mean")
        verdict = probe_layer_ids(config, entry, prober)
        tell(f"drafter {entry.name}: {verdict}")
        entries.append(_reading(entry, verdict.chosen))
    return config.model_copy(update={"drafters": entries})


def probe_layer_ids(config: Config, entry: DrafterConfig, prober: Prober) -> Verdict:
    """Let the drafter draft one token at a time under both readings. ConfigError where neither is possible."""
    if check_drafter(entry)[1].layers is not None:  # type: ignore[attr-defined]
        raise ConfigError(f"drafter {entry.name} has layers and layer_ids: probe; keep one")
    size = config.cache.block_tokens
    most = sum(len(prompt) // size + TOKENS // size + 2 for prompt in prober.prompts) * size
    alone = config.model_copy(
        update={
            "policy": config.policy.model_copy(update={"mode": "fixed:k=1"}),
            "cache": config.cache.model_copy(update={"tokens": most}),
            "sampling": "invariant",
        }
    )
    probes: dict[Meaning, Probe] = {}
    for meaning in MEANINGS:
        one = alone.model_copy(update={"drafters": [_reading(entry, meaning)]})
        probes[meaning] = _probe(one, prober)
    usual = _usual(alone.model_copy(update={"drafters": [_reading(entry, "auto")]}), prober, probes)
    return judge(probes, usual)


def judge(probes: dict[Meaning, Probe], usual: Meaning) -> Verdict:
    """usual: the reading of the field that the ids stand in."""
    possible = [meaning for meaning, probe in probes.items() if probe.hits is not None]
    if not possible:
        raise ConfigError("; ".join(probe.refused for probe in probes.values()))
    if len(possible) == 1:
        return Verdict(possible[0], True, probes)
    inputs, outputs = (probes[meaning].hits or {} for meaning in MEANINGS)
    both = inputs.keys() & outputs.keys()
    wins = sum(inputs[key] and not outputs[key] for key in both)
    losses = sum(outputs[key] and not inputs[key] for key in both)
    lead = (wins - losses) / math.sqrt(max(wins + losses, 1))
    sure = abs(lead) >= SURE
    return Verdict(usual if not sure else "inputs" if lead > 0 else "outputs", sure, probes)


def _probe(config: Config, prober: Prober) -> Probe:
    try:
        engine = prober.make(config)
    except ConfigError as error:
        return Probe(refused=str(error))
    watch = engine.drafting = _Watch(engine.drafting)
    params = SamplingParams(max_tokens=TOKENS, ignore_eos=True)
    run_all(engine, [Request(f"probe-{i}", prompt, params) for i, prompt in enumerate(prober.prompts)])
    states = engine.drafting.drafter.traits.hidden_layers
    if engine.tap is not None:
        engine.tap.close()
    return Probe(states, watch.hits)


def _usual(config: Config, prober: Prober, probes: dict[Meaning, Probe]) -> Meaning:
    """The reading that has the hidden states which the drafter takes where nobody says otherwise."""
    try:
        engine = prober.make(config)
    except ConfigError:
        return "inputs"
    if engine.tap is not None:
        engine.tap.close()
    states = engine.drafting.drafter.traits.hidden_layers
    return next((meaning for meaning, probe in probes.items() if probe.hidden_states == states), "inputs")


def _reading(entry: DrafterConfig, reading: str) -> DrafterConfig:
    return DrafterConfig.model_validate({**entry.model_dump(), "layer_ids": reading})
