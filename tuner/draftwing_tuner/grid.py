"""Which costs are measured: cells of the grid, those that matter most first.

N rows verified in all, B sequences, S cached tokens of each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from draftwing.drafters.base import DrafterTraits

Part = Literal["verify", "draft", "catch_up", "overhead"]
# Costs are a staircase: every count up to 20, every other one up to 32, where products change their form, then fewer.
ROWS = (*range(1, 21), 22, 24, 26, 28, 30, 32, 33, 36, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256)
HELD_ROWS = (21, 27, 44, 72, 104, 176)  # lie between the others, and only test the fit
DEPTHS = (1, 3, 8)
WIDTHS = (1, 4)
FINE = 16
MISSED = (1, 4, 16, 64)
HOLD = 5  # of the other cells, one in so many tests the fit too
DRAFT_NODES = 8  # a sequence: what N is planned for


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """rows: of a verify, or tokens to catch up. context: of each sequence. depth, width: of a draft.

    held_out: the fit doesn't see it while it is tested.
    """

    part: Part
    batch: int = 1
    rows: int = 0
    context: int = 0
    depth: int = 0
    width: int = 0
    held_out: bool = False

    def __str__(self) -> str:
        names = ("batch", "rows", "context", "depth", "width")
        return " ".join([self.part, *(f"{name} {value}" for name in names if (value := getattr(self, name)))])


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the engine can hold: sequences, rows of a step, and the contexts to measure at, ascending."""

    sequences: int
    rows: int
    contexts: tuple[int, ...]

    @property
    def batches(self) -> list[int]:
        sizes = [2**i for i in range(9) if 2**i <= self.sequences]
        return sizes if sizes[-1] == self.sequences or self.sequences > 2**8 else [*sizes, self.sequences]


def grid(bounds: Bounds, traits: DrafterTraits) -> list[Cell]:
    """All cells, without doubles. The order is that of importance: a small budget measures the first ones."""
    cells = [*_overhead(bounds), *_drafts(bounds, traits), *_verify(bounds)]
    return sorted(dict.fromkeys(cells), key=_importance)


def _importance(cell: Cell) -> tuple[int, ...]:
    if cell.part == "verify":
        return (int(cell.rows > FINE) + int(cell.held_out), cell.rows, cell.batch, cell.context)
    return (int(cell.depth > 3 or cell.width > 1 or cell.part == "catch_up"), cell.batch, cell.depth, cell.width)


def _overhead(bounds: Bounds) -> list[Cell]:
    return [Cell("overhead", batch=b) for b in bounds.batches]


def _drafts(bounds: Bounds, traits: DrafterTraits) -> list[Cell]:
    if traits.max_depth == 0:
        return []
    depths = [d for d in DEPTHS if d <= traits.max_depth] or [traits.max_depth]
    widths = WIDTHS if traits.trees else WIDTHS[:1]
    cells = [Cell("draft", batch=b, depth=d, width=w) for b in bounds.batches for d in depths for w in widths]
    return cells + [Cell("catch_up", rows=tokens) for tokens in MISSED]


def _verify(bounds: Bounds) -> list[Cell]:
    """Each N with few sequences and with many, each at another context in turn; plain steps at every context."""
    found = []
    for i, rows in enumerate(sorted({*ROWS, *HELD_ROWS})):
        fits = [b for b in bounds.batches if b <= rows]
        usual = [b for b in fits if rows <= b * (1 + 2 * DRAFT_NODES)]
        if rows > bounds.rows or not usual:
            continue
        one = usual[0] if i % 2 else usual[-1]
        for j, batch in enumerate(sorted({usual[0], usual[-1]} if rows <= FINE else {one})):
            context = bounds.contexts[(i + j) % len(bounds.contexts)]
            held = rows in HELD_ROWS or ((i + 2 * j) % HOLD == HOLD - 1 and len(usual) > 1)
            found.append(Cell("verify", batch, rows, context, held_out=held))
    plain = [Cell("verify", b, b, context) for b in bounds.batches if b <= bounds.rows for context in bounds.contexts]
    seen = {(c.batch, c.rows, c.context) for c in found}
    return found + [c for c in plain if (c.batch, c.rows, c.context) not in seen]
