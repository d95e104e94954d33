"""What a policy starts from: measured and learned before, or a safe guess."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace

from draftwing.drafters.base import DrafterTraits
from draftwing.policy.acceptance import DEPTHS, RANKS, AcceptanceModel
from draftwing.policy.artifact import AcceptanceRow, Artifact, ScheduleRow
from draftwing.policy.base import CLASSES
from draftwing.policy.cost import CostModel
from draftwing.policy.live_costs import LiveCosts, guessed

LEVEL_SHARES = {"block": 0.02, "incremental": 0.15}  # guesses: a draft level's time as a share of a plain step's


@dataclass(slots=True)
class Profile:
    """costs None: nothing was measured, costs are learned from the first steps on. digest: of the artifact, or "".

    frozen: live factors on the costs stay 1, for simulations with costs that are true.
    """

    costs: CostModel | None = None
    acceptance: AcceptanceModel = field(default_factory=AcceptanceModel)
    schedule: tuple[ScheduleRow, ...] = ()
    digest: str = ""
    frozen: bool = False

    def live_costs(self, traits: DrafterTraits) -> LiveCosts:
        """traits: of the drafter."""
        costs = self.costs or guessed(LEVEL_SHARES[traits.stop])
        block = traits.stop == "block"
        return LiveCosts(costs, block=block, measured=self.costs is not None, frozen=self.frozen)


def profile_of(artifact: Artifact) -> Profile:
    """What a published profile says."""
    costs = CostModel.fit(artifact.curves, block=artifact.manifest.block)
    return Profile(costs, learned_before(artifact.acceptance), artifact.schedule, artifact.digest)


def learned_before(rows: Seq[AcceptanceRow]) -> AcceptanceModel:
    """The model that a profile's rows are the prior of. Depths without a row keep the default's."""
    model = AcceptanceModel()
    for row in rows:
        if row.part == "depth" and 1 <= row.index <= DEPTHS:
            model.prior[row.index - 1] = row.w, row.w, row.b
            model.prior_mean[row.index - 1] = row.mean
        elif row.part == "rank" and 0 < row.index < RANKS:
            model.rank[row.index] = row.b
        elif row.part == "class" and 0 <= row.index < CLASSES:
            model.classes[row.index].value = row.b
    return replace(model)  # what follows from the prior is set anew
