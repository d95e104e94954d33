"""What a drafter is: the protocol between the engine's step and every drafting method.

The life of a sequence, as a drafter sees it:

    prefill*  (propose? commit)*  release

`prefill` once per prompt chunk the target has run, then `commit` after every decode step, whether or not this drafter
proposed in it, and `release` once. A drafter may therefore keep state that follows the committed tokens (own KV, an
n-gram index, a ring of features) without watching the engine. Rule R3 is the engine's side: whatever `propose` raises
or returns costs at most the drafts of that step, since all of it passes `validate.checked` first.

A drafter that works ahead (batched catch-up, filling its KV) does so inside `propose` or `commit`: it reads
`SequenceView.tokens` from where its own state ends, so a step that called neither is never missed.

B sequences of a call, K draft depth, H hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from draftwing.core import DraftTree, IntArray, SamplingParams, StepPlan

if TYPE_CHECKING:
    import torch

BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class DrafterTraits:
    """What a drafter declares about itself.

    kind: "token" drafts from token ids, "feature" also needs the target's hidden states.
    stop: "incremental" asks the controller before each depth, "block" drafts all depths in one call.
    hidden_layers: hidden states of the target that it needs, as `engine.features.FeatureTap` counts them.
    kv_bytes_per_token: draft KV the engine plans memory for. max_depth: longest draft. trees: can propose more than a
    chain. confidence: its drafts carry `DraftTree.confidences`.
    stateful_across_requests: a draft may depend on earlier requests (of the same salt), so proposals aren't a function
    of the sequence alone. sharding: "rank0" runs beside the scheduler, "target" is split like the target.
    """

    kind: Literal["token", "feature"] = "token"
    stop: Literal["incremental", "block"] = "block"
    hidden_layers: tuple[int, ...] = ()
    kv_bytes_per_token: int = 0
    max_depth: int = 64
    trees: bool = False
    confidence: bool = False
    stateful_across_requests: bool = False
    sharding: Literal["rank0", "target"] = "rank0"

    def __post_init__(self) -> None:
        if (self.kind == "feature") != bool(self.hidden_layers):
            raise ValueError(f"kind is {self.kind!r} but hidden_layers is {self.hidden_layers}")


class SequenceView(Protocol):
    """What a drafter sees of a sequence, read-only; the engine's own sequence satisfies it.

    tokens: prompt and output, ending with the root; it only grows, so state may be kept by its length. Everything else
    is constant. params and choice: at temperature > 0 drafters pick children under the target's noise (rule R1), whose
    key is (seed, choice) and whose position is an index into tokens. salt: state that crosses requests is kept apart
    per salt (rule R5); "" is a salt like any other. table: the cache blocks of its tokens, with room for the rows of
    the draft that the plan allows; a drafter with a cache of its own lays it out in the same blocks (see `reserve`).
    chain: per full block of the table, as far as they are shared with other sequences, a digest of salt and tokens up
    to its end (see `FilledBlocks`).
    """

    @property
    def id(self) -> str: ...
    @property
    def tokens(self) -> Seq[int]: ...
    @property
    def prompt_len(self) -> int: ...
    @property
    def params(self) -> SamplingParams: ...
    @property
    def choice(self) -> int: ...
    @property
    def salt(self) -> str: ...
    @property
    def table(self) -> Seq[int]: ...
    @property
    def chain(self) -> Seq[bytes]: ...


class Vocabulary(Protocol):
    """What tells two vocabularies apart."""

    @property
    def vocab_size(self) -> int: ...
    def token_text(self, token: int) -> str: ...


@dataclass(frozen=True, slots=True)
class TargetInfo:
    """What a drafter may know of its target.

    model: the target module, for drafters that share its embedding or head; None where drafter and target live in
    different processes, which only token drafters allow. tokenizer: None where the target has none. compile: kernels
    for this machine may be built. rejection: drawn drafts must say what they were drawn from (`DraftTree.sources`).
    """

    vocab_size: int
    context_length: int
    eos_token_ids: tuple[int, ...] = ()
    hidden_size: int = 0
    layers: int = 0
    device: str = "cpu"
    dtype: str = "float32"
    model: torch.nn.Module | None = None
    tokenizer: Vocabulary | None = None
    compile: bool = True
    rejection: bool = False


class CheckpointReader(Protocol):
    """A drafter's published checkpoint: its configuration, and its tensors by name.

    It remembers what was read, so that whoever opened it can refuse tensors that nobody asked for (rule R4).
    """

    @property
    def config(self) -> Mapping[str, Any]: ...
    def names(self) -> Iterable[str]: ...
    def shape(self, name: str) -> tuple[int, ...]: ...
    def read(self, name: str) -> torch.Tensor: ...
    def skip(self, names: Iterable[str]) -> None:
        """These are known and not needed."""
        ...


@dataclass(frozen=True, slots=True)
class Mesh:
    """This process's place among those that share the target."""

    rank: int = 0
    size: int = 1


ALONE = Mesh()


@dataclass(frozen=True, slots=True)
class FeatureRows:
    """The target's hidden states at consecutive committed positions of one sequence.

    start: index into the sequence's tokens of the first row. hidden: per declared layer, in declared order, [rows, H].
    The last committed token of a decode step was sampled, not run, so it never has a row yet.
    """

    start: int
    hidden: tuple[torch.Tensor, ...]


@dataclass(frozen=True, slots=True)
class Accepted:
    """What a verify committed for one sequence: all are already at the end of `SequenceView.tokens`.

    nodes [0..K]: indexes into the draft as it was proposed, in path order; empty if none was, or it was refused.
    count: tokens committed, the bonus token included; it is less than 1 + len(nodes) where a stop cut the path.
    choices [1 + n]: the target's own token after the root and after each of the draft's n nodes, taken or not, -1 after
    those that were left out of the verify; None where nobody says.
    """

    nodes: IntArray
    count: int
    choices: IntArray | None = None


class Controller(Protocol):
    """The policy's say while a draft grows. Only drafters with stop "incremental" ask."""

    def deeper(self, depth: int, drafts: Seq[DraftTree]) -> list[BoolArray]:
        """Which nodes get the children that make the level `depth` (0 is the root's children), given the drafts so far.

        Of each draft [1 + n], the root first; what it says of nodes that aren't the newest doesn't matter. Called with
        depth 0, 1, ... while any draft grew; one that did not, isn't drafted on in the step.
        """
        ...


class NullController:
    """Never stops: the shapes of the plan alone decide."""

    def deeper(self, depth: int, drafts: Seq[DraftTree]) -> list[BoolArray]:
        return [np.ones(1 + len(draft), dtype=np.bool_) for draft in drafts]


@runtime_checkable
class Drafter(Protocol):
    """A drafting method, bound to one target. Called from one thread."""

    @property
    def traits(self) -> DrafterTraits:
        """Final after `bind`: some depend on the checkpoint and the target."""
        ...

    def bind(self, target: TargetInfo, checkpoint: CheckpointReader | None = None, mesh: Mesh = ALONE) -> None:
        """Get ready to draft for this target. ConfigError where the two don't fit; called once, before all else."""
        ...

    def reserve(self, blocks: int, block_tokens: int) -> None:
        """The cache is planned: allocate the pages that `traits.kv_bytes_per_token` announced. Called once, after bind.

        A sequence's token i lies in row i % block_tokens of block table[i // block_tokens].
        """
        ...

    def prefill(self, sequences: Seq[SequenceView], features: Seq[FeatureRows] | None = None) -> None:
        """The target ran one more prompt chunk of each sequence; features has its rows if hidden_layers were declared.

        The rows may start after 0 (chunks, a prefix hit): what lies before stays unknown, a hole, never a guess.
        """
        ...

    def propose(
        self,
        sequences: Seq[SequenceView],
        plan: StepPlan,
        controller: Controller,
        base: Seq[Seq[int]] | None = None,
    ) -> list[DraftTree]:
        """One draft per sequence, in order, within `plan.shapes`; the empty draft where nothing is worth proposing.

        base: per entry, tokens supposed to follow `tokens`; the draft continues after them (the last is the root) and
        the drafter's state is afterwards as if it hadn't been asked. One sequence may stand in several entries then.
        """
        ...

    def commit(
        self, sequences: Seq[SequenceView], accepted: Seq[Accepted], features: Seq[FeatureRows] | None = None
    ) -> None:
        """A decode step committed tokens; features has rows of the old root and of the accepted nodes."""
        ...

    def release(self, sequence: SequenceView) -> None:
        """Drop all state of the sequence: it ended, was cancelled, or lost its cache. Unknown ones are fine.

        A later `prefill` under the same id starts anew.
        """
        ...


class DrafterOptions(BaseModel):
    """Base of a method's options, as they stand beside `method` in the config: unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class CheckpointOptions(DrafterOptions):
    """Options of a method whose `bind` reads a checkpoint: whoever binds it opens what these name.

    path: folder or hub id; None, where a method allows it: the target's own. revision: of a hub id.
    """

    path: str | None = Field(min_length=1)
    revision: str | None = None


class LayerOptions(DrafterOptions):
    """Options of a method whose checkpoint says which hidden states of the target it takes.

    layers: those states instead, as transformers counts them (0: embeddings). layer_ids: what ids in the checkpoint
    mean, inputs of layers or their outputs; auto: by the field they stand in; probe: measured at loading.
    """

    layers: tuple[int, ...] | None = Field(default=None, min_length=1, strict=False)
    layer_ids: Literal["auto", "inputs", "outputs", "probe"] = "auto"

    @property
    def reading(self) -> Literal["auto", "inputs", "outputs"]:
        return "auto" if self.layer_ids == "probe" else self.layer_ids


AS_PUBLISHED = LayerOptions()
Options = TypeVar("Options", bound=DrafterOptions)


@dataclass(frozen=True, slots=True)
class MethodFacts:
    """What a method is, known before a drafter of it exists; the rest is as in `DrafterTraits`.

    summary: one line. kind "feature": it needs hidden states, so it runs beside the target. own_cache: it keeps keys
    and values of its own, in memory that grows with the target's cache.
    """

    summary: str = ""
    kind: Literal["token", "feature"] = "token"
    stop: Literal["incremental", "block"] = "block"
    trees: bool = False
    confidence: bool = False
    stateful_across_requests: bool = False
    own_cache: bool = False
    sharding: Literal["rank0", "target"] = "rank0"


@dataclass(frozen=True, slots=True)
class DrafterMethod(Generic[Options]):
    """A method as the registry knows it: the model of its options, how they become a drafter, and what it is."""

    options: type[Options]
    make: Callable[[Options], Drafter]
    facts: MethodFacts = MethodFacts()


class TokenDrafter:
    """A drafter that needs nothing but tokens: subclasses set `traits`, write `propose`, and what else they need."""

    traits = DrafterTraits()

    def bind(self, target: TargetInfo, checkpoint: CheckpointReader | None = None, mesh: Mesh = ALONE) -> None:
        pass

    def reserve(self, blocks: int, block_tokens: int) -> None:
        pass

    def prefill(self, sequences: Seq[SequenceView], features: Seq[FeatureRows] | None = None) -> None:
        pass

    def commit(
        self, sequences: Seq[SequenceView], accepted: Seq[Accepted], features: Seq[FeatureRows] | None = None
    ) -> None:
        pass

    def release(self, sequence: SequenceView) -> None:
        pass
