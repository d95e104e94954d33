"""Kind `logits_processors`: the distribution a token is drawn from, alone and at every row of a verify.

M rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch

from draftwing.core import IntArray, SamplingParams
from draftwing.engine.processors import SampleRows, SamplerState, process
from draftwing.engine.sampling import probabilities
from draftwing.testing.goldens.case import Array, Case, CaseError, Verdict

ABSENT = -1


def check(case: Case) -> Verdict:
    verdict = Verdict()
    tolerance = case.tolerance("probs")
    logits, drafts = torch.from_numpy(case.tensor("logits")), case.tensor("spec_drafts")
    histories = list(zip(_ids(case.tensor("prompt_ids")), _ids(case.tensor("output_ids")), strict=True))
    for index, settings in enumerate(case.args["parameter_sets"]):
        params = _params(settings, case)
        rows = _rows(params, histories)
        penalised = process(logits, _rows(replace(params, temperature=1.0), histories))
        verdict.close(f"set {index}, penalties", penalised, case.tensor("logits_after_penalties")[index], tolerance)
        verdict.close(f"set {index}", probabilities(logits, rows), case.tensor("probs")[index], tolerance)
        verify = probabilities(
            torch.from_numpy(case.tensor("spec_logits")), _verify_rows(params, *histories[0], drafts)
        )
        verdict.close(f"set {index}, verify", verify, case.tensor("spec_probs")[index], tolerance)
    return verdict


def _params(settings: Mapping[str, Any], case: Case) -> SamplingParams:
    values = {**case.args.get("defaults", {}), **settings}
    known = {field.name for field in fields(SamplingParams)}
    if unknown := sorted(set(values) - known):
        raise CaseError(f"{case.folder / 'case.json'}: no sampling parameter {', '.join(unknown)}")
    if isinstance(values.get("top_k"), str):  # the defaults say "0 = off"
        values["top_k"] = 0
    if "logit_bias" in values:
        values["logit_bias"] = {int(token): float(bias) for token, bias in values["logit_bias"].items()}
    return SamplingParams(**values)


def _ids(padded: Array) -> list[list[int]]:
    return [[int(token) for token in row if token != ABSENT] for row in padded]


def _state(params: SamplingParams, prompt: list[int], output: list[int]) -> SamplerState:
    state = SamplerState.create(params, prompt)
    state.commit(output)
    return state


def _rows(params: SamplingParams, histories: list[tuple[list[int], list[int]]]) -> SampleRows:
    """One row a sequence."""
    lengths = np.array([len(prompt) + len(output) for prompt, output in histories], dtype=np.int64)
    states = [_state(params, prompt, output) for prompt, output in histories]
    return SampleRows(states, np.arange(len(states), dtype=np.int64), lengths)


def _verify_rows(params: SamplingParams, prompt: list[int], output: list[int], drafts: IntArray) -> SampleRows:
    """A chain of drafts after one sequence: row j sees the first j of them."""
    count = len(drafts) + 1
    row, node = np.nonzero(np.arange(count)[:, None] > np.arange(len(drafts))[None, :])
    return SampleRows(
        [_state(params, prompt, output)],
        np.zeros(count, dtype=np.int64),
        len(prompt) + len(output) + np.arange(count, dtype=np.int64),
        row.astype(np.int64),
        drafts[node],
    )
