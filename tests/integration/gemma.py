"""The demo model twice: in transformers, whose `generate` is the reference, and in one engine that drafts every way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from draftwing.checkpoints.tokenizer import TextTokenizer
from draftwing.config_models import Config
from draftwing.core import Request, SamplingParams
from draftwing.engine.build import build_local
from draftwing.engine.step import Engine
from draftwing.offline import Output, run_all
from draftwing.policy.modes import parse_mode
from draftwing.testing.loops import loops
from draftwing.testing.near_tie import gap_of
from draftwing.testing.same_tokens import Comparison, assert_same_tokens

PLAIN = "off"
TOGETHER = 8  # sequences decoded in one batch


@dataclass(frozen=True, slots=True)
class Run:
    """What decoding some requests gave. branched: accepted nodes that were not the first child of theirs."""

    requests: list[Request]
    outputs: list[Output]
    drafted: int
    accepted: int
    branched: int

    @property
    def tokens(self) -> list[list[int]]:
        return [output.token_ids for output in self.outputs]

    def acceptance_length(self, *, looping: bool) -> float:
        """Tokens per verify, of the outputs that loop or of the others; 1.0 if there are none."""
        chosen = [output for output in self.outputs if loops(output.token_ids) == looping]
        verifies = sum(output.summary.verifies for output in chosen)
        return 1.0 + sum(sum(output.summary.accepted) for output in chosen) / verifies if verifies else 1.0

    def __str__(self) -> str:
        looping = sum(loops(tokens) for tokens in self.tokens)
        return (
            f"{self.drafted} drafted, {self.accepted} accepted, {self.branched} of them on a branch; tokens a verify: "
            f"{self.acceptance_length(looping=False):.2f} in {len(self.outputs) - looping} texts, "
            f"{self.acceptance_length(looping=True):.2f} in {looping} that loop"
        )


class Gemma:
    """Greedy and sampled decoding of the demo model, by transformers and by us."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModelForCausalLM

        config = Config.model_validate(
            {
                "model": {"path": str(folder), "cpu_threads": torch.get_num_threads()},
                "drafters": [{"method": "ngram"}],
                "limits": {"sequences": TOGETHER, "prefill_chunk": 256},
                "cache": {"tokens": 16384},
            }
        )
        self.engine: Engine
        self.engine, tokenizer = build_local(config)
        assert tokenizer is not None
        self.tokenizer: TextTokenizer = tokenizer
        auto: Any = AutoModelForCausalLM
        self.reference: Any = auto.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="sdpa", local_files_only=True
        ).eval()

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return [self.tokenizer.encode(text) for text in texts]

    @torch.inference_mode()
    def generate(self, prompts: Sequence[list[int]], tokens: int, *, together: int) -> list[list[int]]:
        """New tokens of transformers' greedy `generate`, of `together` prompts at a time, padded on the left."""
        outputs: list[list[int]] = []
        for some in (prompts[start : start + together] for start in range(0, len(prompts), together)):
            width = max(map(len, some))
            ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in some])
            real = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in some])
            made = self.reference.generate(ids, attention_mask=real, do_sample=False, max_new_tokens=tokens)
            outputs += [self._to_the_end(row) for row in made[:, width:].tolist()]
        return outputs

    def _to_the_end(self, tokens: list[int]) -> list[int]:
        """Without the padding behind a token that ended the text."""
        ends = (tokens.index(end) + 1 for end in self.engine.admission.eos_token_ids if end in tokens)
        return tokens[: min(ends, default=len(tokens))]

    def decode(self, prompts: Sequence[list[int]], params: SamplingParams, mode: str) -> Run:
        """All prompts through the engine at once, TOGETHER of them side by side, drafting by this mode."""
        self.engine.policy = parse_mode(mode, "ngram")
        requests = [Request(str(i), prompt, replace(params, seed=i)) for i, prompt in enumerate(prompts)]
        before = replace(self.engine.counters)
        outputs = run_all(self.engine, requests)
        self.engine.check()
        now = self.engine.counters
        return Run(
            requests,
            outputs,
            now.draft_tokens - before.draft_tokens,
            now.accepted_tokens - before.accepted_tokens,
            now.branched_tokens - before.branched_tokens,
        )

    def assert_same(self, plain: Sequence[Sequence[int]], run: Run) -> Comparison:
        return assert_same_tokens(plain, run.tokens, near_tie=gap_of(self.engine, run.requests, plain))
