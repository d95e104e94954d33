"""Draftwing's own cache folder: what is made once from a model's files and used by every later start."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from draftwing.errors import SetupError

Progress = Callable[[str], None]


def silent(_: str) -> None:
    """Progress that nobody reads."""


def cache_root() -> Path:
    """$DRAFTWING_CACHE, else $XDG_CACHE_HOME/draftwing, else ~/.cache/draftwing."""
    if own := os.environ.get("DRAFTWING_CACHE"):
        return Path(own).expanduser().absolute()
    shared = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(shared).expanduser().absolute() / "draftwing"


@contextmanager
def only_one(folder: Path, progress: Progress) -> Iterator[None]:
    """Hold a lock beside `folder`, so that two processes don't make it at the same time; waits for the other."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder.with_name(folder.name + ".lock"))
        try:
            lock.acquire(timeout=0)
        except Timeout:
            progress(f"waiting for another process that is making {folder}")
            lock.acquire()
    except OSError as error:
        raise SetupError(
            f"the cache {folder.parent} can't be written ({error.strerror or error}); "
            "set DRAFTWING_CACHE to a folder of yours"
        ) from error
    try:
        yield
    finally:
        lock.release()


@contextmanager
def work_folder(folder: Path, what: str) -> Iterator[Path]:
    """An empty folder beside `folder`, removed afterwards; under the lock of `only_one`."""
    work = folder.with_name(f".{folder.name}.{what}")
    shutil.rmtree(work, ignore_errors=True)  # left by a process that was killed: the lock says nobody uses it
    work.mkdir()
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


@contextmanager
def made_whole(folder: Path) -> Iterator[Path]:
    """A work folder that becomes `folder` in one rename when the block ends well, and is removed when it doesn't."""
    with work_folder(folder, "partial") as work:
        yield work
        work.rename(folder)


def need_disk(folder: Path, needed: int, what: str) -> None:
    """SetupError unless `needed` bytes are free where `folder` lies."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise SetupError(
            f"{what} takes {needed / 1e9:.1f} GB of disk and {folder} has {free / 1e9:.1f} GB free; free some or set "
            "DRAFTWING_CACHE to a folder on another disk"
        )
