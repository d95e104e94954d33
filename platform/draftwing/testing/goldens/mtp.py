"""Kinds `mtp_deepseek`, `mtp_qwen3_next`: a module's numbers and whole greedy runs.

The stored hidden states are fed first, then those of our own target. Where the engine refuses the target, the plain
model of transformers takes its place.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from draftwing.checkpoints.drafter import open_checkpoint
from draftwing.checkpoints.hub import resolve_model
from draftwing.config_models import Config, DrafterConfig
from draftwing.core import DraftShape, Request, SamplingParams, StepPlan
from draftwing.drafters.base import Accepted, FeatureRows, NullController, TargetInfo
from draftwing.drafters.mtp import MtpOptions
from draftwing.drafters.mtp_drafter import MtpDrafter
from draftwing.drafters.mtp_head import MtpHead
from draftwing.engine.build import engine_for, target_info
from draftwing.engine.loading import load_target
from draftwing.policy.modes import FixedPolicy
from draftwing.testing.drafters import View
from draftwing.testing.goldens.case import Case, CaseError, Verdict
from draftwing.testing.goldens.recording import BLOCK_TOKENS, BLOCKS, record, run_head
from draftwing.testing.run_engine import run_to_end

Round = tuple[list[int], int]  # a draft's tokens and how many were accepted


def check(case: Case) -> Verdict:
    folder, verdict = case.part("target"), Verdict()
    if folder is None or case.part("drafter") != folder:
        raise CaseError(f"{case.folder / 'case.json'}: target and drafter must be one folder")
    depth = case.tensor("e2e_drafts").shape[1]
    if case.kind == "mtp_deepseek":
        info, features, rounds = _served(case, verdict, folder, depth)
    else:
        info, features, rounds = _plain(case, verdict, folder, depth)
    verdict.close("features", features, case.tensor("main_hidden"), case.tolerance("hidden"))
    drafter = _bound(folder, info)
    drafter.ready(MtpHead(drafter.head.modules[:1], info, raw=False), info, dynamic=False)  # type: ignore[attr-defined]
    drafter.reserve(BLOCKS, BLOCK_TOKENS)
    _numbers(case, verdict, drafter, torch.from_numpy(case.tensor("main_hidden")), "stored features")
    _numbers(case, verdict, drafter, features, "own features")
    _rounds(case, verdict, rounds, depth)
    return verdict


def _bound(folder: Path, info: TargetInfo) -> MtpDrafter:
    drafter = MtpDrafter(MtpOptions())
    checkpoint = open_checkpoint(str(folder))
    drafter.bind(info, checkpoint)
    checkpoint.refuse_unread()
    return drafter


def _prompt(case: Case) -> tuple[list[int], list[int]]:
    """The prompt whose numbers are stored, and its continuation."""
    name = str(case.args["prompt"])
    return case.tensor(name).tolist(), case.tensor(name.replace("prompt", "greedy")).tolist()


@torch.inference_mode()
def _numbers(case: Case, verdict: Verdict, drafter: MtpDrafter, hidden: torch.Tensor, what: str) -> None:
    """The pass over the prompt, then the recycled steps, each over the pages of those before."""
    tokens, at = case.tensor("mtp_input_ids"), 0
    first = int(case.tensor("mtp_position_ids")[0])
    for step in range(len(case.tensor("recycled_hidden")) + 1):
        out = run_head(drafter, tokens, hidden, at, first)
        logits = drafter.head.logits(out)
        name, row = ("recycled", slice(step - 1, step)) if step else ("mtp", slice(None))
        verdict.close(f"{what}, {name} hidden", out, case.tensor(f"{name}_hidden")[row], case.tolerance("hidden"))
        verdict.close(f"{what}, {name} logits", logits, case.tensor(f"{name}_logits")[row], case.tolerance("logits"))
        chosen = int(logits[-1].argmax())
        verdict.equal(f"{what}, token {step}", chosen, case.tensor("draft_tokens")[step])
        tokens, at, hidden = np.array([chosen], dtype=np.int64), at + len(tokens), out[-1:]


def _served(case: Case, verdict: Verdict, folder: Path, depth: int) -> tuple[TargetInfo, torch.Tensor, list[Round]]:
    """All prompts through the engine, the one whose numbers are stored alone and first."""
    document = {"model": {"path": str(folder), "device": "cpu"}, "cache": {"tokens": 2048, "prefix": False}}
    config = Config.model_validate(document)
    target = load_target(resolve_model(config.model), dtype="float32", device="cpu", threads=1)
    entry = DrafterConfig.model_validate({"method": "mtp"})
    drafter = MtpDrafter(MtpOptions())
    seen = record(drafter)
    engine = engine_for(config.model_copy(update={"drafters": [entry]}), target, drafter=drafter)
    engine.policy = FixedPolicy("it", DraftShape((1,) * depth, depth))
    prompt, want = _prompt(case)
    params = SamplingParams(max_tokens=len(want), temperature=0, ignore_eos=True)
    verdict.equal("output", run_to_end(engine, [Request("it", prompt, params)])["it"].tokens, want)
    features = torch.cat([rows.hidden[0] for rows in seen.given])
    drafts = [draft.tokens.tolist() for _, draft in seen.drafts]
    rounds = list(zip(drafts, map(len, seen.accepted), strict=False))
    others = [name for name in case.tensors if name.startswith("prompt_")]
    requests = [Request(name, case.tensor(name).tolist(), params) for name in others]
    for name, received in run_to_end(engine, requests).items():
        verdict.equal(f"output of {name}", received.tokens, case.tensor(name.replace("prompt", "greedy")))
    return target_info(config, target, target.context_length, None), features, rounds


@torch.inference_mode()
def _plain(case: Case, verdict: Verdict, folder: Path, depth: int) -> tuple[TargetInfo, torch.Tensor, list[Round]]:
    """The loop of drafting and verifying around a model that runs every sequence whole."""
    from transformers import AutoModelForCausalLM

    auto: Any = AutoModelForCausalLM
    model = auto.from_pretrained(folder, dtype=torch.float32, local_files_only=True).eval()
    own = model.config
    info = TargetInfo(own.vocab_size, 512, hidden_size=own.hidden_size, layers=own.num_hidden_layers, model=model)

    def run(tokens: list[int]) -> tuple[torch.Tensor, list[int]]:
        out = model(torch.tensor([tokens]), output_hidden_states=True, use_cache=False)
        return out.hidden_states[-1][0], out.logits[0].argmax(-1).tolist()

    drafter = _bound(folder, info)
    drafter.reserve(BLOCKS, BLOCK_TOKENS)
    prompt, want = _prompt(case)
    features, chosen = run(prompt)
    tokens = [*prompt, chosen[-1]]
    params = SamplingParams(max_tokens=len(want), temperature=0, ignore_eos=True)
    view = View("it", tokens, len(prompt), params, table=list(range(BLOCKS)))
    drafter.prefill([view], [FeatureRows(0, (features,))])
    rounds: list[Round] = []
    for _ in case.tensor("e2e_accept_len"):
        shape = DraftShape((1,) * depth, depth)
        (draft,) = drafter.propose([view], StepPlan("it", (shape,)), NullController())
        guessed, root = draft.tokens.tolist(), len(tokens) - 1
        hidden, chosen = run(tokens + guessed)
        taken = next((i for i, token in enumerate(guessed) if token != chosen[root + i]), len(guessed))
        tokens += chosen[root : root + taken + 1]
        rows = FeatureRows(root, (hidden[root : root + taken + 1],))
        drafter.commit([view], [Accepted(np.arange(taken), taken + 1)], [rows])
        rounds.append((guessed, taken))
    stored = case.tensor("e2e_output")
    verdict.equal("output", tokens[len(prompt) :], stored)
    verdict.equal("greedy", stored[: len(want)], want[: len(stored)])
    return info, features, rounds


def _rounds(case: Case, verdict: Verdict, rounds: list[Round], depth: int) -> None:
    """Drafts and accepted counts, but of rounds that the end of the output cuts."""
    prompt, want = _prompt(case)
    committed = 1
    for i, taken in enumerate(case.tensor("e2e_accept_len").tolist()):
        if "e2e_committed_len" in case.tensors:
            verdict.equal(f"round {i} committed", len(prompt) + committed, case.tensor("e2e_committed_len")[i])
        if committed + depth + 1 <= len(want):
            draft, accepted = rounds[i] if i < len(rounds) else ([], -1)
            verdict.equal(f"round {i} draft", draft, case.tensor("e2e_drafts")[i])
            verdict.equal(f"round {i} accepted", accepted, taken)
        committed += taken + 1
