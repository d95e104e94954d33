"""Features reach the drafter as transformers computes them, whatever way their rows went through the engine."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any

import pytest
import torch
from torch import Tensor

from draftwing.checkpoints.model_folder import open_folder
from draftwing.core import DraftShape, DraftTree, Request, SamplingParams, StepPlan
from draftwing.drafters.base import Accepted, Controller, DrafterTraits, FeatureRows, SequenceView, TokenDrafter
from draftwing.engine.assemble import TargetFacts, assemble
from draftwing.engine.features import FeatureTap
from draftwing.engine.kv_cache import BlockPool
from draftwing.engine.loading import LoadedTarget, load_target
from draftwing.engine.runner import ModelRunner, probe_layers
from draftwing.engine.scheduler import Limits
from draftwing.engine.step import Engine
from draftwing.errors import ConfigError
from draftwing.policy.modes import FixedPolicy
from draftwing.testing.run_engine import run_to_end
from tests.conftest import ROOT

LAYERS = (0, 3, 8, 9)
SHAPE = DraftShape((2, 2, 1), 10)


@pytest.fixture(scope="module")
def target() -> LoadedTarget:
    folder = ROOT / "tests" / "goldens" / "hf_greedy_llama8" / "target"
    return load_target(open_folder(folder, source="llama8"), dtype="float32", device="cpu")


@pytest.fixture(scope="module")
def plain() -> LoadedTarget:
    folder = ROOT / "tests" / "goldens" / "hf_greedy_llama8" / "target"
    return load_target(open_folder(folder, source="llama8"), dtype="float32", device="cpu", attn_implementation="eager")


class Recorder(TokenDrafter):
    """Drafts the target's own continuation as second children, and keeps every row of features it is given."""

    traits = DrafterTraits(kind="feature", hidden_layers=LAYERS, trees=True)

    def __init__(self) -> None:
        self.known: dict[tuple[int, ...], list[int]] = {}
        self.rows: dict[str, dict[int, list[Tensor]]] = {}
        self.tokens: dict[str, list[int]] = {}
        self.branched = 0
        self.starts: list[int] = []

    def take(self, sequences: Seq[SequenceView], features: Seq[FeatureRows] | None) -> None:
        assert features is not None
        for sequence, rows in zip(sequences, features, strict=True):
            kept = self.rows.setdefault(sequence.id, {})
            self.tokens[sequence.id] = list(sequence.tokens)
            for i, row in enumerate(zip(*rows.hidden, strict=True)):
                assert rows.start + i not in kept
                kept[rows.start + i] = list(row)

    def prefill(self, sequences: Seq[SequenceView], features: Seq[FeatureRows] | None = None) -> None:
        self.starts += [rows.start for rows in features or ()]
        self.take(sequences, features)

    def commit(
        self, sequences: Seq[SequenceView], accepted: Seq[Accepted], features: Seq[FeatureRows] | None = None
    ) -> None:
        self.take(sequences, features)
        self.branched += sum(int((outcome.nodes % 2 == 1).sum()) for outcome in accepted)

    def release(self, sequence: SequenceView) -> None:
        if sequence.id in self.rows and len(self.tokens[sequence.id]) < sequence.prompt_len + 24:
            self.rows.pop(sequence.id)  # preempted: it all comes again

    def propose(
        self, sequences: Seq[SequenceView], plan: StepPlan, controller: Controller, base: Seq[Seq[int]] | None = None
    ) -> list[DraftTree]:
        drafts = []
        for sequence in sequences:
            prompt = tuple(sequence.tokens[: sequence.prompt_len])
            after = self.known.get(prompt, [])[len(sequence.tokens) - sequence.prompt_len :][:2]
            tokens = [t for token in after for t in ((token + 1) % 160, token)]
            drafts.append(
                DraftTree(torch.tensor(tokens).long().numpy(), torch.tensor([-1, -1, 1, 1]).numpy()[: len(tokens)])
            )
        return drafts


def make(target: LoadedTarget, drafter: Recorder, blocks: int) -> Engine:
    runner = ModelRunner(
        target.model,
        slots=blocks * 4,
        layers=probe_layers(target.model, target.device),
        device=target.device,
        dtype=target.dtype,
        vocab_size=target.vocab_size,
    )
    return assemble(
        runner,
        TargetFacts(512, ()),
        pool=BlockPool(blocks, 4),
        limits=Limits(4, 16, 64, 5),
        drafter=drafter,
        policy=FixedPolicy("it", SHAPE),
        tap=FeatureTap(target.model, LAYERS),
    )


@pytest.fixture
def requests() -> list[Request]:
    prompts = [torch.randint(3, 160, (n,), generator=torch.Generator().manual_seed(n)).tolist() for n in (13, 7, 22)]
    return [Request(f"{i}", p, SamplingParams(max_tokens=24, temperature=0)) for i, p in enumerate(prompts)]


@torch.inference_mode()
@pytest.mark.parametrize("blocks", [64, 22])
def test_as_transformers_computes_them(
    target: LoadedTarget, plain: LoadedTarget, requests: list[Request], blocks: int
) -> None:
    drafter = Recorder()
    engine = make(target, drafter, blocks)
    for turn in range(2):
        received = run_to_end(engine, [Request(f"{r.id}-{turn}", r.prompt_ids, r.params) for r in requests])
        for request in requests:
            drafter.known[tuple(request.prompt_ids)] = received[f"{request.id}-{turn}"].tokens
    assert drafter.branched > 10
    assert any(drafter.starts)
    assert (engine.counters.preemptions > 0) == (blocks == 22)
    assert blocks == 22 or engine.counters.prefix_hits > 0
    before_norm: list[Tensor] = []
    decoder: Any = plain.model.get_decoder()  # type: ignore[operator]
    handle = decoder.norm.register_forward_pre_hook(lambda _, args: before_norm.append(args[0]))
    for name, rows in drafter.rows.items():
        tokens = drafter.tokens[name]
        want = plain.model(torch.tensor([tokens]), output_hidden_states=True).hidden_states
        want = [*want, before_norm[-1]]
        assert sorted(rows)[-1] >= len(tokens) - 2
        assert len(rows) > len(tokens) // 2
        for at, row in rows.items():
            if at < len(tokens):
                for layer, got in zip(LAYERS, row, strict=True):
                    torch.testing.assert_close(got, want[layer][0, at], atol=2e-5, rtol=2e-5)
    handle.remove()


def test_a_layer_that_is_not_there_is_named(target: LoadedTarget) -> None:
    with pytest.raises(ConfigError, match=r"hidden states of layer 10; the target has 0 .* to 8 .* and 9"):
        FeatureTap(target.model, (2, 10))
