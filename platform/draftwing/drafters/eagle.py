"""Methods `eagle`, `eagle2` and `eagle3` as the config knows them; torch is loaded when one is made."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from draftwing.drafters.base import CheckpointOptions, Drafter, DrafterMethod, MethodFacts


class EagleOptions(CheckpointOptions):
    """path: folder or hub id of the head.

    tree: static fills the plan's shape level by level, dynamic keeps the likeliest nodes (EAGLE-2). rope_theta: instead
    of the checkpoint's, which some heads were not trained with.
    """

    path: str = Field(min_length=1)
    tree: Literal["static", "dynamic"] = "static"
    rope_theta: float | None = Field(default=None, gt=0)


class Eagle2Options(EagleOptions):
    tree: Literal["static", "dynamic"] = "dynamic"


class Eagle3Options(Eagle2Options):
    """layers: hidden states of the target that the head takes, as transformers counts them (0: embeddings)."""

    layers: tuple[int, ...] | None = Field(default=None, min_length=1, strict=False)


def _make(options: EagleOptions) -> Drafter:
    from draftwing.drafters.eagle_drafter import EagleDrafter

    return EagleDrafter(options)


EAGLE = DrafterMethod(EagleOptions, _make, MethodFacts.of_a_head("a decoder layer over the last hidden states"))
EAGLE2 = DrafterMethod(Eagle2Options, _make, MethodFacts.of_a_head("as eagle, with trees by confidence"))
EAGLE3 = DrafterMethod(
    Eagle3Options, _make, MethodFacts.of_a_head("decoder layers over hidden states of several of the target's layers")
)
