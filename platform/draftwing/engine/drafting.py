"""The engine's side of a drafter: whatever it raises or returns costs at most that draft (rule R3)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from collections.abc import Sequence as Seq

from draftwing.core import DraftTree, StepPlan
from draftwing.drafters.base import Accepted, Drafter, FeatureRows, NullController
from draftwing.drafters.validate import checked
from draftwing.engine.sequence import Sequence

log = logging.getLogger(__name__)


class Drafting:
    """Calls the drafter and checks its drafts. failures: calls that raised, since the start."""

    def __init__(self, drafter: Drafter, vocab_size: int) -> None:
        self.drafter = drafter
        self.vocab_size = vocab_size
        self.failures = 0

    def propose(self, sequences: Seq[Sequence], plan: StepPlan) -> tuple[list[DraftTree], int]:
        """One valid draft per sequence, empty where nothing good came, and how many were refused."""
        nothing = [DraftTree.empty()] * len(sequences)
        if not any(shape.nodes for shape in plan.shapes):
            return nothing, 0
        trees = self._call("propose", lambda: self.drafter.propose(sequences, plan, NullController()))
        return (nothing, len(sequences)) if trees is None else checked(trees, plan.shapes, self.vocab_size)

    def prefilled(self, sequences: Seq[Sequence], features: Seq[FeatureRows] | None = None) -> None:
        if sequences:
            self._call("prefill", lambda: self.drafter.prefill(sequences, features))

    def committed(
        self, sequences: Seq[Sequence], accepted: Seq[Accepted], features: Seq[FeatureRows] | None = None
    ) -> None:
        if sequences:
            self._call("commit", lambda: self.drafter.commit(sequences, accepted, features))

    def release(self, sequence: Sequence) -> None:
        self._call("release", lambda: self.drafter.release(sequence))

    def _call(self, what: str, call: Callable[[], object]) -> object:
        """The call's result, None if it raised: a drafter may be anyone's plug-in and raise anything."""
        try:
            return call()
        except Exception as error:
            self.failures += 1
            if self.failures == 1:
                log.exception("the drafter's %s failed; decoding goes on without its drafts", what)
            else:
                log.debug("the drafter's %s failed again: %r", what, error)
            return None
