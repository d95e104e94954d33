"""What a look for a new profile says, and when it touches the engine."""

from __future__ import annotations

import asyncio
from pathlib import Path

from draftwing_serve.profile_watch import ProfileWatch


class Taker:
    """An engine that takes profiles, but for the one whose digest it is told to refuse."""

    def __init__(self, refuses: str = "") -> None:
        self.asked = 0
        self.refuses = refuses

    async def __call__(self) -> str:
        self.asked += 1
        return self.refuses


def looks(watch: ProfileWatch, *again: bool) -> list[str]:
    async def run() -> list[str]:
        return [await watch.look(again=each) for each in again]

    return asyncio.run(run())


def test_what_is_new_is_taken_once(tmp_path: Path) -> None:
    taker = Taker()
    watch = ProfileWatch(str(tmp_path), taker, "one")
    assert looks(watch, True, False) == [f"no profile is published in {tmp_path}", ""]
    current = tmp_path / "CURRENT"
    current.write_text("one")
    assert looks(watch, False, True) == ["", "profile one is live, and none is newer"]
    assert taker.asked == 0
    current.write_text("two")
    assert looks(watch, False, False, True) == [
        "profile two is used from now on",
        "",
        "profile two is live, and none is newer",
    ]
    assert taker.asked == 1


def test_what_was_refused_is_tried_again_when_asked(tmp_path: Path) -> None:
    taker = Taker("costs.parquet is missing")
    watch = ProfileWatch(str(tmp_path), taker, "one")
    (tmp_path / "CURRENT").write_text("two")
    refused = "profile two is not used: costs.parquet is missing"
    assert looks(watch, False, False, True) == [refused, "", refused]
    assert taker.asked == 2
    taker.refuses = ""
    assert looks(watch, True) == ["profile two is used from now on"]


def test_without_a_place_it_says_so() -> None:
    (said,) = looks(ProfileWatch(None, Taker(), ""), True)
    assert said.startswith("no profile is in use")
    (said,) = looks(ProfileWatch("nowhere://x", Taker(), ""), True)
    assert said.startswith("can't look for a profile: policy.profile is 'nowhere://x'")
