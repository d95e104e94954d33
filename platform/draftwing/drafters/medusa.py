"""Method `medusa` as the config knows it; the drafter itself, which loads torch, is in `medusa_drafter.py`."""

from __future__ import annotations

from pydantic import Field, field_validator

from draftwing.drafters.base import CheckpointOptions, Drafter, DrafterMethod, MethodFacts

Choices = tuple[tuple[int, ...], ...]


class MedusaOptions(CheckpointOptions):
    """path: folder or hub id of the heads; None: they lie in the target's own checkpoint.

    choices: a static tree as paths of ranks ([[0], [0, 0], [1]]: the second node is the best token of the second head
    below the best of the first), of which a plan keeps what fits into it. Without it the plan's own shape is the tree.
    """

    path: str | None = Field(default=None, min_length=1, description="null, a folder or a hub id")
    choices: list[list[int]] | None = None

    @field_validator("choices")
    @classmethod
    def _closed(cls, choices: list[list[int]] | None) -> list[list[int]] | None:
        for path in choices or ():
            if not path or min(path) < 0:
                raise ValueError(f"path {path} is no list of ranks from 0 on")
            if len(path) > 1 and choices and path[:-1] not in choices:
                raise ValueError(f"path {path} needs its beginning {path[:-1]} as a path of its own")
        return choices

    @property
    def tree(self) -> Choices | None:
        """The choices level by level, siblings in order of rank; None without any."""
        if self.choices is None:
            return None
        return tuple(sorted({tuple(path) for path in self.choices}, key=lambda path: (len(path), path)))


def _make(options: MedusaOptions) -> Drafter:
    from draftwing.drafters.medusa_drafter import MedusaDrafter

    return MedusaDrafter(options)


METHOD = DrafterMethod(
    MedusaOptions,
    _make,
    MethodFacts("heads that guess several tokens from one hidden state", "feature", trees=True, confidence=True),
)
