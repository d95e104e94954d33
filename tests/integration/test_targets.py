"""Every architecture by a tiny random model: the tokens of transformers' own `generate`, and the logits of eager."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AttentionInterface

from draftwing.checkpoints.hub import resolve_model
from draftwing.config_models import Config, ModelConfig
from draftwing.core import Request, SamplingParams
from draftwing.engine import attention
from draftwing.engine.build import engine_for
from draftwing.engine.loading import load_target
from draftwing.engine.runner import ModelRunner, Runner, kv_bytes_per_slot, probe_layers
from draftwing.engine.step import Engine
from draftwing.testing.drafters import OracleDrafter
from draftwing.testing.plain_loop import TransformersTarget, gap_after
from draftwing.testing.r1_matrix import serve
from draftwing.testing.ragged import ragged_deviation
from draftwing.testing.run_engine import make_engine
from draftwing.testing.same_tokens import NEAR_TIE, assert_same_tokens
from tests.random_targets import TARGETS, VOCAB, save_random

SLOTS, BLOCK_TOKENS = 512, 4
LENGTH = 48
PROMPT_LENGTHS = (5, 41, 18, 27)
PARAMS = SamplingParams(max_tokens=LENGTH, temperature=0, ignore_eos=True)
TOLERANCE = 3e-5  # of the largest logit; our products add up in another order than transformers, a little more exactly


@dataclass(frozen=True, slots=True)
class Case:
    """A target twice: as transformers runs it, and as the engine does. outputs: of `generate`, one a prompt."""

    name: str
    plain: TransformersTarget
    runner: Runner
    prompts: list[list[int]]
    outputs: list[list[int]]

    @classmethod
    def make(cls, name: str, folder: Path, *, seed: int | None = None) -> Case:
        model = resolve_model(ModelConfig(path=str(save_random(name, folder, seed=seed))))
        plain = TransformersTarget(load_target(model, device="cpu", attn_implementation="eager").model)
        config = Config.model_validate({"cache": {"tokens": SLOTS, "block_tokens": BLOCK_TOKENS}})
        runner = engine_for(config, load_target(model, device="cpu")).runner
        draw = np.random.default_rng(5 if seed is None else seed)
        prompts = [draw.integers(3, VOCAB, length).tolist() for length in PROMPT_LENGTHS]
        return cls(name, plain, runner, prompts, [plain.generate(prompt, LENGTH) for prompt in prompts])

    def engine(self, branching: tuple[int, ...], chunk: int) -> Engine:
        """One that drafts trees of this shape, right seven times in ten."""
        known = {tuple(prompt): output for prompt, output in zip(self.prompts, self.outputs, strict=True)}
        return make_engine(
            self.runner,
            drafter=OracleDrafter(known, 0.7) if branching else None,
            branching=branching,
            blocks=SLOTS // BLOCK_TOKENS,
            block_tokens=BLOCK_TOKENS,
            prefill_chunk=chunk,
        )

    def decode(self, engine: Engine) -> list[list[int]]:
        """The engine's output for every prompt, all in one batch."""
        requests = [Request(str(at), prompt, PARAMS) for at, prompt in enumerate(self.prompts)]
        return [received.tokens for received in serve(engine, requests).values()]

    def gap(self, sequence: int, position: int) -> float:
        return gap_after(self.plain, self.prompts[sequence], self.outputs[sequence][:position], PARAMS)


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Case]:
    """A target by its name, made once."""
    return cache(lambda name: Case.make(name, tmp_path_factory.mktemp(name) / "model"))


@pytest.fixture(params=TARGETS)
def case(request: pytest.FixtureRequest, cases: Callable[[str], Case]) -> Case:
    return cases(request.param)


def test_outputs_wander_and_choices_are_clear(case: Case) -> None:
    """Otherwise equal tokens would prove little, or differ by chance."""
    for prompt, output in zip(case.prompts, case.outputs, strict=True):
        with torch.inference_mode():
            logits = case.plain.model(torch.tensor([prompt + output]), use_cache=False).logits[0, len(prompt) - 1 : -1]
        assert logits.argmax(-1).tolist() == output
        best, second = logits.topk(2).values.unbind(-1)
        assert (best - second).min() > NEAR_TIE
        assert len(set(output)) >= LENGTH // 3


@pytest.mark.parametrize(
    ("branching", "chunk"),
    [((), 64), ((), 7), ((1, 1, 1, 1), 5), ((3, 2, 1), 16)],
    ids=["plain", "plain in chunks", "chains", "trees"],
)
def test_tokens_of_generate(case: Case, branching: tuple[int, ...], chunk: int) -> None:
    engine = case.engine(branching, chunk)
    assert_same_tokens(case.outputs, case.decode(engine))
    counters = engine.counters
    assert not branching or 0 < counters.accepted_tokens < counters.draft_tokens
    assert (counters.branched_tokens > 0) == (max(branching, default=1) > 1)


def test_logits_of_a_ragged_batch(case: Case) -> None:
    draw = np.random.default_rng(1)
    for _ in range(2):
        deviation = ragged_deviation(case.runner, case.plain, draw, slots=SLOTS)
        assert deviation.scale > 3
        assert deviation.relative <= TOLERANCE, deviation


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("llama", 2 * 2 * 12),  # keys and values of two heads
        ("gemma3", 2 * 2 * 16),
        (
            "deepseek_v3",
            24 + 8,
        ),  # one latent and one rotary key for all heads, which have 4 * (20 + 10)
    ],
)
def test_cache_bytes(name: str, numbers: int, cases: Callable[[str], Case]) -> None:
    runner = cases(name).runner
    assert isinstance(runner, ModelRunner)
    layers = probe_layers(runner.model, runner.device)
    assert kv_bytes_per_slot(layers, torch.float32) == 3 * 4 * numbers
    assert sum(tensor.nbytes for layer in runner.pages for tensor in layer) == SLOTS * 3 * 4 * numbers


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_many_seeds(name: str, tmp_path: Path) -> None:
    for seed in range(1, 5):
        case = Case.make(name, tmp_path / str(seed), seed=seed)
        draw = np.random.default_rng(seed)
        assert ragged_deviation(case.runner, case.plain, draw, slots=SLOTS).relative <= TOLERANCE
        for branching in ((), (1,) * 6, (2, 2, 2), (4, 1, 1, 1)):
            for chunk in (1, 3, 64):
                assert_same_tokens(case.outputs, case.decode(case.engine(branching, chunk)), near_tie=case.gap)


# --- what each architecture's own attention needs, and that the checks above would miss it


@pytest.fixture
def without() -> Iterator[Callable[..., None]]:
    """Make our attention ignore a keyword that a model passes."""

    def ignore(keyword: str, value: Any = None) -> None:
        def deaf(*args: Any, **keywords: Any) -> Any:
            assert keyword in keywords
            return attention.attend(*args, **{**keywords, keyword: value})

        AttentionInterface.register(attention.NAME, deaf)

    yield ignore
    attention.register()


@pytest.mark.parametrize(
    ("name", "keyword"),
    [
        *[(name, "sliding_window") for name in ("qwen2_windows", "mistral", "gemma2", "gemma3", "phi3", "gpt_oss")],
        ("gemma2", "softcap"),
        ("gpt_oss", "s_aux"),
        ("gemma3", "scaling"),
        ("deepseek_v3_yarn", "scaling"),
    ],
)
def test_an_ignored_keyword_is_noticed(
    name: str, keyword: str, cases: Callable[[str], Case], without: Callable[..., None]
) -> None:
    case = cases(name)
    without(keyword)
    deviation = ragged_deviation(case.runner, case.plain, np.random.default_rng(1), slots=SLOTS)
    assert deviation.relative > 100 * TOLERANCE
