"""What golden checks of feature drafters share: a drafter whose calls are noted, and its head run row by row."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from draftwing.core import DraftTree, IntArray, StepPlan
from draftwing.drafters.base import Accepted, Controller, FeatureRows, SequenceView
from draftwing.drafters.feature_drafter import FeatureDrafter
from draftwing.engine.batch import SequenceRows, chain_parents

BLOCKS, BLOCK_TOKENS = 64, 8


@dataclass(slots=True)
class Record:
    """drafts: root and draft of each call. given: features, prompts' only."""

    drafts: list[tuple[int, DraftTree]] = field(default_factory=list)
    accepted: list[list[int]] = field(default_factory=list)
    given: list[FeatureRows] = field(default_factory=list)


def record(drafter: FeatureDrafter) -> Record:
    """Note from now on what a drafter proposes and is given, for one sequence."""
    seen, propose, prefill, commit = Record(), drafter.propose, drafter.prefill, drafter.commit

    def proposed(
        sequences: Seq[SequenceView], plan: StepPlan, controller: Controller, base: Seq[Seq[int]] | None = None
    ) -> list[DraftTree]:
        drafts = propose(sequences, plan, controller, base)
        seen.drafts.append((sequences[0].tokens[-1], drafts[0]))
        return drafts

    def prefilled(sequences: Seq[SequenceView], features: Seq[FeatureRows] | None = None) -> None:
        seen.given += features or ()
        prefill(sequences, features)

    def committed(
        sequences: Seq[SequenceView], accepted: Seq[Accepted], features: Seq[FeatureRows] | None = None
    ) -> None:
        seen.accepted += [outcome.nodes.tolist() for outcome in accepted]
        commit(sequences, accepted, features)

    replaced: Any = drafter
    replaced.propose, replaced.prefill, replaced.commit = proposed, prefilled, committed
    return seen


@torch.inference_mode()
def run_head(drafter: FeatureDrafter, tokens: IntArray, hidden: torch.Tensor, at: int, first: int) -> torch.Tensor:
    """Rows that follow `at` others in the pages of a reserved drafter, the first of all at position `first`."""
    slots = np.arange(at + len(tokens), dtype=np.int64)
    rows = SequenceRows(tokens, chain_parents(len(tokens)), slots, at, len(tokens))
    return drafter._forward([rows], [first], hidden, [at] if at else None)
