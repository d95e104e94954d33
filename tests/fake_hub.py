"""A stand-in for the Hugging Face hub on loopback: the endpoints that a model download uses, and faults on demand."""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

API = re.compile(r"/api/models/([^/]+/[^/]+?)(?:/(revision|tree)/([^/]+))?")
FILE = re.compile(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)")


@dataclass
class Repo:
    """commits: files by name, of each commit (40 hex digits); refs: commit of each branch and tag."""

    commits: dict[str, dict[str, bytes]]
    refs: dict[str, str]
    gated: bool = False
    private: bool = False


@dataclass
class FakeHub:
    """tokens: accepted ones, and whether their account may read gated repositories."""

    repos: dict[str, Repo] = field(default_factory=dict)
    tokens: dict[str, bool] = field(default_factory=dict)
    endpoint: str = ""
    requests: list[tuple[str, str]] = field(default_factory=list)
    fail_with: int | None = None  # answer everything with this status
    silent_s: float = 0.0  # answer only after this time
    cut: dict[str, int] = field(default_factory=dict)  # file name: bytes after which its transfers end
    sent: dict[str, int] = field(default_factory=dict)  # file name: bytes asked for

    def add(self, name: str, folder: Path, *, gated: bool = False, private: bool = False) -> str:
        """A repository with one commit on main, from a folder's files; the commit."""
        self.repos[name] = Repo({}, {}, gated, private)
        return self.commit(name, {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()})

    def commit(self, name: str, files: dict[str, bytes], ref: str = "main") -> str:
        sha = hashlib.sha1(repr(sorted(files.items())).encode()).hexdigest()
        self.repos[name].commits[sha] = files
        self.repos[name].refs[ref] = sha
        return sha


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: FakeHub

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _refused(self, name: str, *, contents: bool) -> bool:
        """Answer like the hub where the token doesn't suffice; whether it was so."""
        repo = self.hub.repos.get(name)
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        known = token in self.hub.tokens
        if token and not known:
            self._answer(401, X_Error_Message="Invalid credentials in Authorization header")
        elif repo is None or (repo.private and not known):
            code = 404 if known else 401  # without a token the hub does not say which names exist
            self._answer(code, X_Error_Code="RepoNotFound", X_Error_Message="Repository not found")
        elif repo.gated and contents and not self.hub.tokens.get(token, False):
            self._answer(403 if known else 401, X_Error_Code="GatedRepo", X_Error_Message="Access is restricted")
        else:
            return False
        return True

    def _files(self, name: str, revision: str) -> tuple[str, dict[str, bytes]] | None:
        repo = self.hub.repos[name]
        sha = repo.refs.get(revision, revision)
        if sha not in repo.commits:
            self._answer(404, X_Error_Code="RevisionNotFound", X_Error_Message=f"Invalid rev id: {revision}")
            return None
        return sha, repo.commits[sha]

    def _api(self, name: str, kind: str | None, revision: str) -> None:
        if self._refused(name, contents=False) or (found := self._files(name, revision)) is None:
            return
        sha, files = found
        entries = [
            {"type": "file", "path": path, "rfilename": path, "size": len(data), "oid": _etag(data)}
            for path, data in files.items()
        ]
        answer = entries if kind == "tree" else {"id": name, "modelId": name, "sha": sha, "siblings": entries}
        self._answer(200, json.dumps(answer).encode(), Content_Type="application/json")

    def _file(self, name: str, revision: str, path: str) -> None:
        if self._refused(name, contents=True) or (found := self._files(name, revision)) is None:
            return
        sha, files = found
        if path not in files:
            self._answer(404, X_Error_Code="EntryNotFound", X_Repo_Commit=sha)
            return
        data = files[path]
        headers = {"ETag": f'"{_etag(data)}"', "X_Repo_Commit": sha, "Accept_Ranges": "bytes"}
        start, whole = 0, len(data)
        if given := re.match(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or ""):
            start = int(given[1])
            data = data[: int(given[2]) + 1] if given[2] else data
            headers["Content_Range"] = f"bytes {start}-{len(data) - 1}/{whole}"
        if self.command == "GET":
            self.hub.sent[path] = self.hub.sent.get(path, 0) + len(data) - start
        most = self.hub.cut.get(path)
        if most is not None and self.command == "GET":
            headers["Content_Length"] = str(len(data) - start)
            self._answer(206 if start else 200, data[start : start + most], **headers)
            self.close_connection = True
        else:
            self._answer(206 if start or len(data) < whole else 200, data[start:], **headers)

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append((self.command, path))
        time.sleep(self.hub.silent_s)
        if self.hub.fail_with is not None:
            self._answer(self.hub.fail_with)
        elif match := API.fullmatch(path):
            self._api(match[1], match[2], match[3] or "main")
        elif match := FILE.fullmatch(path):
            self._file(match[1], match[2], match[3])
        else:
            self._answer(404)

    do_HEAD = do_GET


def _etag(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()


@contextmanager
def serve_hub() -> Iterator[FakeHub]:
    hub = FakeHub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    server.daemon_threads = True
    hub.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
