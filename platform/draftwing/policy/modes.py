"""The policies that decide without learning, and the text that names a mode.

off                  plain decoding
adaptive             what pays, in each step; adaptive:k=12 and adaptive:tree=3x2x1 bound what is drafted
table                the shapes that a profile's schedule names, by batch and context
fixed:k=4            a chain of 4 tokens
fixed:k=4,width=2    2 chains of 4 tokens that part at the root: 8 nodes, not 2 + 4 + 8 + 16
fixed:tree=3x2x1     3 children of the root, 2 of each of those, 1 of each of those: 3 + 6 + 6 nodes
fixed:paths=0,1,0.0  these nodes: the best and the second child of the root, and the best child of the first
"""

from __future__ import annotations

import re

from draftwing.core import NO_DRAFT, DraftShape, StepPlan
from draftwing.drafters.base import DrafterTraits
from draftwing.drafters.tree import full_size, shape_of
from draftwing.errors import ConfigError
from draftwing.policy.adaptive import AdaptivePolicy
from draftwing.policy.base import PlanInputs, Policy, UncutPolicy
from draftwing.policy.profile import Profile
from draftwing.policy.table import TablePolicy, cut_to_room

FORMS = 'off, adaptive, table, "adaptive:k=8", "fixed:k=4", "fixed:k=4,width=2", "fixed:tree=3x2" or "fixed:paths=0,1"'
MOST_DEPTH, MOST_WIDTH, MOST_NODES = 64, 32, 512
ADAPTIVE_DEPTH = 8  # at most, where the mode doesn't say: deeper nodes seldom survive


class OffPolicy(UncutPolicy):
    """Plain decoding: the oracle of rule R1."""

    drafter = ""
    mode = "off"
    largest = NO_DRAFT

    def decide(self, inputs: PlanInputs) -> StepPlan:
        return StepPlan(self.drafter, (NO_DRAFT,) * len(inputs), "off")


class FixedPolicy(UncutPolicy):
    """The same shape for every sequence in every step, cut where a sequence has less room.

    A verify commits one token more than it accepts, so the last token a request may emit needs no draft.
    """

    def __init__(self, drafter: str, shape: DraftShape, reason: str = "fixed") -> None:
        self.drafter = drafter
        self.largest = shape
        self.mode = reason

    def decide(self, inputs: PlanInputs) -> StepPlan:
        return StepPlan(self.drafter, cut_to_room(self.largest, inputs), self.mode)


def parse_mode(
    text: str,
    drafter: str = "",
    traits: DrafterTraits | None = None,
    profile: Profile | None = None,
    tpot_ms: float | None = None,
) -> Policy:
    """The policy a mode names, for this drafter. ConfigError names what is accepted.

    drafter: name under which plans ask for it. traits: refuses a shape the drafter can't propose. profile, tpot_ms: for
    the modes that use them.
    """
    mode = text.strip()
    if mode == "off":
        return OffPolicy()
    if mode == "table":
        return (
            TablePolicy(drafter, profile.schedule, profile.digest) if profile else OffPolicy()
        )  # a config is checked without one
    kind, _, settings = mode.partition(":")
    if kind not in ("fixed", "adaptive"):
        raise ConfigError(f"policy.mode is {text!r}; expected {FORMS}")
    if mode == "adaptive":
        depth = min(ADAPTIVE_DEPTH, traits.max_depth if traits else ADAPTIVE_DEPTH)
        shape = DraftShape((1,) * depth, depth)
    else:
        shape = _shape(text, settings)
    if traits is not None and shape.depth > traits.max_depth:
        raise ConfigError(f"policy.mode is {text!r}, but drafter {drafter!r} drafts at most {traits.max_depth} tokens")
    if traits is not None and not traits.trees and max(shape.branching, default=1) > 1:
        raise ConfigError(f"policy.mode is {text!r}, but drafter {drafter!r} drafts chains only; leave out the width")
    if kind == "adaptive":
        return AdaptivePolicy(drafter, shape, traits or DrafterTraits(), profile or Profile(), tpot_ms)
    return FixedPolicy(drafter, shape, mode)


def _shape(text: str, settings: str) -> DraftShape:
    if match := re.fullmatch(r"k=(\d{1,9})(?:,width=(\d{1,9}))?", settings):
        depth, width = int(match[1]), int(match[2] or 1)
        widths, form = [width] if depth else [], f"k={depth}"
    elif match := re.fullmatch(r"tree=(\d{1,9}(?:x\d{1,9})*)", settings):
        widths = [int(found) for found in match[1].split("x")]
        depth, form = len(widths), f"a depth of {len(widths)}"
    elif match := re.fullmatch(r"paths=(\d{1,9}(?:\.\d{1,9})*(?:,\d{1,9}(?:\.\d{1,9})*)*)", settings):
        return _named(text, [tuple(map(int, path.split("."))) for path in match[1].split(",")])
    else:
        raise ConfigError(f"policy.mode is {text!r}; expected {FORMS}")
    if depth > MOST_DEPTH:
        raise ConfigError(f"policy.mode is {text!r} with {form}; expected 0 to {MOST_DEPTH}")
    if wrong := [width for width in widths if not 1 <= width <= MOST_WIDTH]:
        raise ConfigError(f"policy.mode is {text!r} with width {wrong[0]}; expected 1 to {MOST_WIDTH}")
    branching = (*widths, *(1 for _ in range(depth - len(widths))))
    nodes = full_size(branching)
    if nodes > MOST_NODES:
        raise ConfigError(f"policy.mode is {text!r} with {nodes} draft nodes a sequence; expected at most {MOST_NODES}")
    return DraftShape(branching, nodes)


def _named(text: str, paths: list[tuple[int, ...]]) -> DraftShape:
    try:
        shape = shape_of(paths)
    except ValueError as error:
        raise ConfigError(f"policy.mode is {text!r}, but {error}") from error
    bounds = ((shape.depth, MOST_DEPTH, "levels"), (max(shape.branching), MOST_WIDTH, "children of a node"))
    for found, most, what in (*bounds, (shape.nodes, MOST_NODES, "nodes")):
        if found > most:
            raise ConfigError(f"policy.mode is {text!r} with {found} {what}; expected at most {most}")
    return shape
