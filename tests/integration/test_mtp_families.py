"""Multi-token prediction modules of every family, read from disk, against transformers' own layers without a cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from draftwing.checkpoints.drafter import open_checkpoint
from draftwing.checkpoints.hub import resolve_model
from draftwing.config_models import ModelConfig
from draftwing.core import DraftShape, DraftTree, SamplingParams, StepPlan
from draftwing.drafters.base import Accepted, FeatureRows, NullController, TargetInfo
from draftwing.drafters.mtp import MtpOptions
from draftwing.drafters.mtp_drafter import MtpDrafter
from draftwing.engine.loading import load_target
from draftwing.errors import ConfigError
from draftwing.testing.drafters import View
from tests.tiny_mtp import FAMILIES, VOCAB, Made, make, reference

BLOCKS, BLOCK_TOKENS = 16, 8
CHAIN, TREE = DraftShape((1,) * 5, 5), DraftShape((3, 2, 1, 1), 15)
LENGTH = 70
TOLERANCE = 2e-4  # of probabilities: float32 in another order, recycled some times


def info(made: Made) -> TargetInfo:
    if made.family.hybrid:
        model = made.model
    else:
        folder = resolve_model(ModelConfig.model_validate({"path": str(made.folder)}))
        model = load_target(folder, dtype="float32", device="cpu", threads=1).model
    own = made.model.config
    return TargetInfo(VOCAB, 256, hidden_size=own.hidden_size, layers=own.num_hidden_layers, model=model)


def bound(made: Made, path: Path | None = None, **options: Any) -> MtpDrafter:
    drafter = MtpDrafter(MtpOptions.model_validate({"path": path and str(path), **options}))
    checkpoint = open_checkpoint(str(path or made.folder))
    drafter.bind(info(made), checkpoint)
    checkpoint.refuse_unread()
    drafter.reserve(2 * BLOCKS, BLOCK_TOKENS)
    return drafter


class Text:
    """A sequence of random tokens and hidden states, committed bit by bit."""

    def __init__(self, drafter: MtpDrafter, size: int, seed: int = 0, table: range = range(BLOCKS)) -> None:
        draw = torch.Generator().manual_seed(seed)
        self.all = torch.randint(3, VOCAB, (LENGTH,), generator=draw).tolist()
        self.hidden = torch.randn(LENGTH, size, generator=draw)
        chain = [bytes(str(self.all[: (i + 1) * BLOCK_TOKENS]), "ascii") for i in range(LENGTH // BLOCK_TOKENS)]
        params = SamplingParams(max_tokens=200, temperature=0)
        self.drafter = drafter
        self.view = View(f"{seed} {table}", self.all[:21], 21, params, table=list(table), chain=chain)

    def prefill(self, start: int, stop: int) -> None:
        self.drafter.prefill([self.view], [FeatureRows(start, (self.hidden[start:stop],))])

    def commit(self, count: int) -> None:
        end = len(self.view.tokens)
        self.view.tokens += self.all[end : end + count]
        rows = FeatureRows(end - 1, (self.hidden[end - 1 : end - 1 + count],))
        self.drafter.commit([self.view], [Accepted(np.arange(count - 1), count)], [rows])

    def draft(self, shape: DraftShape, base: list[int] | None = None) -> DraftTree:
        plan = StepPlan("it", (shape,))
        (draft,) = self.drafter.propose([self.view], plan, NullController(), None if base is None else [base])
        return draft


def compare(made: Made, text: Text, draft: DraftTree, base: tuple[int, ...] = ()) -> None:
    """Every node of the draft has the reference's probability, and is among the best of its siblings."""
    tokens, paths = text.view.tokens, {-1: base}
    hidden = text.hidden[: len(tokens) - 1]
    assert draft.confidences is not None
    for parent in sorted(set(draft.parents.tolist())):
        want = reference(made, tokens, hidden, paths[parent])
        nodes = np.flatnonzero(draft.parents == parent)
        for got in (torch.from_numpy(draft.confidences[nodes]), want[draft.tokens[nodes]]):
            torch.testing.assert_close(got, want.topk(len(nodes)).values, atol=TOLERANCE, rtol=0)
        paths |= {int(node): (*paths[parent], int(draft.tokens[node])) for node in nodes}


@pytest.mark.parametrize("name", FAMILIES)
def test_drafts_are_those_of_the_reference(name: str, tmp_path: Path) -> None:
    """Chunks, accepted runs of every length, chains beyond the trained depth, trees, hypothetical tokens."""
    made = make(name, tmp_path)
    drafter = bound(made)
    assert len(drafter.head.modules) == made.family.modules  # type: ignore[attr-defined]
    text = Text(drafter, made.model.config.hidden_size)
    text.prefill(0, 7)
    text.prefill(7, 20)
    for count, shape in ((1, CHAIN), (3, TREE), (0, CHAIN), (1, CHAIN), (2, TREE), (1, TREE), (5, CHAIN)):
        if count:
            text.commit(count)
        draft = text.draft(shape)
        assert len(draft) == shape.nodes
        compare(made, text, draft)
    base = [5, 9]
    compare(made, text, text.draft(CHAIN, base), tuple(base))
    compare(made, text, text.draft(CHAIN))


@pytest.mark.parametrize("name", ["deepseek", "deepseek, three", "hybrid, two"])
@pytest.mark.parametrize("start", [0, 1, 2])
def test_short_prompts(name: str, start: int, tmp_path: Path) -> None:
    """Modules have no rows yet where the sequence is shorter than their place; so it is behind a hole."""
    made = make(name, tmp_path)
    drafter = bound(made)
    text = Text(drafter, made.model.config.hidden_size)
    text.view.tokens = text.all[:2]
    text.prefill(0, 1)
    for _ in range(5):
        compare(made, text, text.draft(CHAIN))
        text.commit(1)
    if start:
        hole = Text(drafter, made.model.config.hidden_size, 1, range(BLOCKS, 2 * BLOCKS))
        hole.prefill(start, 20)
        hole.commit(1)
        cut = Text(drafter, made.model.config.hidden_size, 1)
        cut.view.tokens, cut.hidden = hole.view.tokens[start:], hole.hidden[start:]
        compare(made, cut, hole.draft(CHAIN))
        assert drafter.holes == 1


@pytest.mark.parametrize("name", ["deepseek", "deepseek, three"])
@pytest.mark.parametrize("shared", [8, 16])
def test_a_prefix_hit_is_one_for_every_module(name: str, shared: int, tmp_path: Path) -> None:
    made = make(name, tmp_path)
    drafter = bound(made)
    size = made.model.config.hidden_size
    first = Text(drafter, size)
    first.prefill(0, 20)
    first.commit(3)
    first.draft(CHAIN)
    second = Text(drafter, size, 0, range(BLOCKS, 2 * BLOCKS))
    blocks = shared // BLOCK_TOKENS
    second.view.table[:blocks] = first.view.table[:blocks]
    before = drafter.caught_up
    second.prefill(shared, 20)
    second.commit(2)
    compare(made, second, second.draft(CHAIN))
    assert drafter.holes == 0
    assert drafter.caught_up - before < 20 - shared + 3


def apart(made: Made, folder: Path, **more: torch.Tensor) -> Path:
    """The modules alone, as a folder of their own."""
    folder.mkdir()
    heads = (
        "mtp.",
        "model.mtp_layers.",
        *(f"model.layers.{made.model.config.num_hidden_layers + i}." for i in range(3)),
    )
    stored = load_file(made.folder / "model.safetensors")
    tensors = {name: tensor for name, tensor in stored.items() if name.startswith(heads)} | more
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_bytes((made.folder / "config.json").read_bytes())
    return folder


@pytest.mark.parametrize("name", ["deepseek, two", "glm", "mimo", "dense"])
def test_a_folder_of_their_own(name: str, tmp_path: Path) -> None:
    made = make(name, tmp_path / "target")
    drafter = bound(made, apart(made, tmp_path / "heads"))
    text = Text(drafter, made.model.config.hidden_size)
    text.prefill(0, 20)
    text.commit(1)
    compare(made, text, text.draft(CHAIN))


def test_own_embedding_and_output(tmp_path: Path) -> None:
    """Copies of the target's take no memory; others are used."""
    made = make("deepseek", tmp_path / "target")
    model: Any = info(made).model
    shared = bound(made).head.modules[0]  # type: ignore[attr-defined]
    assert type(shared.embedding) is type(model.get_input_embeddings())
    embedding, output = torch.randn(2, VOCAB, 32, generator=torch.Generator().manual_seed(1)).unbind()
    own = {"embed_tokens.weight": embedding.clone(), "shared_head.head.weight": output.clone()}
    drafter = bound(made, apart(made, tmp_path / "heads", **{f"model.layers.2.{n}": t for n, t in own.items()}))
    made.model.get_input_embeddings().weight = torch.nn.Parameter(embedding, requires_grad=False)
    made.model.get_output_embeddings().weight = torch.nn.Parameter(output, requires_grad=False)
    text = Text(drafter, 32)
    text.prefill(0, 20)
    text.commit(1)
    compare(made, text, text.draft(CHAIN))


def test_hidden_states_before_the_norms(tmp_path: Path) -> None:
    made = make("mimo", tmp_path)
    drafter = bound(made, hidden="raw")
    assert drafter.traits.hidden_layers == (3,)
    text = Text(drafter, 32)
    text.prefill(0, 20)
    text.commit(1)
    draft = text.draft(DraftShape((1,), 1))
    compare(made, text, draft)  # what is recycled differs from the second depth on
    deep = text.draft(CHAIN)
    assert not np.array_equal(deep.tokens, text_of(bound(made), text).tokens)
    with pytest.raises(ConfigError, match="hidden is 'raw', but the checkpoint has 2 modules"):
        bound(make("mimo, two", tmp_path / "two"), hidden="raw")


def text_of(drafter: MtpDrafter, like: Text) -> DraftTree:
    text = Text(drafter, 32)
    text.prefill(0, 20)
    text.commit(len(like.view.tokens) - 21)
    return text.draft(CHAIN)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"model.layers.2.eh_proj.weight": None}, "has no multi-token prediction modules; expected eh_proj.weight"),
        ({"model.layers.2.mlp.experts.3.up_proj.weight": None}, "lacks the tensor model.layers.2.mlp.experts.3.up_pr"),
        ({"model.layers.2.self_attn.o_proj.weight": None}, "no tensor model.layers.2.self_attn.o_proj.weight; expec"),
        ({"model.layers.2.hnorm.weight": torch.zeros(31)}, r"model.layers.2.hnorm.weight has shape \[31\]; expected"),
        ({"model.layers.2.bias": torch.zeros(1)}, r"does not know: model.layers.2.bias \[1\]"),
        ({"model.layers.3.bias": torch.zeros(1)}, r"does not know: model.layers.3.bias \[1\]"),
        ({"something": torch.zeros(1)}, r"does not know: something \[1\]"),
    ],
)
def test_what_does_not_fit_is_named(change: dict[str, torch.Tensor | None], says: str, tmp_path: Path) -> None:
    made = make("deepseek", tmp_path / "target")
    heads = apart(made, tmp_path / "heads")
    tensors = load_file(heads / "model.safetensors") | change
    save_file({n: t for n, t in tensors.items() if t is not None}, heads / "model.safetensors", {"format": "pt"})
    with pytest.raises(ConfigError, match=says):
        bound(made, heads)
