"""A policy's log: what it saw and what came of it, a line of JSON per step, so that any decision can be made again.

The first line says how the policy was made. Confidences are kept in 1/1024, as decisions use them.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from draftwing.core import DraftShape, DraftTree, IntArray, StepPlan
from draftwing.drafters.base import BoolArray, Controller, DrafterTraits
from draftwing.drafters.tree import depths, kept
from draftwing.errors import ConfigError
from draftwing.policy.artifact import read_artifact
from draftwing.policy.base import PlanInputs, Policy, StepResult
from draftwing.policy.modes import parse_mode
from draftwing.policy.nodes import GRAIN, parts
from draftwing.policy.profile import profile_of

SCHEMA = "draftwing.policy-log/1"


@dataclass(frozen=True, slots=True)
class Origin:
    """How a policy is made: see `parse_mode`. profile: uri, "" for none, with the digest it had."""

    mode: str
    drafter: str
    traits: DrafterTraits
    profile: str = ""
    digest: str = ""
    tpot_ms: float | None = None

    def make(self) -> Policy:
        profile = profile_of(read_artifact(self.profile, None, self.digest)) if self.profile else None
        return parse_mode(self.mode, self.drafter, self.traits, profile, self.tpot_ms)


@dataclass(frozen=True, slots=True)
class LoggedStep:
    inputs: PlanInputs
    plan: StepPlan
    result: StepResult


class LoggedPolicy:
    """Writes every step of the policy inside to a file. One that is there keeps its lines under another name."""

    def __init__(self, inner: Policy, origin: Origin, path: Path) -> None:
        """ConfigError where the file can't be written."""
        self.inner = inner
        try:
            if path.is_file():
                set_aside(path)
            self._file: TextIO = path.open("w", encoding="utf-8", buffering=1)
        except OSError as error:
            raise ConfigError(f"policy.log is {str(path)!r}, which can't be written: {error.strerror}") from None
        self._write({"schema": SCHEMA} | asdict(origin))

    @property
    def drafter(self) -> str:
        return self.inner.drafter

    @property
    def largest(self) -> DraftShape:
        return self.inner.largest

    def decide(self, inputs: PlanInputs) -> StepPlan:
        return self.inner.decide(inputs)

    def controller(self, inputs: PlanInputs, plan: StepPlan) -> Controller:
        return self.inner.controller(inputs, plan)

    def cut(self, inputs: PlanInputs, plan: StepPlan, drafts: Seq[DraftTree]) -> list[IntArray] | None:
        return self.inner.cut(inputs, plan, drafts)

    def observe(self, inputs: PlanInputs, plan: StepPlan, result: StepResult) -> None:
        self._write(_line(inputs, plan, result))
        self.inner.observe(inputs, plan, result)

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line, separators=(",", ":")) + "\n")


def set_aside(path: Path) -> None:
    """Rename a log to the next free one of `path.1`, `path.2`, ...; who still writes to it goes on there.

    Each profile that is taken while serving begins a log, because a log is replayed from its own first line.
    """
    taken = {each.name for each in path.parent.iterdir()}
    number = next(n for n in itertools.count(1) if f"{path.name}.{n}" not in taken)
    path.rename(f"{path}.{number}")


def read_log(path: Path) -> tuple[Origin, list[LoggedStep]]:
    """ConfigError names the line that is no log's; an unfinished last line is left out."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigError(f"policy log {path} can't be read: {error.strerror}") from None
    number = 1
    try:
        head = json.loads(lines[0]) if lines else {}
        if head.pop("schema", None) != SCHEMA:
            raise ConfigError(f"{path} is no policy log of this version; expected schema {SCHEMA} in its first line")
        head["traits"]["hidden_layers"] = tuple(head["traits"]["hidden_layers"])
        origin = Origin(**head | {"traits": DrafterTraits(**head["traits"])})
        steps = []
        for number, line in enumerate(lines[1:], 2):
            if number < len(lines) or line.endswith("}"):
                steps.append(_step(json.loads(line)))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path}:{number} is no line of a policy log: {error}") from None
    return origin, steps


def again(policy: Policy, step: LoggedStep) -> tuple[StepPlan, list[list[BoolArray]], list[IntArray]]:
    """The plan, what the controller lets grow at each depth, and the cut that a policy makes of a logged step.

    Its state is that before the step; `observe` is left to the caller. A drafter that drafts all depths in one call
    asks no controller, and what is said of depths then means nothing.
    """
    inputs, result = step.inputs, step.result
    plan = policy.decide(inputs)
    levels: list[list[BoolArray]] = []
    controller = policy.controller(inputs, plan)
    deep = [depths(draft.parents) for draft in result.drafts]
    for depth in range(len(result.levels) + 1):
        grown = [kept(t, np.flatnonzero(at <= depth).tolist()) for t, at in zip(result.drafts, deep, strict=True)]
        able = [shape.depth > depth and shape.nodes > 0 for shape in plan.shapes]
        grow = [nodes & may for nodes, may in zip(controller.deeper(depth, grown), able, strict=True)]
        if any(nodes.any() for nodes in grow):
            levels.append(grow)
    cut = policy.cut(inputs, plan, result.drafts)
    return plan, levels, cut if cut is not None else [np.arange(len(draft)) for draft in result.drafts]


def replayed(origin: Origin, steps: Seq[LoggedStep]) -> Iterator[tuple[Policy, LoggedStep]]:
    """A fresh policy in the state it had before each step, beside that step."""
    policy = origin.make()
    for step in steps:
        yield policy, step
        policy.observe(step.inputs, step.plan, step.result)


def _line(inputs: PlanInputs, plan: StepPlan, result: StepResult) -> dict[str, Any]:
    shapes = [[list(shape.branching), shape.nodes] for shape in plan.shapes]
    drafts = [[d.tokens.tolist(), d.parents.tolist(), _parts(d)] for d in result.drafts]
    return {
        "inputs": {name: _plain(getattr(inputs, name)) for name in PlanInputs.__slots__},
        "plan": [plan.drafter, shapes, plan.reason],
        "result": {name: _plain(getattr(result, name)) for name in StepResult.__slots__} | {"drafts": drafts},
    }


def _plain(value: object) -> object:
    if isinstance(value, np.ndarray):
        return value.tolist()
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def _parts(draft: DraftTree) -> list[int] | None:
    return None if draft.confidences is None else parts(draft.confidences).astype(np.int64).tolist()


def _step(line: dict[str, Any]) -> LoggedStep:
    ints, flags = np.int64, np.bool_
    kinds = dict.fromkeys(("tokens_left", "nodes_left", "contexts", "behind", "classes"), ints)
    kinds |= dict.fromkeys(("speculate", "distorted"), flags)  # type: ignore[arg-type]
    inputs = {name: np.array(value, kinds[name]) if name in kinds else value for name, value in line["inputs"].items()}
    drafter, shapes, reason = line["plan"]
    result = line["result"]
    drafts = [
        DraftTree(
            np.array(tokens, ints),
            np.array(parents, ints),
            None if shares is None else (np.array(shares) / GRAIN).astype(np.float32),
        )
        for tokens, parents, shares in result["drafts"]
    ]
    columns: dict[str, Any] = {
        "drafts": tuple(drafts),
        "verified": tuple(np.array(nodes, ints) for nodes in result["verified"]),
        "accepted": tuple(np.array(nodes, ints) for nodes in result["accepted"]),
        "committed": np.array(result["committed"], ints),
        "levels": tuple(np.array(level, flags) for level in result["levels"]),
        "ended": tuple(result["ended"]),
    }
    return LoggedStep(
        PlanInputs(**inputs | {"requests": tuple(inputs["requests"])}),
        StepPlan(drafter, tuple(DraftShape(tuple(branching), nodes) for branching, nodes in shapes), reason),
        StepResult(**result | columns),
    )
