"""The riskiest step alone: one ragged forward through unpatched transformers models, equal to separate plain forwards.

A batch of two prompts of different length (one of them decoding a draft tree), a plain decode row and a prefill chunk
goes through each target with our pages and our one attention function; every row is compared with a plain forward
over just that row's own history. Then: how often does the argmax of a row differ between a batch of 1 row and of 9?

usage: python benchmarks/ragged_forward.py [MODEL_FOLDER ...]     (default: the golden targets)
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from draftwing.engine import attention
from draftwing.engine.batch import SequenceRows, build, chain_parents

ROOT = Path(__file__).resolve().parents[1]
GOLDENS = Path(os.environ.get("DRAFTWING_GOLDENS", ROOT / "tests" / "goldens"))
TOLERANCE = 1e-5
SLOTS = 512


class Model:
    def __init__(self, folder: Path) -> None:
        attention.register()
        kwargs = {"dtype": torch.float32, "local_files_only": True}
        self.plain = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", **kwargs).eval()
        self.ours = AutoModelForCausalLM.from_pretrained(folder, attn_implementation=attention.NAME, **kwargs).eval()
        config = self.ours.config.get_text_config()
        head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        shape = (SLOTS, config.num_key_value_heads, head)
        self.pages = [(torch.zeros(shape), torch.zeros(shape)) for _ in range(config.num_hidden_layers)]
        self.vocab = config.vocab_size

    @torch.inference_mode()
    def step(self, sequences: list[SequenceRows]) -> torch.Tensor:
        """Logits [wanted rows, V] of one ragged forward."""
        batch = build(sequences)
        ctx = attention.prepare(batch, self.pages, torch.device("cpu"))
        out = self.ours(
            torch.from_numpy(batch.tokens)[None],
            position_ids=torch.from_numpy(batch.positions)[None],
            use_cache=False,
            logits_to_keep=torch.from_numpy(batch.wanted),
            dw_ctx=ctx,
        )
        return out.logits[0]

    @torch.inference_mode()
    def reference(self, tokens: list[int]) -> torch.Tensor:
        """Logits [V] after the last of these tokens, by a plain forward."""
        return self.plain(torch.tensor([tokens]), use_cache=False).logits[0, -1]


def rows(tokens: list[int], slots: np.ndarray, kv_len: int, parents: list[int] | None = None) -> SequenceRows:
    parent = chain_parents(len(tokens)) if parents is None else np.array(parents, dtype=np.int64)
    used = slots[: kv_len + len(tokens)]
    return SequenceRows(np.array(tokens, dtype=np.int64), parent, used, kv_len, len(tokens))


def ragged(model: Model, rng: np.random.Generator) -> float:
    """Largest difference of any logit from its plain forward."""
    slots = rng.permutation(SLOTS).reshape(4, -1)  # scattered on purpose
    a, b, c = (rng.integers(3, model.vocab, n).tolist() for n in (11, 23, 17))
    model.step([rows(a[:-1], slots[0], 0), rows(b[:-1], slots[1], 0), rows(c[:6], slots[2], 0)])
    tree = [a[-1], *rng.integers(3, model.vocab, 7).tolist()]
    parents = [-1, 0, 0, 1, 1, 2, 3, 5]
    logits = model.step(
        [
            rows(tree, slots[0], len(a) - 1, parents),  # a draft tree after its root
            rows([b[-1]], slots[1], len(b) - 1),  # one plain decode row
            rows(c[6:], slots[2], 6),  # a prefill chunk
        ]
    )
    histories = []
    for node in range(len(tree)):
        path, at = [], node
        while at >= 0:
            path.append(tree[at])
            at = parents[at]
        histories.append(a[:-1] + path[::-1])
    histories.append(b)
    histories += [c[: i + 1] for i in range(6, len(c))]
    expected = torch.stack([model.reference(h) for h in histories])
    return float((logits - expected).abs().max())


def flips(model: Model, rng: np.random.Generator, trials: int = 60) -> tuple[int, int]:
    """(rows whose argmax differs, rows compared) between nine rows in one batch and each alone."""
    slots = np.arange(9 * 40).reshape(9, 40)
    different = 0
    for _ in range(trials):
        prompts = [rng.integers(3, model.vocab, int(rng.integers(5, 39))).tolist() for _ in range(9)]
        model.step([rows(p[:-1], slots[i], 0) for i, p in enumerate(prompts)])
        last = [rows([p[-1]], slots[i], len(p) - 1) for i, p in enumerate(prompts)]
        together = model.step(last).argmax(-1)
        alone = torch.cat([model.step([one]).argmax(-1) for one in last])
        different += int((together != alone).sum())
    return different, 9 * trials


def main(folders: list[str]) -> int:
    torch.set_num_threads(1)
    targets = [Path(f) for f in folders] or sorted(GOLDENS.glob("hf_greedy_*/target"))
    if not targets:
        print(f"no target found in {GOLDENS}; name model folders or set DRAFTWING_GOLDENS", file=sys.stderr)
        return 2
    failed = False
    for folder in targets:
        model, rng = Model(folder), np.random.default_rng(0)
        worst = max(ragged(model, rng) for _ in range(5))
        changed, compared = flips(model, rng)
        failed |= worst > TOLERANCE
        verdict = "equal" if worst <= TOLERANCE else "DIFFERENT"
        name = folder.parent.name if folder.name == "target" else folder.name
        ratio = f"{changed} of {compared} differ"
        print(f"{name:24s} {verdict}: largest difference {worst:.2e}; argmax 1 row against 9: {ratio}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
