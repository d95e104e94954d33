"""Kinds `dflash`, `dflash2`, `dspark`: a block drafter's numbers from stored features, then its drafts, round by round.

A tensor that a case lacks is not compared: heads without a selector or a confidence head have none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from draftwing.checkpoints.drafter import open_checkpoint
from draftwing.checkpoints.hub import resolve_model
from draftwing.config_models import DrafterConfig, ModelConfig
from draftwing.core import DraftShape, SamplingParams, StepPlan
from draftwing.drafters.base import Accepted, FeatureRows, NullController, TargetInfo
from draftwing.drafters.block_backbone import BlockPlace
from draftwing.drafters.block_drafter import BlockDrafter
from draftwing.drafters.block_model import BlockModel
from draftwing.drafters.registry import make_drafter
from draftwing.engine.loading import LoadedTarget, load_target
from draftwing.testing.drafters import View
from draftwing.testing.goldens.case import Array, Case, CaseError, Verdict

BLOCK_TOKENS = 4
NEAR_TIE = 1e-4  # a round whose smallest gap is below may draft otherwise where sums are taken in another order
STORED_TEMPERATURE = 0.7
SETTINGS = ("confidence_threshold",)  # options of a drafter that cases set


@torch.inference_mode()
def check(case: Case) -> Verdict:
    target_folder, folder = case.part("target"), case.part("drafter")
    if target_folder is None or folder is None:
        raise CaseError(f"{case.folder / 'case.json'}: target or drafter is null")
    config = ModelConfig(path=str(target_folder), dtype="float32", device="cpu")
    target = load_target(resolve_model(config), dtype="float32", device="cpu", threads=1, attn_implementation="eager")
    info = TargetInfo(
        vocab_size=target.vocab_size,
        context_length=target.context_length,
        hidden_size=int(target.config.hidden_size),
        layers=int(target.config.num_hidden_layers),
        model=target.model,
        compile=False,
    )
    verdict = Verdict()
    checkpoint = open_checkpoint(str(folder))
    model = BlockModel(case.kind, info, checkpoint)
    checkpoint.refuse_unread()
    _Numbers(case, model, verdict).compare()
    settings = {name: case.args[name] for name in SETTINGS if case.args.get(name) and model.predicts_confidence}
    drafter = make_drafter(DrafterConfig.model_validate({"method": case.kind, "path": str(folder), **settings}))
    assert isinstance(drafter, BlockDrafter)
    drafter.bind(info, checkpoint)
    verdict.equal("hidden layers", drafter.traits.hidden_layers, case.tensor("hf_indices"))
    _Rounds(case, drafter, target, verdict).compare()
    return verdict


@dataclass(slots=True)
class _Numbers:
    """The network alone, on the stored features."""

    case: Case
    model: BlockModel
    verdict: Verdict

    def compare(self) -> None:
        features = torch.from_numpy(self.case.tensor("target_features"))
        hidden = self._block(features, [len(features)])
        self._close("block_hidden", hidden, "hidden")
        split = int(self.case.tensor("incremental_first_context")[0])
        self._close("incremental_block_hidden", self._block(features, [split, len(features) - split]), "hidden")
        rows = hidden[self.model.config.first_slot :]
        logits = self.model.logits(rows)
        self._close("draft_logits", logits, "logits")
        self._close("base_logits", logits, "logits")
        if "draft_argmax" in self.case.tensors:
            self.verdict.equal("draft_argmax", logits.argmax(-1), self.case.tensor("draft_argmax"))
        self._choices(rows, logits)

    def _block(self, features: Tensor, parts: Sequence[int]) -> Tensor:
        """The block after the context, which is written part by part."""
        size, count = self.model.config.block_size, len(features)
        place = BlockPlace(count, 0, np.arange(count), np.arange(count, count + size))
        pages = self.model.backbone.pages(count + size)
        start = 0
        for part in parts:
            positions = np.arange(start, start + part)
            self.model.backbone.write(features[start : start + part], positions, positions, pages)
            # A block in between must leave nothing behind.
            found: Tensor = self.model.backbone(self.model.embed(self.case.tensor("anchor")), [place], pages)
            start += part
        return found[0]

    def _choices(self, rows: Tensor, logits: Tensor) -> None:
        """The walk over the rows, each given the token chosen before it."""
        token = int(self.case.tensor("anchor")[0])
        path, walked, sure = [token], [], []
        for row in range(len(rows)):
            node = torch.tensor([path])
            walked.append(self.model.children(logits[row : row + 1], rows[None, : row + 1], node)[0])
            sure.append(self.model.confidence(rows[None, : row + 1], node))
            path.append(int(walked[-1].argmax()))
        chosen = torch.stack(walked)
        for name in ("selector_path", "draft_tokens"):
            if name in self.case.tensors:
                self.verdict.equal(name, path[1:], self.case.tensor(name))
        self._close("markov_logits", chosen, "logits")
        for name in ("selector_q_T07", "draft_probs_T07"):
            self._close(name, (chosen / STORED_TEMPERATURE).softmax(-1), "probs")
        if "confidence_prob" in self.case.tensors:
            predicted = torch.cat([found for found in sure if found is not None])
            self._close("confidence_logits", predicted.logit(), "logits")
            self._close("confidence_prob", predicted, "probs")
        if "selector_candidates" in self.case.tensors:
            best = logits.topk(self.case.tensor("selector_candidates").shape[1])
            self.verdict.equal("selector_candidates", best.indices, self.case.tensor("selector_candidates"))
            self._close("selector_unary", best.values, "logits")

    def _close(self, name: str, got: Tensor, tolerance: str) -> None:
        if name in self.case.tensors:
            self.verdict.close(name, got, self.case.tensor(name), self.case.tolerance(tolerance))


@dataclass(slots=True)
class _Rounds:
    """The drafter behind its protocol, on features of our own, through the stored generation."""

    case: Case
    drafter: BlockDrafter
    target: LoadedTarget
    verdict: Verdict

    def compare(self) -> None:
        prompt = [int(t) for t in self.case.tensor("prompt")]
        output = [int(t) for t in self.case.tensor("e2e_output")]
        tokens = [*prompt, *output]
        features = self._features(tokens)
        blocks = -(-(len(tokens) + 1) // BLOCK_TOKENS)
        self.drafter.reserve(blocks, BLOCK_TOKENS)
        params = SamplingParams(temperature=0, max_tokens=len(output), ignore_eos=True)
        view = View("it", tokens[: len(prompt) + 1], len(prompt), params, table=list(range(blocks))[::-1])
        self.drafter.prefill([view], [FeatureRows(0, tuple(rows[: len(prompt)] for rows in features))])
        depth = self.drafter.traits.max_depth
        plan = StepPlan("it", (DraftShape((1,) * depth, depth),))
        for round_, (stored, accepted) in enumerate(
            zip(self.case.tensor("e2e_drafts"), self.case.tensor("e2e_accept_len"), strict=True)
        ):
            root = len(view.tokens) - 1
            (draft,) = self.drafter.propose([view], plan, NullController())
            if self._comparable(round_, root, len(tokens)):
                self._round(round_, draft.tokens, stored, int(accepted), tokens[root + 1 :])
            view.tokens.extend(tokens[root + 1 : root + 2 + int(accepted)])
            nodes = np.arange(int(accepted), dtype=np.int64)
            rows = tuple(rows[root : root + 1 + int(accepted)] for rows in features)
            self.drafter.commit([view], [Accepted(nodes, len(nodes) + 1)], [FeatureRows(root, rows)])

    def _comparable(self, round_: int, root: int, end: int) -> bool:
        """Near the end upstream drafts with a shorter block, which changes its proposals."""
        gaps = self.case.tensors.get("e2e_round_min_gap")
        return end - root >= self.drafter.traits.max_depth + 1 and (gaps is None or gaps[round_] >= NEAR_TIE)

    def _round(self, round_: int, draft: Array, stored: Array, accepted: int, output: list[int]) -> None:
        self.verdict.equal(f"round {round_}, draft", draft, stored[stored >= 0])
        right = [token == wanted for token, wanted in zip(draft.tolist(), output, strict=False)]
        self.verdict.equal(f"round {round_}, accepted", [*right, False].index(False), accepted)

    def _features(self, tokens: Sequence[int]) -> tuple[Tensor, ...]:
        model: nn.Module = self.target.model
        states = model(torch.tensor([list(tokens)]), output_hidden_states=True, use_cache=False).hidden_states
        return tuple(states[i][0] for i in self.drafter.traits.hidden_layers)
