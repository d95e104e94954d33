"""Kinds `eagle1`, `eagle3`, `eagle3_speculators`: a published head's numbers, its trees, and whole greedy runs.

The stored features are fed first, then those of our own target. n prompt length, H hidden size, V_d the head's
vocabulary.
"""

from __future__ import annotations

import numpy as np
import torch

from draftwing.checkpoints.drafter import open_checkpoint
from draftwing.checkpoints.hub import resolve_model
from draftwing.config_models import Config, DrafterConfig
from draftwing.core import DraftShape, IntArray, Request, SamplingParams, StepPlan
from draftwing.drafters.base import FeatureRows, NullController
from draftwing.drafters.children import in_target_ids
from draftwing.drafters.eagle import Eagle3Options, EagleOptions
from draftwing.drafters.eagle_drafter import EagleDrafter
from draftwing.engine.build import engine_for, target_info
from draftwing.engine.loading import LoadedTarget, load_target
from draftwing.policy.modes import FixedPolicy
from draftwing.testing.drafters import View
from draftwing.testing.goldens.case import Array, Case, CaseError, Verdict
from draftwing.testing.goldens.eagle2_tree import compare_tree
from draftwing.testing.goldens.recording import BLOCK_TOKENS, BLOCKS, Record, record, run_head
from draftwing.testing.run_engine import run_to_end

NEAR_TIE = 5e-5  # below it another order of summation may swap nodes


def check(case: Case) -> Verdict:
    folder, own = case.part("target"), case.part("drafter")
    if folder is None or own is None:
        raise CaseError(f"{case.folder / 'case.json'}: target and drafter must both be folders")
    config = Config.model_validate({"model": {"path": str(folder), "device": "cpu"}, "cache": {"tokens": 2048}})
    target = load_target(resolve_model(config.model), dtype="float32", device="cpu", threads=1)
    verdict = Verdict()
    drafter = _bound(case, target, config)
    if "aux_hf_indices" in case.tensors:
        verdict.equal("layers", drafter.head.hidden_layers, case.tensor("aux_hf_indices"))
    features = torch.from_numpy(case.tensor("target_features"))
    _numbers(case, verdict, drafter, features, "stored features")
    _trees(case, verdict, drafter, features, "stored features")
    given = _whole_run(case, verdict, config, target)
    verdict.close("features", given.numpy(), features.numpy(), case.tolerance("hidden"))
    _numbers(case, verdict, drafter, given, "own features")
    return verdict


def _options(case: Case) -> EagleOptions:
    made: type[EagleOptions] = EagleOptions if case.kind == "eagle1" else Eagle3Options
    return made(path=str(case.part("drafter")), tree="dynamic")


def _bound(case: Case, target: LoadedTarget, config: Config) -> EagleDrafter:
    drafter = EagleDrafter(_options(case))
    checkpoint = open_checkpoint(str(case.part("drafter")))
    drafter.bind(target_info(config, target, target.context_length, None), checkpoint)
    checkpoint.refuse_unread()
    drafter.reserve(BLOCKS, BLOCK_TOKENS)
    return drafter


def _split(drafter: EagleDrafter, features: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return features.chunk(len(drafter.head.hidden_layers), dim=-1)


@torch.inference_mode()
def _numbers(case: Case, verdict: Verdict, drafter: EagleDrafter, features: torch.Tensor, what: str) -> None:
    """The pass over the prompt, then the recycled steps, each over the pages of those before."""
    head = drafter.head
    if "prefix_logits_target_ids" in case.tensors:
        ids = np.arange(case.tensor("prefix_logits").shape[1]) if head.target_ids is None else head.target_ids.numpy()
        verdict.equal("target ids", ids, case.tensor("prefix_logits_target_ids"))
    first = int(case.tensors["draft_positions"][0]) if "draft_positions" in case.tensors else 0
    tokens, at = case.tensor("draft_input_ids"), 0
    hidden = head.fuse(_split(drafter, features))
    steps = len(case.tensor("step_hidden"))
    for step in range(steps + 1):
        out = run_head(drafter, tokens, hidden, at, first)
        logits = head.logits(out)
        name, row = ("prefix", slice(None)) if not step else ("step", slice(step - 1, step))
        place = f"{what}, {name}{'' if not step else f' {step - 1}'}"
        verdict.close(f"{place} hidden", out, case.tensor(f"{name}_hidden")[row], case.tolerance("hidden"))
        verdict.close(f"{place} logits", logits, case.tensor(f"{name}_logits")[row], case.tolerance("logits"))
        chosen = int(in_target_ids(logits, head.target_ids, drafter._target.vocab_size)[-1].argmax())
        verdict.equal(f"{place} token", chosen, case.tensor("step_tokens")[step])
        tokens, at, hidden = np.array([chosen], dtype=np.int64), at + len(tokens), out[-1:]


def _trees(case: Case, verdict: Verdict, drafter: EagleDrafter, features: torch.Tensor, what: str) -> None:
    prompt, first = case.tensor("prompt").tolist(), int(case.tensor("first_token").item())
    params = SamplingParams(max_tokens=64, temperature=0, ignore_eos=True)
    for i, tree in enumerate(case.args.get("trees", ())):
        view = View(f"tree {i}", [*prompt, first], len(prompt), params, table=list(range(BLOCKS)))
        drafter.prefill([view], [FeatureRows(0, _split(drafter, features))])
        shape = DraftShape((int(tree["top_k"]),) * (int(tree["depth"]) + 1), int(tree["draft_nodes"]))
        (draft,) = drafter.propose([view], StepPlan("it", (shape,)), NullController())
        compare_tree(case, verdict, f"tree{tree['tree']}", first, draft)
        drafter.release(view)


def _whole_run(case: Case, verdict: Verdict, config: Config, target: LoadedTarget) -> torch.Tensor:
    """Serve the prompt with the head; the features of the prompt, as our target made them."""
    want = case.tensor("e2e_output").tolist()
    if (e2e := case.args.get("e2e")) is not None:
        shape = DraftShape((int(e2e["top_k"]),) * (int(e2e["depth"]) + 1), int(e2e["draft_nodes"]))
    else:
        depth = case.tensor("e2e_drafts").shape[1]
        shape = DraftShape((1,) * depth, depth)
    method = "eagle" if case.kind == "eagle1" else "eagle3"
    entry = DrafterConfig.model_validate({"method": method, "path": str(case.part("drafter"))})
    drafter = EagleDrafter(_options(case))
    seen = record(drafter)
    engine = engine_for(config.model_copy(update={"drafters": [entry]}), target, drafter=drafter)
    engine.policy = FixedPolicy("it", shape)
    params = SamplingParams(max_tokens=len(want), temperature=0, ignore_eos=True)
    received = run_to_end(engine, [Request("e2e", case.tensor("prompt").tolist(), params)])["e2e"]
    verdict.equal("e2e output", received.tokens, want)
    _rounds(case, verdict, seen, len(want))
    return torch.cat([torch.cat(rows.hidden, dim=-1) for rows in seen.given])


def _rounds(case: Case, verdict: Verdict, seen: Record, length: int) -> None:
    """Drafts and accepted counts, round by round, but for near-ties and for drafts cut by the end of the output."""
    lengths: Array = case.tensor("e2e_accept_len")
    gaps: Array = case.tensors.get("e2e_round_min_gap", np.ones(len(lengths)))
    committed = 1
    for i, (taken, gap) in enumerate(zip(lengths.tolist(), gaps.tolist(), strict=True)):
        whole = gap >= NEAR_TIE and committed + _depth(case) + 1 <= length
        committed += taken + 1
        if not whole:
            continue
        root, draft = seen.drafts[i]
        if "e2e_drafts" in case.tensors:
            verdict.equal(f"round {i} draft", draft.tokens, case.tensor("e2e_drafts")[i])
        else:
            verdict.equal(f"round {i} tokens", [root, *draft.tokens.tolist()], case.tensor("e2e_tree_tokens")[i])
            parents: IntArray = np.concatenate([[-1], draft.parents + 1])
            verdict.equal(f"round {i} parents", parents, case.tensor("e2e_tree_parents")[i])
        verdict.equal(f"round {i} accepted", len(seen.accepted[i]), taken)


def _depth(case: Case) -> int:
    e2e = case.args.get("e2e")
    return int(e2e["depth"]) + 1 if e2e is not None else int(case.tensor("e2e_drafts").shape[1])
