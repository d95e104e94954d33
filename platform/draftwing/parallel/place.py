"""Which rank of a replica a process is."""

from __future__ import annotations

from dataclasses import dataclass

from draftwing.errors import ConfigError


@dataclass(frozen=True, slots=True)
class RankPlace:
    """store: host:port of rank 0's TCPStore, empty for rank 0 itself, which opens it. host: this process's address."""

    rank: int = 0
    world_size: int = 1
    store: str = ""
    host: str = "127.0.0.1"

    def check(self) -> None:
        """ConfigError for a place that there is not."""
        if not 0 <= self.rank < self.world_size:
            raise ConfigError(f"rank {self.rank} of {self.world_size}: ranks go from 0 to world size - 1")
        if self.rank and not self.store:
            raise ConfigError(f"rank {self.rank} needs the address of rank 0's store")


ONLY_RANK = RankPlace()
