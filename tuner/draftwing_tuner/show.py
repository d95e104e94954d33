"""Progress of long work on stderr: a live bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

EVERY_S = 15.0


class Bar(Protocol):
    def __call__(self, done: float, total: float, note: str = "") -> None: ...


@contextmanager
def bar(label: str) -> Iterator[Bar]:
    """A function to call with what is done of the total."""
    console = Console(stderr=True, highlight=False)
    if console.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[note]}"))
        with Progress(*columns, console=console, transient=True) as progress:
            task = progress.add_task(label, total=1.0, note="")

            def live(done: float, total: float, note: str = "") -> None:
                progress.update(task, completed=done, total=total, note=note)

            yield live
        return
    told = -EVERY_S

    def line(done: float, total: float, note: str = "") -> None:
        nonlocal told
        if monotonic() - told >= EVERY_S or done >= total:
            told = monotonic()
            console.print(f"{label}: {done:.0f} of {total:.0f} {note}".rstrip(), soft_wrap=True)

    yield line


def table(title: str, columns: list[str], rows: list[list[str]]) -> None:
    """A result on stdout; numbers to the right, the first column to the left."""
    made = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for i, name in enumerate(columns):
        made.add_column(name, justify="left" if i == 0 else "right", no_wrap=True)
    for row in rows:
        made.add_row(*row)
    Console(highlight=False, width=None if Console().is_terminal else 160).print(made)
