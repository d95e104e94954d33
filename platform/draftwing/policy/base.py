"""What a policy is: a pure function from what is known before a step to the plan of the step.

B sequences that decode in the step, in batch order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from draftwing.core import DraftShape, IntArray, StepPlan

BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class PlanInputs:
    """All a policy may look at, as columns. Logged, any decision can be made again.

    speculate [B]: the request allows drafts. tokens_left [B]: tokens it may still emit, at least 1 (its own limit and
    the context length). nodes_left [B]: draft rows that its cache can hold beside the root.
    """

    speculate: BoolArray
    tokens_left: IntArray
    nodes_left: IntArray

    def __len__(self) -> int:
        return len(self.speculate)


class Policy(Protocol):
    @property
    def drafter(self) -> str:
        """Name of the drafter the plans ask for; "" if none."""
        ...

    @property
    def largest(self) -> DraftShape:
        """No plan holds a shape with more nodes or depth: what memory is planned for before start."""
        ...

    def decide(self, inputs: PlanInputs) -> StepPlan:
        """The plan for one step. Pure: the same inputs give the same plan."""
        ...
