"""What a draft length would bring: the closed form, with a linear cost of rows and drafting."""

from __future__ import annotations

from dataclasses import dataclass

from draftwing.policy.closed_form import expected_tokens

MOST_K = 32


@dataclass(frozen=True, slots=True)
class Question:
    """alpha: acceptance of one token. draft: cost of drafting one token. row: of verifying one more. In plain steps."""

    alpha: float = 0.7
    k: int = 4
    draft: float = 0.05
    row: float = 0.02


@dataclass(frozen=True, slots=True)
class Answer:
    question: Question
    tokens: float
    speedup: float
    best_k: int
    best_speedup: float
    curve: list[float]


def parse(fields: dict[str, str]) -> Question:
    """ValueError names the field, its value and what is accepted."""
    default = Question()
    alpha = _number(fields, "alpha", default.alpha, 0.0, 1.0)
    draft = _number(fields, "draft", default.draft, 0.0, 10.0)
    row = _number(fields, "row", default.row, 0.0, 10.0)
    k = _number(fields, "k", float(default.k), 0.0, float(MOST_K))
    if k != int(k):
        raise ValueError(f"k is {fields['k'][:40]!r}; expected a whole number from 0 to {MOST_K}")
    return Question(alpha, int(k), draft, row)


def answer(question: Question) -> Answer:
    curve = [_speedup(question, k) for k in range(MOST_K + 1)]
    best = max(range(MOST_K + 1), key=lambda k: (curve[k], -k))
    tokens = expected_tokens(question.alpha, question.k)
    return Answer(question, tokens, curve[question.k], best, curve[best], curve)


def _speedup(question: Question, k: int) -> float:
    return expected_tokens(question.alpha, k) / (1 + k * (question.draft + question.row))


def _number(fields: dict[str, str], name: str, default: float, least: float, most: float) -> float:
    text = fields.get(name, "").strip()
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not least <= value <= most:
        raise ValueError(f"{name} is {text[:40]!r}; expected a number from {least:g} to {most:g}")
    return value
