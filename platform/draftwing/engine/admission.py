"""What a request must satisfy before it may wait, and its state inside the engine, also when it is resumed."""

from __future__ import annotations

from draftwing.core import Request
from draftwing.engine.kv_cache import BlockPool
from draftwing.engine.processors import SamplerState
from draftwing.engine.sequence import Sequence
from draftwing.engine.text import Decoder, TextStream
from draftwing.errors import OverloadedError, RequestError
from draftwing.limits import check_params


class Admission:
    """context: most tokens of prompt and output together. queue: requests that may wait. decoder None: no tokenizer."""

    def __init__(
        self,
        *,
        pool: BlockPool,
        context: int,
        queue: int,
        vocab_size: int,
        eos_token_ids: tuple[int, ...],
        decoder: Decoder | None,
    ) -> None:
        self.pool = pool
        self.context = context
        self.queue = queue
        self.vocab_size = vocab_size
        self.eos_token_ids = eos_token_ids
        self.decoder = decoder

    def admit(self, request: Request, arrival: int, *, waiting: int) -> Sequence:
        """A new sequence. Raises RequestError naming the field, or OverloadedError when the queue is full."""
        self._check(request)
        if waiting >= self.queue:
            raise OverloadedError(f"{waiting} requests are waiting, the most allowed (limits.queue); try again later")
        params = request.params
        ends = params.stop_token_ids if params.ignore_eos else (*self.eos_token_ids, *params.stop_token_ids)
        sampler = SamplerState.create(params, request.prompt_ids, choice=request.choice, end_ids=ends)
        text = TextStream(self.decoder, params.stop)
        sequence = Sequence(request, [*request.prompt_ids, *request.generated_ids], arrival, sampler, text)
        sampler.commit(request.generated_ids)
        for token in request.generated_ids:
            text.push(token, may_stop=False)
        text.give_back(text.take()[request.emitted_chars :])
        return sequence

    def _check(self, request: Request) -> None:
        params, prompt = request.params, len(request.prompt_ids)
        check_params(params, self.vocab_size)
        if prompt == 0:
            raise RequestError("prompt is empty; at least one token is needed", param="prompt")
        for name, ids in (("prompt", request.prompt_ids), ("generated_ids", request.generated_ids)):
            if bad := next((t for t in ids if not 0 <= t < self.vocab_size), None):
                raise RequestError(f"{name} has token id {bad}; ids go from 0 to {self.vocab_size - 1}", param=name)
        if params.stop and self.decoder is None:
            raise RequestError(
                "stop strings need a tokenizer, and this model has none; use stop_token_ids", param="stop"
            )
        if prompt + params.max_tokens > self.context:
            raise RequestError(
                f"This model's maximum context length is {self.context} tokens, but {prompt} of prompt and "
                f"{params.max_tokens} of max_tokens were asked for",
                param="prompt" if prompt >= self.context else "max_tokens",
                code="context_length_exceeded",
            )
        if self.pool.blocks_for(prompt + params.max_tokens) > self.pool.blocks:
            raise RequestError(
                f"prompt ({prompt} tokens) and max_tokens ({params.max_tokens}) exceed the whole cache of "
                f"{self.pool.tokens} tokens; lower max_tokens or raise cache.tokens",
                param="max_tokens",
                code="context_length_exceeded",
            )
        if len(request.generated_ids) >= params.max_tokens:
            raise RequestError(
                f"generated_ids has {len(request.generated_ids)} tokens; max_tokens is {params.max_tokens}",
                param="generated_ids",
            )
