"""What two choices in attention save on a CPU, at the head sizes of real models and one thread.

Windows: a sliding layer reads the slots that some row can see, against the whole context behind a mask (Gemma 3 270M:
4 heads of 256 over one key/value head, window 512). Latents: the projection applied to queries and outputs, against
projecting the context up to keys and values per head (DeepSeek-V3, 16 of its 128 heads). Medians of CPU milliseconds a
layer, one sequence, interleaved.

usage: python benchmarks/attention_cost.py
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from draftwing.engine.attention import attend, prepare
from draftwing.engine.batch import SequenceRows, build, chain_parents
from draftwing.engine.latent import Latent

CONTEXTS = (500, 2000, 8000)
ROWS = (1, 5)
REPEATS = 15
CPU = torch.device("cpu")


def interleaved(ways: dict[str, Callable[[], Tensor]]) -> dict[str, float]:
    """Median CPU milliseconds of each way."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for repeat in range(REPEATS + 2):
        for name, call in ways.items():
            start = time.process_time()
            call()
            if repeat >= 2:
                times[name].append(1000 * (time.process_time() - start))
    return {name: statistics.median(values) for name, values in times.items()}


def batch_of(rows: int, context: int) -> SequenceRows:
    tokens = np.zeros(rows, dtype=np.int64)
    # The cache's blocks are rarely contiguous: 32 tokens each, in random order.
    blocks = np.random.default_rng(0).permutation((context + rows) // 32 + 1)
    slots = (blocks[:, None] * 32 + np.arange(32)).reshape(-1)[: context + rows]
    return SequenceRows(tokens, chain_parents(rows), slots, context, rows)


def windows(rows: int, context: int) -> dict[str, float]:
    heads, size, window = 4, 256, 512
    pages = [(torch.randn(context + 128, 1, size), torch.randn(context + 128, 1, size))]
    module = torch.nn.Module()
    module.layer_idx = 0  # type: ignore[assignment]
    query, key = torch.randn(1, heads, rows, size), torch.randn(1, 1, rows, size)
    ctx = prepare(build([batch_of(rows, context)]), pages, CPU)

    def layer(window: int | None) -> Callable[[], Tensor]:
        return lambda: attend(module, query, key, key, None, dw_ctx=ctx, sliding_window=window)[0]

    # A window as long as the context costs what a mask over all of it costs.
    return interleaved({"the window": layer(window), "all, masked": layer(context + rows - 1)})


def latents(rows: int, context: int) -> dict[str, float]:
    heads, size, rotary, plain, value = 16, 512, 64, 128, 128
    module = torch.nn.Module()
    module.kv_b_proj = torch.nn.Linear(size, heads * (plain + value), bias=False)
    for name, number in {"expand_kv": 0, "layer_idx": 0, "kv_lora_rank": size, "qk_rope_head_dim": rotary}.items():
        setattr(module, name, number)
    module.qk_nope_head_dim = plain  # type: ignore[assignment]
    pages = [(torch.randn(context + 128, 1, size + rotary), torch.empty(context + 128, 1, 0))]
    query = torch.randn(1, heads, rows, plain + rotary)
    ctx = prepare(build([batch_of(rows, context)]), pages, CPU)
    view = ctx.groups[0].view(None, CPU)
    assert Latent.of(module)

    def absorbed() -> Tensor:
        return attend(module, query, query, query, None, dw_ctx=ctx, scaling=0.1)[0]

    def projected() -> Tensor:
        stored = pages[0][0][view.slots].view(-1, size + rotary)
        per_head = module.kv_b_proj(stored[:, :size]).view(len(stored), heads, -1).transpose(0, 1)
        keys = torch.cat([per_head[..., :plain], stored[:, size:].expand(heads, -1, -1)], dim=-1)
        mask = view.mask(1, query)
        return scaled_dot_product_attention(query, keys[None], per_head[None, ..., plain:], attn_mask=mask, scale=0.1)

    difference = (absorbed().transpose(1, 2) - projected()).abs().max()
    assert difference < 1e-4, difference
    return interleaved({"absorbed": absorbed, "projected": projected})


@torch.inference_mode()
def main() -> None:
    torch.set_num_threads(1)
    for what, measure in {"windows": windows, "latents": latents}.items():
        for context in CONTEXTS:
            for rows in ROWS:
                shown = ", ".join(f"{name} {ms:7.2f} ms" for name, ms in measure(rows, context).items())
                print(f"{what:8s} context {context:5d}, {rows} rows: {shown}", flush=True)


if __name__ == "__main__":
    main()
