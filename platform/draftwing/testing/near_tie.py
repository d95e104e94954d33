"""How close plain decoding was to another choice: the gap that rule R1's near-tie clause asks about."""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq

import numpy as np

from draftwing.core import FloatArray, Request
from draftwing.engine.batch import SequenceRows, chain_parents
from draftwing.engine.step import Engine
from draftwing.testing.naive_sampling import choose
from draftwing.testing.same_tokens import Gap

CHUNK = 256


def gap_of(engine: Engine, requests: Seq[Request], plain: Seq[Seq[int]]) -> Gap:
    """(sequence, position) -> plain's gap there, from a forward over the sequence alone. The engine must be idle."""

    def gap(sequence: int, position: int) -> float:
        request, output = requests[sequence], list(plain[sequence][:position])
        params = request.params
        ends = (*(() if params.ignore_eos else engine.admission.eos_token_ids), *params.stop_token_ids)
        logits = _logits_after(engine, [*request.prompt_ids, *output])
        chosen = choose(logits, params, request.prompt_ids, output, choice=request.choice, end_ids=ends)
        return math.inf if chosen is None else chosen.gap

    return gap


def _logits_after(engine: Engine, tokens: list[int]) -> FloatArray:
    """Logits [V] after these tokens, computed in free blocks of the engine's cache."""
    if engine.busy:
        raise RuntimeError("the engine is busy; a gap is measured in its cache, so let it finish first")
    table: list[int] = []
    if not engine.pool.grow(table, len(tokens)):
        raise RuntimeError(f"a gap after {len(tokens)} tokens was asked for; the cache holds {engine.pool.tokens}")
    ids, slots = np.array(tokens, dtype=np.int64), engine.pool.slots(table, len(tokens))
    try:
        for start in range(0, len(ids), CHUNK):
            part = ids[start : start + CHUNK]
            end = start + len(part)
            rows = SequenceRows(part, chain_parents(len(part)), slots[:end], start, wanted=1)
            logits = engine.runner.forward([rows])
    finally:
        engine.pool.release(table)
    last: FloatArray = logits[0].float().cpu().numpy()
    return last
