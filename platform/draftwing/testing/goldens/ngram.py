"""Kind `ngram`: prompt-lookup drafts by vLLM's rule and by transformers' rule, token for token."""

from __future__ import annotations

from draftwing.drafters.ngram import lookup_hf, lookup_vllm
from draftwing.testing.goldens.case import Array, Case, Verdict

ABSENT, NOT_RUN_UPSTREAM = -1, -2


def _present(row: Array) -> list[int]:
    return [int(token) for token in row if token != ABSENT]


def check(case: Case) -> Verdict:
    verdict = Verdict()
    names = [entry.get("name", str(i)) for i, entry in enumerate(case.meta.get("cases", []))]
    lengths, params, eos = case.tensor("lengths"), case.tensor("params"), case.tensor("hf_eos")
    vllm, hf = case.tensor("vllm_draft"), case.tensor("hf_draft")
    for i, row in enumerate(case.tensor("tokens")):
        name = names[i] if i < len(names) else str(i)
        tokens = [int(token) for token in row[: lengths[i]]]
        least, most, count, room = (int(value) for value in params[i])
        verdict.equal(f"{name}, vLLM rule", lookup_vllm(tokens, least, most, count, room), _present(vllm[i]))
        if NOT_RUN_UPSTREAM not in hf[i]:
            stop = None if eos[i] == ABSENT else int(eos[i])
            verdict.equal(f"{name}, HF rule", lookup_hf(tokens, most, count, room, stop), _present(hf[i]))
    for entry in case.meta.get("cases", []):
        _without_eos(entry, verdict)
    return verdict


def _without_eos(entry: dict[str, object], verdict: Verdict) -> None:
    """The readable list also has HF's drafts with no end-of-text token set."""
    match entry:
        case {
            "name": str(name),
            "tokens": list(tokens),
            "max_ngram": int(most),
            "num_tokens": int(count),
            "hf": {"max_length": int(room), "draft_without_eos_rule": list(draft)},
        }:
            verdict.equal(f"{name}, HF rule without EOS", lookup_hf(tokens, most, count, room, None), draft)
