"""Models from a Hugging Face hub: one commit for all files, errors in one line each, and bounded waiting.

The settings are read from the environment at every call: HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE, HF_HUB_CACHE, HF_HOME.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx2
from huggingface_hub import HfApi, get_token, hf_hub_download, snapshot_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
    RevisionResolutionError,
)
from huggingface_hub.utils.tqdm import disable_progress_bars

from draftwing.checkpoints.cache import Progress, need_disk
from draftwing.checkpoints.model_folder import read_json
from draftwing.checkpoints.published import BESIDE
from draftwing.checkpoints.supported import check_config
from draftwing.errors import ConfigError, DraftwingError, SetupError

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
# Weights, configs and tokenizers at the top of the repository: not a second copy in another format.
WANTED = ["*.safetensors", "*.json", "*.jinja", "*.txt", "tokenizer.model"]
ARCHIVES = ["*.bin", "*.pt", "*.pth"]  # drafters alone are read from these, with weights_only
UNWANTED = ["*/*", "consolidated*"]
ANSWER_S = 10  # how long the hub may take to answer before it counts as unreachable
REPORT_S = 5.0
# What the client raises when there is no answer, when one ends early, and (with a 5xx status) when the hub is down.
UNREACHABLE = (httpx2.TransportError, LocalEntryNotFoundError, OfflineModeIsEnabled, HfHubHTTPError)


@dataclass(frozen=True, slots=True)
class Hub:
    endpoint: str
    cache: Path
    offline: bool

    @staticmethod
    def from_environment(*, cache: Path | None = None, offline: bool = False) -> Hub:
        env = os.environ
        home = env.get("HF_HOME") or os.path.join(env.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
        place = cache or Path(env.get("HF_HUB_CACHE") or os.path.join(home, "hub"))
        said = env.get("HF_HUB_OFFLINE") or env.get("TRANSFORMERS_OFFLINE") or ""
        return Hub(
            endpoint=(env.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/"),
            cache=place.expanduser().absolute(),
            offline=offline or said.upper() in ("1", "ON", "YES", "TRUE"),
        )


def _answered(hub: Hub, repo: str, revision: str | None, error: HfHubHTTPError) -> DraftwingError:
    """The hub's refusal, as what the user should do."""
    status = error.response.status_code
    page = f"{hub.endpoint}/{repo}"
    token = get_token() is not None
    if isinstance(error, GatedRepoError):
        then = "with the account of your HF_TOKEN" if token else "and set HF_TOKEN to a token of that account"
        return SetupError(f"{repo} is gated: accept its terms at {page} {then}")
    if isinstance(error, RevisionNotFoundError):
        return ConfigError(f"model.revision {revision!r} does not exist in {repo}; see {page}/tree/main")
    if status == HTTPStatus.UNAUTHORIZED and not token:
        return SetupError(f"{repo} does not exist or is private ({page}); check the name, or set HF_TOKEN")
    if status == HTTPStatus.UNAUTHORIZED and not isinstance(error, RepositoryNotFoundError):
        return SetupError(f"{hub.endpoint} does not accept your HF_TOKEN; make one at {hub.endpoint}/settings/tokens")
    if isinstance(error, RepositoryNotFoundError):
        return ConfigError(
            f"model.path {repo} is no folder here and no repository at {hub.endpoint} that you may see; check the name"
        )
    if status == HTTPStatus.FORBIDDEN:
        return SetupError(f"your HF_TOKEN may not read {repo}; give it read access, or accept the terms at {page}")
    return SetupError(
        f"{hub.endpoint} answered {status} for {repo}; try again later, or use its cached copy: model.offline"
    )


def _reason(error: BaseException) -> str:
    if isinstance(error, HfHubHTTPError):
        return f"it answered {error.response.status_code}"
    cause = error.__cause__ or error
    text = str(cause).strip().splitlines()
    return f"{type(cause).__name__}: {text[0][:120]}" if text else type(cause).__name__


def _matches(name: str, patterns: list[str]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)


@contextmanager
def explained(hub: Hub, repo: str, revision: str | None) -> Iterator[None]:
    """Turn the hub's refusals into ours; what only says that it can't be reached passes."""
    try:
        yield
    except HFValidationError as error:
        raise ConfigError(f"model.path {repo} is no folder, no file and no hub id ({_reason(error)})") from error
    except LocalEntryNotFoundError:
        raise
    except EntryNotFoundError as error:
        raise ConfigError(f"{repo} has no config.json, so it is no transformers model") from error
    except HfHubHTTPError as error:
        if error.response.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR:
            raise
        raise _answered(hub, repo, revision, error) from error
    except PermissionError as error:
        raise SetupError(f"the cache {hub.cache} can't be written ({error.strerror}); set model.cache_dir") from error


def _from_cache(hub: Hub, repo: str, revision: str | None, wanted: list[str]) -> tuple[Path, str]:
    """The cached snapshot and its commit. LocalEntryNotFoundError or RevisionResolutionError when it isn't whole."""
    api = HfApi(endpoint=hub.endpoint)
    at = api.resolve_revision(repo, revision=revision, cache_dir=hub.cache, local_files_only=True)
    folder = snapshot_download(
        repo, revision=at, cache_dir=hub.cache, allow_patterns=wanted, ignore_patterns=UNWANTED, local_files_only=True
    )
    return Path(folder), at.resolved


@contextmanager
def _reporting(hub: Hub, repo: str, total: int, progress: Progress) -> Iterator[None]:
    """Say every few seconds how much of a download has arrived."""
    blobs = hub.cache / f"models--{repo.replace('/', '--')}" / "blobs"
    done = threading.Event()

    def watch() -> None:
        while not done.wait(REPORT_S):
            with suppress(FileNotFoundError):  # none there yet, or one renamed while we look: next time
                size = sum(blob.stat().st_size for blob in blobs.iterdir())
                progress(f"downloading {repo}: {size / 1e9:.2f} of {total / 1e9:.2f} GB")

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _fetch(
    hub: Hub,
    repo: str,
    revision: str | None,
    wanted: list[str],
    trust_remote_code: bool,
    progress: Progress,
    drafter: bool,
) -> tuple[Path, str]:
    disable_progress_bars()
    api = HfApi(endpoint=hub.endpoint)
    info = api.model_info(repo, revision=revision, timeout=ANSWER_S, files_metadata=True)
    at = api.resolve_revision(repo, revision=revision, cache_dir=hub.cache)
    try:
        return _from_cache(hub, repo, at, wanted)
    except LocalEntryNotFoundError:
        pass  # not there, or not whole
    config = hf_hub_download(repo, "config.json", revision=at, cache_dir=hub.cache, endpoint=hub.endpoint)
    if not drafter:
        check_config(read_json(Path(config)), repo, trust_remote_code=trust_remote_code)
    sizes = {file.rfilename: file.size or 0 for file in info.siblings or []}
    names = [name for name in sizes if _matches(name, wanted) and not _matches(name, UNWANTED)]
    safe = [name for name in names if name.endswith(".safetensors")]
    if safe:
        names = [name for name in names if name == BESIDE or not _matches(name, ARCHIVES)]
    elif not (drafter and any(_matches(name, ARCHIVES) for name in names)):
        raise ConfigError(
            f"{repo} has no safetensors weights, and pickled ones are not read; choose a repository with them"
        )
    total = sum(sizes[name] for name in names)
    need_disk(hub.cache, total, f"downloading {repo}")
    progress(f"downloading {repo} at {at.resolved[:8]}: {len(names)} files, {total / 1e9:.2f} GB")
    with _reporting(hub, repo, total, progress):
        folder = snapshot_download(
            repo,
            revision=at,
            cache_dir=hub.cache,
            allow_patterns=names,
            ignore_patterns=UNWANTED,
            endpoint=hub.endpoint,
        )
    return Path(folder), at.resolved


def download(
    repo: str,
    revision: str | None,
    hub: Hub,
    progress: Progress,
    *,
    trust_remote_code: bool = False,
    drafter: bool = False,
) -> tuple[Path, str]:
    """A hub model's folder in the hub cache and its commit. All files are of that one commit.

    Refuses a model that can't be served after its config.json, before its weights. When the hub can't be reached the
    cached copy is used, and said so. ConfigError: the name, the revision or the model. SetupError: token, network or
    disk. drafter: its config is its reader's to check, and torch archives are taken where there is nothing safer.
    """
    wanted = [*WANTED, "*.py"] if trust_remote_code else [*WANTED, *ARCHIVES] if drafter else WANTED
    reason = "offline mode is on"
    if not hub.offline:
        try:
            with explained(hub, repo, revision):
                return _fetch(hub, repo, revision, wanted, trust_remote_code, progress, drafter)
        except UNREACHABLE as error:
            reason = f"{hub.endpoint} can't be reached ({_reason(error)})"
    try:
        folder, commit = _from_cache(hub, repo, revision, wanted)
    except (LocalEntryNotFoundError, RevisionResolutionError) as error:
        what = f"{repo} at {revision}" if revision else repo
        raise SetupError(
            f"{reason}, and {what} is not whole in the cache {hub.cache}; start once with the hub reachable, "
            "or name a local folder"
        ) from error
    progress(f"{reason}: using {repo} at {commit[:8]} from the cache")
    return folder, commit


def config_of(repo: str, revision: str | None, hub: Hub) -> dict[str, Any]:
    """config.json of a hub model, and nothing else of it. Errors as for `download`."""
    disable_progress_bars()
    try:
        with explained(hub, repo, revision):
            path = hf_hub_download(
                repo,
                "config.json",
                revision=revision,
                cache_dir=hub.cache,
                endpoint=hub.endpoint,
                etag_timeout=ANSWER_S,
                local_files_only=hub.offline,
            )
    except UNREACHABLE as error:
        raise SetupError(
            f"{hub.endpoint} can't be reached ({_reason(error)}), and config.json of {repo} is not in the cache"
        ) from error
    return read_json(Path(path))
