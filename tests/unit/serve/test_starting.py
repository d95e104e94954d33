"""What keeps a server from starting: each reason is its own line."""

from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path
from typing import Any

import pytest

from draftwing.errors import SetupError
from draftwing_serve import private_ray
from draftwing_serve.launcher import check_address


@pytest.mark.parametrize("host", ["192.0.2.7", "no-such-host.invalid"])  # kept for documents: nobody's address
def test_an_address_of_another_machine(host: str) -> None:
    with pytest.raises(SetupError, match=rf"server.host '{host}' is not an address of this machine"):
        check_address(host, 8000)


def test_a_port_that_is_taken() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with pytest.raises(SetupError, match=rf"port {port} on 127.0.0.1 can't be used .*choose another with --port"):
            check_address("127.0.0.1", port)
    check_address("127.0.0.1", port)


def test_a_ray_that_does_not_come_up_is_no_bug_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def late(**settings: Any) -> None:
        raise Exception("The current node timed out during startup.\nThe GCS may be overloaded.")

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(private_ray, "_init", late)
    monkeypatch.setattr(private_ray, "_shutdown", lambda: None)
    expected = (
        "Ray did not start: The current node timed out during startup. The GCS may be overloaded.; where the machine"
    )
    with pytest.raises(SetupError, match=expected), private_ray.ray_running(verbose=False):
        pass
    assert list(tmp_path.iterdir()), "its logs are kept"
