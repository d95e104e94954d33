"""The target's hidden states for drafters that need them: taken by hooks in the forward that runs anyway.

Shapes: N rows in the ragged batch, H hidden size, L decoder layers.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from draftwing.core import IntArray
from draftwing.drafters.base import FeatureRows
from draftwing.engine.rows import Layout
from draftwing.errors import ConfigError


class FeatureTap:
    """Holds the hidden states [N, H] of the last forward at the layers asked for, and of no others.

    layers: as `DrafterTraits.hidden_layers`: 0 is the embeddings, i the raw output of decoder layer i - 1, L the
    output of the final norm, L + 1 its input.
    """

    def __init__(self, model: nn.Module, layers: Seq[int]) -> None:
        decoder: Any = model.get_decoder()  # type: ignore[operator]
        count = len(decoder.layers)
        if odd := [layer for layer in layers if not 0 <= layer <= count + 1]:
            raise ConfigError(
                f"the drafter needs hidden states of layer {odd[0]}; the target has 0 (embeddings) to {count} "
                f"(after the final norm), and {count + 1} (before it)"
            )
        self._layers = tuple(layers)
        self._held: dict[int, Tensor] = {}
        self._hooks = []
        for layer in set(layers):
            if layer == count:
                self._hooks.append(decoder.register_forward_hook(lambda _, __, out: self._hold(count, out[0])))
            else:
                module = decoder.norm if layer > count else decoder.layers[layer]
                self._hooks.append(module.register_forward_pre_hook(self._before(layer), with_kwargs=True))

    def close(self) -> None:
        """Take nothing any more: the model serves another engine from now on."""
        for hook in self._hooks:
            hook.remove()
        self._held.clear()

    def _before(self, layer: int) -> Any:
        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._hold(layer, args[0] if args else kwargs["hidden_states"])

        return hook

    def _hold(self, layer: int, hidden: Tensor) -> None:
        self._held[layer] = hidden[0]

    def rows(self, layout: Layout, paths: Seq[IntArray]) -> list[FeatureRows]:
        """Per sequence of the step, its committed rows in order: old root and accepted nodes, or a prompt chunk.

        paths: accepted wanted rows of each sequence, the root first.
        """
        found, at = [], 0
        for rows, path, start in zip(layout.batch, paths, layout.starts.tolist(), strict=True):
            count, wanted = len(rows.tokens), rows.wanted
            first = count - wanted  # rows whose logits nobody wanted are a prompt's
            kept = np.concatenate([np.arange(first), first + path - start]) + at
            index = torch.from_numpy(kept)
            held = [self._held[layer] for layer in self._layers]
            found.append(FeatureRows(rows.kv_len, tuple(h.index_select(0, index.to(h.device)) for h in held)))
            at += count
        return found
