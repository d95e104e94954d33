"""A logged decision in words: what was chosen, what it was to bring, what was next best, and why nothing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from draftwing.decisions.log import LoggedStep
from draftwing.policy.adaptive import AdaptivePolicy
from draftwing.policy.base import Policy
from draftwing.policy.solver import survival


@dataclass(frozen=True, slots=True)
class Explanation:
    """Of one step. Numbers are 0 where nothing was drafted or the policy does not decide by them.

    price: lambda, tokens per ms. expected_*, plain_*, runner_up_*: of the step as chosen, without drafts, and of the
    best other number of nodes. Times without drafting, which was spent when the choice was made.
    """

    reason: str
    sequences: int
    drafted: int
    verified: int
    committed: int
    price: float = 0.0
    expected_tokens: float = 0.0
    expected_ms: float = 0.0
    plain_ms: float = 0.0
    runner_up: int = 0
    runner_up_loss: float = 0.0
    draft_ms: float = 0.0
    step_ms: float = 0.0
    why_off: str = ""

    def lines(self) -> list[str]:
        found = [f"plan: {self.reason}"]
        if self.price:
            found.append(f"a millisecond is worth {self.price:.4f} tokens at this load (lambda)")
        if self.verified:
            found.append(
                f"of {self.drafted} drafted nodes {self.verified} were verified for {self.sequences} sequences: "
                f"{self.expected_tokens:.2f} tokens expected in {self.expected_ms:.2f} ms, plain decoding "
                f"{self.sequences} in {self.plain_ms:.2f} ms"
            )
            found.append(f"next best: {self.runner_up} nodes, worth {self.runner_up_loss:.3f} tokens less")
        if self.why_off:
            found.append(self.why_off)
        found.append(
            f"it came to {self.committed} tokens in {self.step_ms:.2f} ms, {self.draft_ms:.2f} of them drafting"
        )
        return found


def explain(policy: Policy, step: LoggedStep) -> Explanation:
    """policy: in the state it had before the step."""
    inputs, plan, result = step.inputs, step.plan, step.result
    numbers: dict[str, float] = {}
    why = ""
    if isinstance(policy, AdaptivePolicy) and len(inputs):
        numbers = {"price": policy.price(inputs), "plain_ms": policy.costs.plain_ms(inputs)}
        why = _why_off(policy, step)
        if (choice := policy.choose(inputs, plan, result.drafts)) is not None:
            kept = len(choice.admitted.nodes)
            survivals = np.sort(survival(choice.keys))[::-1]
            values = np.concatenate([[0.0], np.cumsum(survivals)]) - choice.price * choice.step_ms
            others = np.delete(values, kept)
            runner_up = int(others.argmax())
            numbers |= {
                "price": choice.price,
                "expected_tokens": len(inputs) + choice.admitted.tokens,
                "expected_ms": float(choice.step_ms[kept]),
                "runner_up": runner_up + (runner_up >= kept),
                "runner_up_loss": float(choice.admitted.value - others.max()),
            }
    return Explanation(
        reason=plan.reason,
        sequences=len(inputs),
        drafted=sum(map(len, result.drafts)),
        verified=sum(map(len, result.verified)),
        committed=int(result.committed.sum()),
        draft_ms=result.draft_ms,
        step_ms=result.step_ms,
        why_off=why,
        **numbers,  # type: ignore[arg-type]
    )


def _why_off(policy: AdaptivePolicy, step: LoggedStep) -> str:
    """ "" where nodes were verified."""
    inputs = step.inputs
    if any(map(len, step.result.verified)):
        return ""
    able = np.flatnonzero(inputs.speculate & (inputs.tokens_left > 1) & (inputs.nodes_left > 0))
    match step.plan.reason:
        case "adaptive: guard":
            return f"off: the guard has tripped: {policy.guard.reason}"
        case "adaptive: plain turn":
            return "off for this step, so that the time of plain decoding stays known"
        case "adaptive: no room":
            return "off: no sequence allows drafts and has room for one"
        case "adaptive: no gain":
            ahead, _ = policy.ahead(inputs, able)
            hoped = policy.acceptance.undrafted(1, 1, inputs.classes[able], [inputs.requests[i] for i in able.tolist()])
            return (
                f"off: no draft pays (best gain {ahead.gain:.3f} tokens); a first draft token is expected to be right "
                f"with {hoped.mean():.2f}, and {policy.verifying.idle} steps passed since one was verified"
            )
    return "drafts were made, and verifying none of them was best" if step.result.levels else ""
