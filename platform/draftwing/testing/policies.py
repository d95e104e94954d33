"""Inputs to show to policies, made by hand."""

from __future__ import annotations

from typing import Any

import numpy as np

from draftwing.policy.base import PlanInputs


def plan_inputs_of(sequences: int = 1, **columns: Any) -> PlanInputs:
    """Greedy requests named 0, 1, ... with room for anything and 100 cached tokens each; columns: other values.

    A column given as one value is the same for every sequence.
    """
    values: dict[str, Any] = {
        "speculate": np.ones(sequences, dtype=np.bool_),
        "tokens_left": np.full(sequences, 1000),
        "nodes_left": np.full(sequences, 1000),
        "contexts": np.full(sequences, 100),
        "behind": np.zeros(sequences, dtype=np.int64),
        "classes": np.zeros(sequences, dtype=np.int64),
        "distorted": np.zeros(sequences, dtype=np.bool_),
        "requests": tuple(map(str, range(sequences))),
    }
    for name, value in columns.items():
        default = values.get(name)
        if isinstance(default, np.ndarray):
            values[name] = np.broadcast_to(np.asarray(value, default.dtype), sequences)
        else:
            values[name] = value
    return PlanInputs(**values)
