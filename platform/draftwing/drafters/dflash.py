"""Methods `dflash`, `dflash2` and `dspark` as the config knows them; the drafter, which loads torch, is in
`block_drafter.py`.
"""

from __future__ import annotations

from functools import partial

from pydantic import Field

from draftwing.drafters.base import CheckpointOptions, Drafter, DrafterMethod, LayerOptions, MethodFacts


class BlockOptions(CheckpointOptions, LayerOptions):
    """path: folder or hub id of the published head."""

    path: str = Field(min_length=1, description="a folder or a hub id")


class DSparkOptions(BlockOptions):
    """confidence_threshold: a draft ends before the first token whose predicted acceptance is lower; 0: never."""

    confidence_threshold: float = Field(default=0.0, ge=0, le=1)


def _make(method: str, options: BlockOptions) -> Drafter:
    from draftwing.drafters.block_drafter import BlockDrafter

    return BlockDrafter(method, getattr(options, "confidence_threshold", 0.0), options)


def _method(name: str, options: type[BlockOptions], summary: str) -> DrafterMethod[BlockOptions]:
    facts = MethodFacts(summary, "feature", trees=True, confidence=True, own_cache=True)
    return DrafterMethod(options, partial(_make, name), facts)


DFLASH = _method("dflash", BlockOptions, "fills a whole block of tokens in one pass")
DFLASH2 = _method("dflash2", BlockOptions, "dflash with convolutions, and a selector that walks the block")
DSPARK = _method("dspark", DSparkOptions, "dflash with Markov heads, and a head that predicts acceptance")
