"""Methods `dflash`, `dflash2` and `dspark` as the config knows them; the drafter, which loads torch, is in
`block_drafter.py`.
"""

from __future__ import annotations

from functools import partial

from pydantic import Field

from draftwing.drafters.base import CheckpointOptions, Drafter, DrafterMethod, MethodFacts


class BlockOptions(CheckpointOptions):
    """path: folder or hub id of the published head."""

    path: str = Field(min_length=1)


class DSparkOptions(BlockOptions):
    """confidence_threshold: a draft ends before the first token whose predicted acceptance is lower; 0: never."""

    confidence_threshold: float = Field(default=0.0, ge=0, le=1)


def _make(method: str, options: BlockOptions) -> Drafter:
    from draftwing.drafters.block_drafter import BlockDrafter

    return BlockDrafter(method, getattr(options, "confidence_threshold", 0.0))


_FILLS = "a small model that fills a block in one call"
DFLASH = DrafterMethod(BlockOptions, partial(_make, "dflash"), MethodFacts.of_a_head(_FILLS))
DFLASH2 = DrafterMethod(
    BlockOptions, partial(_make, "dflash2"), MethodFacts.of_a_head(f"{_FILLS} and picks a path through it")
)
DSPARK = DrafterMethod(
    DSparkOptions, partial(_make, "dspark"), MethodFacts.of_a_head(f"{_FILLS} and says where to cut it")
)
