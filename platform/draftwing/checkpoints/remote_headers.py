"""A hub model's configuration and the headers of its weight files, without the weights: some kilobytes of any size."""

from __future__ import annotations

import math
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, hf_hub_download
from huggingface_hub.errors import SafetensorsParsingError

from draftwing.checkpoints.download import ANSWER_S, UNREACHABLE, Hub, explained
from draftwing.checkpoints.model_folder import read_json
from draftwing.checkpoints.weight_files import DTYPE_BITS, StoredTensor
from draftwing.errors import ConfigError

AT_ONCE = 8


def remote_headers(
    repo: str, revision: str | None, hub: Hub
) -> tuple[dict[str, Any], dict[Path, Mapping[str, StoredTensor]]] | None:
    """config.json, and the tensors of each safetensors file at the top of the repository, all of one commit.

    None where only a whole download tells: offline, the hub out of reach, or weights in torch archives alone.
    ConfigError, SetupError: as `download`.
    """
    if hub.offline:
        return None
    try:
        with explained(hub, repo, revision):
            api = HfApi(endpoint=hub.endpoint)
            info = api.model_info(repo, revision=revision, timeout=ANSWER_S)
            names = sorted(file.rfilename for file in info.siblings or [])
            safe = [name for name in names if name.endswith(".safetensors") and "/" not in name]
            if not safe:
                return None
            config = hf_hub_download(repo, "config.json", revision=info.sha, cache_dir=hub.cache, endpoint=hub.endpoint)
            with ThreadPoolExecutor(AT_ONCE) as pool:
                headers = list(pool.map(lambda name: _header(api, repo, name, info.sha), safe))
    except UNREACHABLE:
        return None
    return read_json(Path(config)), {Path(name): header for name, header in zip(safe, headers, strict=True)}


def _header(api: HfApi, repo: str, name: str, revision: str | None) -> dict[str, StoredTensor]:
    try:
        found = api.parse_safetensors_file_metadata(repo, name, revision=revision, timeout=ANSWER_S).tensors
    except SafetensorsParsingError as error:
        raise ConfigError(f"{repo}/{name} is not a safetensors file ({error})") from error
    if odd := next((tensor.dtype for tensor in found.values() if tensor.dtype not in DTYPE_BITS), None):
        raise ConfigError(f"{repo}/{name} holds tensors of type {odd}, which is not known")
    return {
        tensor_name: StoredTensor(tensor.dtype, tuple(tensor.shape), math.prod(tensor.shape))
        for tensor_name, tensor in found.items()
    }
