"""What a policy starts from: measured and learned before, or a safe guess."""

from __future__ import annotations

from dataclasses import dataclass, field

from draftwing.core import DraftShape
from draftwing.drafters.base import DrafterTraits
from draftwing.policy.acceptance import AcceptanceModel
from draftwing.policy.cost import CostModel
from draftwing.policy.live_costs import LiveCosts, guessed

LEVEL_SHARES = {"block": 0.02, "incremental": 0.15}  # guesses: a draft level's time as a share of a plain step's


@dataclass(frozen=True, slots=True)
class ScheduleRow:
    """From so many sequences and so many cached tokens of each on, draft this shape."""

    batch: int
    context: int
    shape: DraftShape


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
        costs = self.costs or guessed(LEVEL_SHARES[traits.stop])
        block = traits.stop == "block"
        return LiveCosts(costs, block=block, measured=self.costs is not None, frozen=self.frozen)
