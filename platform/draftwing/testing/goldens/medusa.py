"""Kind `medusa`: head logits, the static tree, and a greedy run through the engine, draft by draft."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np
import torch

from draftwing.checkpoints.drafter import open_checkpoint
from draftwing.checkpoints.hub import resolve_model
from draftwing.config_models import Config
from draftwing.core import DraftShape, DraftTree, Request, SamplingParams, StepPlan
from draftwing.drafters.base import Controller, SequenceView, TargetInfo
from draftwing.drafters.medusa import Choices, MedusaOptions
from draftwing.drafters.medusa_drafter import MedusaDrafter, static_tree
from draftwing.drafters.medusa_heads import read_heads
from draftwing.engine.build import engine_for
from draftwing.engine.loading import LoadedTarget, load_target
from draftwing.policy.modes import FixedPolicy
from draftwing.testing.goldens.case import Case, CaseError, Verdict
from draftwing.testing.run_engine import run_to_end

ABSENT = -1


def check(case: Case) -> Verdict:
    verdict = Verdict()
    target_folder, drafter_folder = case.part("target"), case.part("drafter")
    if target_folder is None or drafter_folder is None:
        raise CaseError(f"{case.folder / 'case.json'}: target or drafter is null")
    choices = MedusaOptions.model_validate({"choices": case.args["medusa_choices"]}).tree or ()
    shape = DraftShape((1 + max(map(max, choices)),) * max(map(len, choices)), len(choices))
    _tree(case, verdict, shape, choices)
    config = Config.model_validate(
        {
            "model": {"path": str(target_folder), "dtype": "float32", "device": "cpu"},
            "drafters": [
                {"method": "medusa", "path": str(drafter_folder), "choices": [list(path) for path in choices]}
            ],
            "cache": {"tokens": 2048},
        }
    )
    target = load_target(resolve_model(config.model), dtype="float32", device="cpu", threads=1)
    _head_logits(case, verdict, str(drafter_folder), target)
    _run(case, verdict, config, target, shape)
    return verdict


def _tree(case: Case, verdict: Verdict, shape: DraftShape, choices: Choices) -> None:
    """The static tree as upstream's buffers, which count the root as node 0 and list 10 candidates a head."""
    tree = static_tree(shape, choices)
    above = np.eye(len(tree.parents) + 1)
    for node, parent in enumerate(tree.parents.tolist()):
        above[node + 1] = np.maximum(above[node + 1], above[parent + 1])
    verdict.equal("tree mask", above, case.tensor("tree_mask"))
    top = int(case.args.get("topk_per_head", 10))
    verdict.equal("tree indices", [0, *(tree.depths * top + tree.ranks + 1).tolist()], case.tensor("tree_indices"))
    verdict.equal("tree positions", [0, *(tree.depths + 1).tolist()], case.tensor("tree_positions"))
    leaves = sorted(set(range(len(above))) - set((tree.parents + 1).tolist()))
    stored = [[int(node) for node in row if node != ABSENT] for row in case.tensor("retrieve_indices")]
    verdict.equal("paths", str(sorted(np.flatnonzero(above[leaf]).tolist() for leaf in leaves)), str(sorted(stored)))


def _head_logits(case: Case, verdict: Verdict, folder: str, target: LoadedTarget) -> None:
    checkpoint = open_checkpoint(folder)
    heads = read_heads(
        checkpoint,
        TargetInfo(target.vocab_size, 1, hidden_size=int(target.config.hidden_size), model=target.model),
    )
    checkpoint.refuse_unread()
    verdict.equal("heads", len(heads.heads), int(case.args["num_heads"]))
    hidden = torch.from_numpy(case.tensor("base_hidden"))
    with torch.inference_mode():
        got = [heads.logits(hidden, torch.full((len(hidden),), i)) for i in range(len(heads.heads))]
    verdict.close("head logits", torch.stack(got).numpy(), case.tensor("head_logits"), case.tolerance("logits"))


def _run(case: Case, verdict: Verdict, config: Config, target: LoadedTarget, shape: DraftShape) -> None:
    """Every round's tree and accept count, with features that our own forward gave."""
    engine = engine_for(config, target)
    drafter = engine.drafting.drafter
    if not isinstance(drafter, MedusaDrafter):
        raise CaseError(f"the engine drafts with {type(drafter).__name__}")
    engine.policy = FixedPolicy("medusa", shape)
    rounds: list[tuple[int, DraftTree]] = []
    propose = drafter.propose

    def watched(
        sequences: Seq[SequenceView], plan: StepPlan, controller: Controller, base: Seq[Seq[int]] | None = None
    ) -> list[DraftTree]:
        drafts = propose(sequences, plan, controller, base)
        rounds.append((sequences[0].tokens[-1], drafts[0]))
        return drafts

    drafter.propose = watched  # type: ignore[method-assign]
    output = case.tensor("e2e_output").astype(int).tolist()
    params = SamplingParams(max_tokens=len(output) + shape.depth + 1, temperature=0, ignore_eos=True)
    received = run_to_end(engine, [Request("run", case.tensor("prompt").astype(int).tolist(), params)])["run"]
    verdict.equal("output", received.tokens[: len(output)], output)
    stored, accepted = case.tensor("e2e_tree_tokens"), case.tensor("e2e_accept_len")
    got = [[root, *draft.tokens.tolist()] for root, draft in rounds[: len(stored)]]
    verdict.equal("first tree", got[0], case.tensor("first_tree_tokens"))
    verdict.equal("trees", got, stored)
    summary = received.summary
    verdict.equal("accepted", summary.accepted[: len(accepted)] if summary else [], accepted)
