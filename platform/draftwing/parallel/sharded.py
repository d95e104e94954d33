"""A replica of several ranks: how rank 0 builds its engine and the others their shares of the target.

Rank 0 runs scheduler, drafter and engine loop, and is the only one that clients know. The others hold their share of
the weights and their own cache pages, and make every forward that rank 0 makes.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from draftwing.checkpoints import hf
from draftwing.checkpoints.cache import Progress
from draftwing.checkpoints.hub import resolve_model
from draftwing.checkpoints.model_folder import ModelFolder, read_config
from draftwing.checkpoints.split import split_of
from draftwing.checkpoints.tokenizer import TextTokenizer, load_tokenizer
from draftwing.config_models import Config
from draftwing.engine.build import engine_for, paged
from draftwing.engine.loading import LoadedTarget, choose_device, load_target
from draftwing.engine.runner import probe_layers
from draftwing.engine.step import Engine
from draftwing.errors import ConfigError, SetupError
from draftwing.kernels.speedup import speed_up
from draftwing.parallel.group import LeadingRunner, RankGroup, follow, open_group
from draftwing.parallel.place import RankPlace
from draftwing.parallel.remote_drafter import remote_drafter

Report = Callable[[dict[str, Any]], None]


@dataclass(slots=True)
class Team:
    """One rank's part in a replica of several. report: gets rank 0's `store` state, see `rank.py`."""

    place: RankPlace
    report: Report
    _group: RankGroup | None = field(default=None, init=False)
    _runner: LeadingRunner | None = field(default=None, init=False)

    def lead(self, config_json: str, progress: Progress) -> Engine:
        """Rank 0's engine. Errors as for `build_local`; SetupError when the ranks don't come together."""
        target, group, config, tokenizer = self._load(config_json, progress)
        drafter = remote_drafter(config)
        engine = engine_for(config, target, decoder=tokenizer, progress=progress, drafter=drafter, ranks=group)
        assert isinstance(engine.runner, LeadingRunner)
        self._runner = engine.runner
        return engine

    def follow(self, config_json: str, progress: Progress) -> None:
        """Any other rank: load, and do what rank 0 does until it stops. RankLost when a rank dies."""
        target, group, config, _ = self._load(config_json, progress)
        layers = probe_layers(target.model, target.device)
        speed_up(target.model, compile_kernel=config.model.compile, tell=progress)
        pool, runner = paged(config, target, layers, 0, progress, group)
        self.report({"state": "ready"})
        follow(runner, group, pool.block_tokens)

    def stop(self) -> None:
        """Rank 0: let the others end. Call it when the last step is done."""
        if self._runner is not None:
            self._runner.stop()
        if self._group is not None:
            self._group.close()

    def _load(
        self, config_json: str, progress: Progress
    ) -> tuple[LoadedTarget, RankGroup, Config, TextTokenizer | None]:
        config = Config.model_validate_json(config_json)
        place = self.place
        if config.parallel.ranks != place.world_size:
            raise ConfigError(f"parallel asks for {config.parallel.ranks} ranks, and there are {place.world_size}")
        folder = resolve_model(config.model, progress=progress)
        device = choose_device(config.model.device)

        def tell_store(address: str) -> None:
            self.report({"state": "store", "address": address})

        progress(f"rank {place.rank} of {place.world_size} joins the others")
        group = open_group(place.rank, place.world_size, place.store, place.host, tell_store, device)
        self._group = group
        progress(f"rank {place.rank} loads its share of {folder.path}")
        target = load_target(
            folder,
            dtype=config.model.dtype,
            device=config.model.device,
            trust_remote_code=config.model.trust_remote_code,
            threads=config.model.cpu_threads or _own_threads(device, place.world_size),
            parallel=config.parallel,
            ranks=group,
        )
        return target, group, config, load_tokenizer(folder) if place.rank == 0 else None


def check_ranks(config: Config, folder: ModelFolder, *, here: bool) -> None:
    """Refuse, before anything starts, ranks that the model can't be cut for or (here) that this machine has no devices
    for. ConfigError, SetupError."""
    ranks = config.parallel.ranks
    if ranks == 1:
        return
    split_of(hf.meta_model(read_config(folder.path)), config.parallel, folder.source)
    if not here:
        return
    cuda = choose_device(config.model.device).type == "cuda"
    there = torch.cuda.device_count() if cuda else len(os.sched_getaffinity(0))
    if ranks > there:
        key = "parallel.expert" if config.parallel.expert > 1 else "parallel.tensor"
        raise SetupError(
            f"{key} is {ranks}, and this machine has {there} {'GPUs' if cuda else 'CPUs'}, one of which each rank "
            f"needs; expected at most {there}, or set RAY_ADDRESS to a cluster that has more"
        )


def _own_threads(device: torch.device, ranks: int) -> int | None:
    """Ranks of one machine that all took its cores would wait for each other."""
    if device.type != "cpu":
        return None
    return max(len(os.sched_getaffinity(0)) // ranks, 1)
