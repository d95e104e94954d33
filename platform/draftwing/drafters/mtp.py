"""Method `mtp` as the config knows it; the drafter itself, which loads torch, is in `mtp_drafter.py`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from draftwing.drafters.base import CheckpointOptions, Drafter, DrafterMethod, MethodFacts


class MtpOptions(CheckpointOptions):
    """path: folder or hub id of the modules; None: they lie in the target's own checkpoint.

    tree: as EAGLE's. hidden: whether modules take hidden states, the target's and their own, after the final norm or
    before it. After it is right for what is published; of MiMo and GLM some say otherwise, so measure.
    """

    path: str | None = Field(default=None, min_length=1, description="null, a folder or a hub id")
    tree: Literal["static", "dynamic"] = "static"
    hidden: Literal["normed", "raw"] = "normed"


def _make(options: MtpOptions) -> Drafter:
    from draftwing.drafters.mtp_drafter import MtpDrafter

    return MtpDrafter(options)


METHOD = DrafterMethod(
    MtpOptions,
    _make,
    MethodFacts(
        "multi-token prediction modules that came with the target", "feature", "incremental",
        trees=True, confidence=True, own_cache=True,
    ),
)  # fmt: skip
