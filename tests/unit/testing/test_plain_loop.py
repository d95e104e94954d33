from __future__ import annotations

from draftwing.core import SamplingParams
from draftwing.testing.mock_target import MockBehaviour, MockTarget
from draftwing.testing.naive_sampling import choose
from draftwing.testing.plain_loop import gap_after, plain_decode

PROMPT = [3, 1, 4, 1, 5]


def test_greedy_is_the_argmax_of_the_whole_path() -> None:
    target = MockTarget()
    out = plain_decode(target, PROMPT, SamplingParams(max_tokens=6, temperature=0))
    path = list(PROMPT)
    for token in out.tokens:
        assert token == int(target.logits_after(path).argmax())
        path.append(token)
    assert (len(out.tokens), out.finish_reason) == (6, "length")


def test_a_seed_decides_and_a_choice_differs() -> None:
    target = MockTarget()
    params = SamplingParams(max_tokens=20, seed=7)
    outputs = [plain_decode(target, PROMPT, params, choice=choice).tokens for choice in (0, 0, 1)]
    assert outputs[0] == outputs[1] != outputs[2]


def test_ends_at_eos_unless_told_not_to() -> None:
    target = MockTarget(MockBehaviour(eos_id=2, eos_rate=0.3))
    stopped = plain_decode(target, PROMPT, SamplingParams(max_tokens=40), eos_token_ids=[2])
    whole = plain_decode(target, PROMPT, SamplingParams(max_tokens=40, ignore_eos=True), eos_token_ids=[2])
    assert stopped.tokens == whole.tokens[: whole.tokens.index(2) + 1]
    assert (stopped.finish_reason, stopped.stop_reason, len(whole.tokens)) == ("stop", None, 40)
    token = plain_decode(target, PROMPT, SamplingParams(max_tokens=40, ignore_eos=True, stop_token_ids=(2,)))
    assert (token.tokens, token.stop_reason) == (stopped.tokens, 2)


def test_stop_strings_end_the_text_before_them() -> None:
    def decode(ids: list[int]) -> str:
        return "".join(chr(97 + i % 26) for i in ids)

    target = MockTarget()
    whole = plain_decode(target, PROMPT, SamplingParams(max_tokens=12), decode=decode)
    stop = whole.text[5:7]
    at = whole.text.index(stop)
    out = plain_decode(target, PROMPT, SamplingParams(max_tokens=12, stop=(stop,)), decode=decode)
    assert (out.text, out.stop_reason, out.tokens) == (whole.text[:at], stop, whole.tokens[: at + 2])
    late = plain_decode(target, PROMPT, SamplingParams(max_tokens=12, stop=(stop,), min_tokens=at + 3), decode=decode)
    assert len(late.tokens) > at + 2


def test_nan_is_an_error() -> None:
    behaviour = MockBehaviour(nan_after=lambda path: len(path) == len(PROMPT) + 3)
    out = plain_decode(MockTarget(behaviour), PROMPT, SamplingParams(max_tokens=9))
    assert (len(out.tokens), out.finish_reason) == (3, "error")


def test_gap_after_is_the_gap_of_that_token() -> None:
    target, params = MockTarget(), SamplingParams(max_tokens=8, temperature=0.8)
    out = plain_decode(target, PROMPT, params)
    assert gap_after(target, PROMPT, out.tokens[:4], params) == out.gaps[4]
    assert choose(target.logits_after(PROMPT), params, PROMPT, []) is not None
