"""What an operator may ask of a running server, of all its replicas at once.

pause   decode plainly from the next step on; the reason is shown wherever the policy's own is
resume  speculate as configured again
look    look for a new profile now
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Literal

Action = Literal["pause", "resume", "look"]
Steer = Callable[[Action, str], Awaitable[list[str]]]


async def nobody_to_steer(action: Action, reason: str) -> list[str]:
    return []


def pause_of(application: str) -> str:
    """The notice on the board that holds the reason of a pause."""
    return f"{application}:pause"
