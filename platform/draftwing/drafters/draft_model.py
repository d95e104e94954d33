"""Method `draft_model` as the config knows it; the drafter itself, which loads torch, is in `model_drafter.py`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from draftwing.drafters.base import Drafter, DrafterMethod, DrafterOptions, MethodFacts


class DraftModelOptions(DrafterOptions):
    """path: folder, hub id or GGUF file of the small model. It runs on the target's device."""

    path: str = Field(min_length=1, description="a folder, a hub id or a GGUF file")
    revision: str | None = None
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"


def _make(options: DraftModelOptions) -> Drafter:
    from draftwing.drafters.model_drafter import ModelDrafter

    return ModelDrafter(options)


FACTS = MethodFacts(
    "a small model of the same vocabulary", stop="incremental", trees=True, confidence=True, own_cache=True
)
METHOD = DrafterMethod(DraftModelOptions, _make, FACTS)
