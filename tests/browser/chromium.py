"""A headless Chromium over its DevTools protocol: as much of it as the tests of a page need."""

from __future__ import annotations

import base64
import itertools
import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

from tests.conftest import require

START_S, ANSWER_S = 60, 30
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage --remote-debugging-port=0 "
    "--window-size=1200,1000"
)


class Page:
    """One tab. messages: what the browser said of errors and refused content."""

    def __init__(self, socket: ClientConnection) -> None:
        self.messages: list[str] = []
        self._socket = socket
        self._numbers = itertools.count(1)
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            answer = json.loads(self._socket.recv(ANSWER_S))
            if answer.get("id") == number:
                if "navigated" in answer.get("error", {}).get("message", ""):
                    return {"result": {}}  # another document came while it was asked
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result
            if answer["method"] in ("Log.entryAdded", "Runtime.exceptionThrown"):
                self.messages.append(json.dumps(answer["params"])[:500])

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)

    def value(self, script: str) -> Any:
        return self.call("Runtime.evaluate", expression=script, returnByValue=True)["result"].get("value")

    def key(self, name: str) -> None:
        for kind in ("keyDown", "keyUp"):
            code = {"Tab": 9, "Enter": 13}[name]
            text = {"text": "\r"} if name == "Enter" and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=name, code=name, windowsVirtualKeyCode=code, **text)

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def screenshot(self, file: Path) -> None:
        file.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]))


@contextmanager
def chromium(profile: Path) -> Iterator[Page]:
    """profile: an empty folder."""
    require("chromium")
    command = ["chromium", *FLAGS.split(), f"--user-data-dir={profile}", "about:blank"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    try:
        assert process.stderr is not None
        address = next(found[1] for line in process.stderr if (found := re.search(r"listening on (ws://\S+)", line)))
        with connect(address, open_timeout=START_S, max_size=None) as browser:
            browser.send(json.dumps({"id": 0, "method": "Target.getTargets"}))
            targets = json.loads(browser.recv(ANSWER_S))["result"]["targetInfos"]
        (target,) = [each["targetId"] for each in targets if each["type"] == "page"]
        with connect(re.sub(r"/devtools/.*", f"/devtools/page/{target}", address), max_size=None) as socket:
            yield Page(socket)
    finally:
        process.terminate()
        process.wait(30)
