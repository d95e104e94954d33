"""Progress on stderr: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time

from rich.console import Console
from rich.status import Status


class Progress:
    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._status: Status | None = None
        self._begun = time.monotonic()

    def tell(self, text: str) -> None:
        """What is being done now."""
        if not self._console.is_terminal:
            self._line(text)
        elif self._status is None:
            self._status = self._console.status(text)
            self._status.start()
        else:
            self._status.update(text)

    def warn(self, text: str) -> None:
        self.close()
        self._line(f"warning: {text}")

    def close(self) -> None:
        """Take the live line away; `tell` makes a new one."""
        if self._status is not None:
            self._status.stop()
            self._status = None

    def _line(self, text: str) -> None:
        sys.stderr.write(f"[{time.monotonic() - self._begun:6.1f} s] {text}\n")
        sys.stderr.flush()
