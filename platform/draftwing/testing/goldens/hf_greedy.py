"""Kind `hf_greedy`: a target's logits and greedy continuations, through our loader, model runner and engine.

Every prompt of a case shares the batch, plain and with drafts, to its length and to its end-of-text token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from draftwing.checkpoints.hub import resolve_model
from draftwing.config_models import Config
from draftwing.core import FloatArray, Request, SamplingParams
from draftwing.engine.batch import SequenceRows, chain_parents
from draftwing.engine.build import engine_for
from draftwing.engine.loading import LoadedTarget, load_target
from draftwing.engine.runner import Runner
from draftwing.testing.goldens.case import Case, CaseError, Verdict
from draftwing.testing.run_engine import run_to_end

MODES = ("off", "fixed:k=4", "fixed:tree=2x2x1")


@dataclass(frozen=True, slots=True)
class Prompt:
    """to_end: the continuation that stops at an end-of-text token, greedy itself in a case without such tokens.

    logits [rows, V]: row r predicts greedy[r].
    """

    ids: list[int]
    greedy: list[int]
    to_end: list[int]
    logits: FloatArray


def check(case: Case) -> Verdict:
    verdict = Verdict()
    folder = case.part("target")
    if folder is None:
        raise CaseError(f"{case.folder / 'case.json'}: target is null")
    prompts = [_prompt(case, i) for i in range(int(case.args["num_prompts"]))]
    room = sum(len(p.ids) + len(p.greedy) for p in prompts)
    config = Config.model_validate(
        {
            "model": {"path": str(folder), "dtype": "float32", "device": "cpu"},
            "drafters": [{"method": "ngram"}],
            "cache": {"tokens": max(2 * room, 1024)},
        }
    )
    # Case models are tiny: more threads would only wait for each other.
    target = load_target(resolve_model(config.model), dtype="float32", device="cpu", threads=1)
    for mode in MODES:
        policy = config.policy.model_copy(update={"mode": mode})
        _tokens(case, prompts, config.model_copy(update={"policy": policy}), target, verdict)
    runner = engine_for(config, target).runner
    for i, prompt in enumerate(prompts):
        for how, got in (("one pass", _one_pass(runner, prompt)), ("row by row", _row_by_row(runner, prompt))):
            verdict.close(f"prompt {i}, logits in {how}", got, prompt.logits, case.tolerance("logits"))
    return verdict


def _prompt(case: Case, index: int) -> Prompt:
    ended = "greedy" if case.args.get("eos_token_id") is None else "greedy_eos"
    ids, greedy, to_end = (case.tensor(f"{name}_{index}").astype(int).tolist() for name in ("prompt", "greedy", ended))
    return Prompt(ids, greedy, to_end, case.tensor(f"logits_{index}"))


def _tokens(case: Case, prompts: Sequence[Prompt], config: Config, target: LoadedTarget, verdict: Verdict) -> None:
    """Both continuations of all prompts in one batch."""
    eos = case.args.get("eos_token_id")
    ends = tuple(eos) if isinstance(eos, list) else () if eos is None else (int(eos),)
    # The case's end tokens need not be those of the target's own configuration.
    own = set(ends) == set(target.eos_token_ids)
    requests = []
    for i, prompt in enumerate(prompts):
        length = len(prompt.greedy)
        whole = SamplingParams(max_tokens=length, temperature=0, ignore_eos=True)
        ended = SamplingParams(max_tokens=length, temperature=0, ignore_eos=not own, stop_token_ids=() if own else ends)
        requests += [Request(f"{i}", prompt.ids, whole), Request(f"{i} to EOS", prompt.ids, ended)]
    engine = engine_for(config, target)
    got = run_to_end(engine, requests)
    for i, prompt in enumerate(prompts):
        verdict.equal(f"{config.policy.mode}, prompt {i}", got[f"{i}"].tokens, prompt.greedy)
        verdict.equal(f"{config.policy.mode}, prompt {i} to EOS", got[f"{i} to EOS"].tokens, prompt.to_end)


def _rows(path: Sequence[int], start: int, wanted: int) -> SequenceRows:
    """The rows of a path from `start` on, the earlier ones being in the cache."""
    tokens = np.array(path[start:], dtype=np.int64)
    return SequenceRows(tokens, chain_parents(len(tokens)), np.arange(len(path), dtype=np.int64), start, wanted)


def _one_pass(runner: Runner, prompt: Prompt) -> FloatArray:
    count = len(prompt.logits)
    path = [*prompt.ids, *prompt.greedy[: count - 1]]
    logits: FloatArray = runner.forward([_rows(path, 0, count)]).float().cpu().numpy()
    return logits


def _row_by_row(runner: Runner, prompt: Prompt) -> FloatArray:
    """The prompt, then each token alone over the cache."""
    rows = []
    for count in range(len(prompt.logits)):
        path = [*prompt.ids, *prompt.greedy[:count]]
        start = len(path) - 1 if count else 0
        rows.append(runner.forward([_rows(path, start, 1)]).float().cpu().numpy())
    return np.concatenate(rows)
