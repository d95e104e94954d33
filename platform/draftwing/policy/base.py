"""What a policy is: it plans a step from what is known before it, cuts the drafts, and learns from what came out.

Only `observe` changes a policy's state. So a log of inputs, drafts and results, fed to a fresh policy of the same
profile, makes the same plans and cuts step for step (*re-decide*).

B sequences that decode in the step, in batch order.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from draftwing.core import DraftShape, DraftTree, IntArray, StepPlan
from draftwing.drafters.base import Controller, NullController

BoolArray = npt.NDArray[np.bool_]
BANDS = (0.0, 0.7)  # temperatures up to each, and those above: what is accepted of a draft differs between them
CLASSES = 2 * (len(BANDS) + 1)


@dataclass(frozen=True, slots=True)
class PlanInputs:
    """All a policy may look at before a step, as columns. Logged, any decision can be made again.

    speculate [B]: the request allows drafts. tokens_left [B]: tokens it may still emit, at least 1 (its own limit and
    the context length). nodes_left [B]: draft rows that its cache can hold beside the root. contexts [B]: cached
    tokens. behind [B]: tokens committed while nothing was drafted for it, the prompt included: what the drafter may
    have to catch up. classes [B]: see `acceptance_class`. distorted [B]: processors distort acceptance, so the request
    teaches nothing that others share. requests [B]: ids. prefill_rows, prefill_context: prompt rows that run in the
    same step, and the tokens cached before them. waiting: requests in the queue.
    """

    speculate: BoolArray
    tokens_left: IntArray
    nodes_left: IntArray
    contexts: IntArray
    behind: IntArray
    classes: IntArray
    distorted: BoolArray
    requests: tuple[str, ...]
    prefill_rows: int = 0
    prefill_context: int = 0
    waiting: int = 0

    def __len__(self) -> int:
        return len(self.speculate)

    @property
    def context(self) -> int:
        """Cached tokens that the step reads."""
        return int(self.contexts.sum()) + self.prefill_context


def acceptance_class(temperature: float, distorted: bool) -> int:
    """0 to CLASSES - 1: by temperature band, and apart where processors distort acceptance."""
    return int(np.searchsorted(BANDS, temperature)) + (len(BANDS) + 1) * distorted


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step turned out to be: the only thing a policy learns from, logged.

    drafts [B]: sound, as the drafter made them, before the cut. verified [B]: ascending nodes of each that the target
    ran. accepted [B]: nodes on the accepted path, in its order. committed [B]: tokens that became output. levels: for
    each depth that was drafted, whose drafts grew there [B]; a drafter that drafts all depths in one call has one
    entry. rows: of the forward, roots and prompts included. draft_ms: the drafter's call. step_ms: the whole step.
    ended: ids of requests that left the engine since the last result, for whatever reason.
    """

    drafts: tuple[DraftTree, ...]
    verified: tuple[IntArray, ...]
    accepted: tuple[IntArray, ...]
    committed: IntArray
    levels: tuple[BoolArray, ...]
    rows: int
    draft_ms: float
    step_ms: float
    ended: tuple[str, ...] = ()


class Policy(Protocol):
    """In each step that decodes or prefills: decide, controller, cut, observe, in this order, with the same inputs."""

    @property
    def drafter(self) -> str:
        """Name of the drafter the plans ask for; "" if none."""
        ...

    @property
    def largest(self) -> DraftShape:
        """No plan holds a shape with more nodes or depth: what memory is planned for before start."""
        ...

    def decide(self, inputs: PlanInputs) -> StepPlan:
        """The plan for one step. Pure given the state."""
        ...

    def controller(self, inputs: PlanInputs, plan: StepPlan) -> Controller:
        """Who is asked before each depth, by drafters that draft depth by depth."""
        ...

    def cut(self, inputs: PlanInputs, plan: StepPlan, drafts: Seq[DraftTree]) -> list[IntArray] | None:
        """Ascending nodes of each draft [B] that are verified, parents among them; None: all. Pure given the state."""
        ...

    def observe(self, inputs: PlanInputs, plan: StepPlan, result: StepResult) -> None:
        """The step is over."""
        ...


class UncutPolicy:
    """Base of the policies whose plans say all: nothing is stopped, cut or learned. mode: as a config names it."""

    mode = "own"

    def controller(self, inputs: PlanInputs, plan: StepPlan) -> Controller:
        return NullController()

    def cut(self, inputs: PlanInputs, plan: StepPlan, drafts: Seq[DraftTree]) -> list[IntArray] | None:
        return None

    def observe(self, inputs: PlanInputs, plan: StepPlan, result: StepResult) -> None:
        pass
