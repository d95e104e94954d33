"""Methods `eagle`, `eagle2` and `eagle3` as the config knows them; torch is loaded when one is made."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from draftwing.drafters.base import CheckpointOptions, Drafter, DrafterMethod, LayerOptions, MethodFacts


class EagleOptions(CheckpointOptions):
    """path: folder or hub id of the head.

    tree: static fills the plan's shape level by level, dynamic keeps the likeliest nodes (EAGLE-2). rope_theta: instead
    of the checkpoint's, which some heads were not trained with.
    """

    path: str = Field(min_length=1, description="a folder or a hub id")
    tree: Literal["static", "dynamic"] = "static"
    rope_theta: float | None = Field(default=None, gt=0)


class Eagle2Options(EagleOptions):
    tree: Literal["static", "dynamic"] = "dynamic"


class Eagle3Options(Eagle2Options, LayerOptions):
    pass


def _make(options: EagleOptions) -> Drafter:
    from draftwing.drafters.eagle_drafter import EagleDrafter

    return EagleDrafter(options)


def _facts(summary: str) -> MethodFacts:
    return MethodFacts(summary, "feature", "incremental", trees=True, confidence=True, own_cache=True)


EAGLE = DrafterMethod(EagleOptions, _make, _facts("one layer over the target's last hidden state"))
EAGLE2 = DrafterMethod(Eagle2Options, _make, _facts("the heads of eagle, with trees that follow confidence"))
EAGLE3 = DrafterMethod(Eagle3Options, _make, _facts("layers over hidden states of several target layers"))
