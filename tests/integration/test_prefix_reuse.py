"""Prefix reuse on golden targets, through the config: fewer prompt rows run, the same tokens."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from draftwing.config_models import Config
from draftwing.core import Request, SamplingParams
from draftwing.engine.build import build_engine
from draftwing.engine.step import Engine
from draftwing.offline import run_all
from tests.tiny_models import golden

PREFIX = list(range(20, 68))  # three blocks
TAILS = ([5, 6, 7], [5, 6, 8, 9], [11])


def engine(name: str, *, prefix: bool, mode: str) -> Engine:
    document = {
        "model": {"path": str(golden(name)), "cpu_threads": 1},
        "drafters": [{"method": "ngram"}] if mode != "off" else [],
        "policy": {"mode": mode},
        "limits": {"context": 128, "sequences": 4},
        "cache": {"tokens": 512, "block_tokens": 16, "prefix": prefix},
    }
    return build_engine(Config.model_validate(document))


def decode(engine: Engine, prompt: Sequence[int], temperature: float) -> list[int]:
    params = SamplingParams(max_tokens=20, temperature=temperature, seed=3, ignore_eos=True)
    (output,) = run_all(engine, [Request("r", list(prompt), params)])
    engine.check()
    return output.token_ids


def prompt_rows(engine: Engine) -> int:
    return sum(record.prefill_rows for record in engine.records)


@pytest.mark.parametrize("mode", ["off", "fixed:k=4", "fixed:tree=2x2"])
@pytest.mark.parametrize("name", ["llama8", "gemma3_6"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_prompts_that_begin_alike_run_what_is_new(name: str, mode: str, temperature: float) -> None:
    cold, warm = engine(name, prefix=False, mode="off"), engine(name, prefix=True, mode=mode)
    prompts = [[*PREFIX, *tail] for tail in TAILS]
    outputs = [decode(cold, prompt, temperature) for prompt in prompts]
    assert [decode(warm, prompt, temperature) for prompt in prompts] == outputs
    assert prompt_rows(cold) == 3 * len(PREFIX) + 3 + 4 + 1
    assert prompt_rows(warm) == len(PREFIX) + 3 + 4  # the last tail is a root alone
    # The next turn begins with a prompt and its output, but for the output's last token, which never ran.
    turn = [*prompts[0], *outputs[0], 9, 9]
    rows = prompt_rows(warm)
    assert decode(warm, turn, temperature) == decode(cold, turn, temperature)
    assert prompt_rows(warm) - rows == len(turn) - 64
