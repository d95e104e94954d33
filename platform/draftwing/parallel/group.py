"""Brings the ranks of a replica together: one group for hidden states, and one over gloo for what rank 0 tells.

Rank 0 opens a TCPStore on a port that the system picks, and whoever starts the ranks hands its address to the others.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import psutil
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

from draftwing.core import IntArray
from draftwing.engine.batch import SequenceRows
from draftwing.engine.kv_cache import BlockPool
from draftwing.engine.runner import ModelRunner, Runner
from draftwing.errors import RankLost, SetupError
from draftwing.parallel.packet import Packer, Unpacker, Words, stop_packet

JOIN_S = 300.0
IDLE = timedelta(days=365)  # how long ranks may wait for rank 0's next step; a dead one closes its connection
FIRST_WORDS = 1024  # of a packet, 4 KB: what the other ranks read before they know its size
BUCKET_WORDS = 4096


@dataclass(slots=True)
class RankGroup:
    """A `draftwing.engine.shares.Ranks`. group: for tensors on the model's device. control: gloo."""

    rank: int
    size: int
    group: dist.ProcessGroup
    control: dist.ProcessGroup
    store: TCPStore

    def least(self, number: int) -> int:
        value = torch.tensor([number])
        with _peers():
            dist.all_reduce(value, dist.ReduceOp.MIN, group=self.control)
        return int(value)

    def leading(self, runner: ModelRunner, pool: BlockPool) -> Runner:
        return LeadingRunner(runner, self, Packer(pool.block_tokens))

    def send(self, words: Words) -> None:
        """Rank 0: one broadcast where the packet fits into 4 KB, a second one, of bucketed size, where it doesn't."""
        first = np.zeros(FIRST_WORDS, dtype=np.int32)
        first[0] = len(words)
        first[1 : 1 + len(words)] = words[: FIRST_WORDS - 1]
        rest = words[FIRST_WORDS - 1 :]
        with _peers():
            dist.broadcast(torch.from_numpy(first), group=self.control, group_src=0)
            if len(rest):
                more = np.zeros(_bucket(len(rest)), dtype=np.int32)
                more[: len(rest)] = rest
                dist.broadcast(torch.from_numpy(more), group=self.control, group_src=0)

    def receive(self) -> Words:
        """The other ranks: what rank 0 sends next."""
        first = np.zeros(FIRST_WORDS, dtype=np.int32)
        with _peers():
            dist.broadcast(torch.from_numpy(first), group=self.control, group_src=0)
            rest = int(first[0]) - (FIRST_WORDS - 1)
            if rest <= 0:
                return first[1 : 1 + first[0]]
            more = np.zeros(_bucket(rest), dtype=np.int32)
            dist.broadcast(torch.from_numpy(more), group=self.control, group_src=0)
        return np.concatenate([first[1:], more[:rest]])

    def close(self) -> None:
        dist.destroy_process_group()


def _bucket(words: int) -> int:
    return -(-words // BUCKET_WORDS) * BUCKET_WORDS


class LeadingRunner:
    """Rank 0's runner: tells the other ranks each step before it makes it with them."""

    def __init__(self, runner: ModelRunner, ranks: RankGroup, packer: Packer) -> None:
        self.vocab_size = runner.vocab_size
        self.packets = 0
        self.words = 0
        self._runner = runner
        self._ranks = ranks
        self._packer = packer
        self._moves: list[IntArray] = []

    def forward(self, sequences: Seq[SequenceRows]) -> torch.Tensor:
        moves = np.concatenate([np.empty((2, 0), dtype=np.int64), *self._moves], axis=1)
        self._moves = []
        words = self._packer.pack(sequences, moves)
        self.packets, self.words = self.packets + 1, self.words + len(words)
        self._ranks.send(words)
        with _peers():
            return self._runner.forward(sequences)

    def move(self, source: IntArray, target: IntArray) -> None:
        """Here at once; elsewhere before the next forward, which is the first to read there."""
        self._moves.append(np.stack([source, target]))
        self._runner.move(source, target)

    def stop(self) -> None:
        """Let the other ranks end."""
        self._ranks.send(stop_packet())


def follow(runner: ModelRunner, ranks: RankGroup, block_tokens: int) -> None:
    """What a rank other than 0 does: every step of rank 0's, until it stops. RankLost when one dies."""
    unpacker = Unpacker(block_tokens)
    while (step := unpacker.unpack(ranks.receive())) is not None:
        if step.moves.shape[1]:
            runner.move(step.moves[0], step.moves[1])
        with _peers():
            runner.forward(step.sequences)


@contextmanager
def _peers() -> Iterator[None]:
    """A collective that fails because a peer is gone raises RankLost."""
    try:
        yield
    except RuntimeError as error:
        if not _is_network(error):
            raise
        reason = str(error).partition("] ")[2].partition(". ")[0][:200]  # without its source line and its advice
        raise RankLost(f"another rank of this replica is gone: {reason or error}") from error


def _is_network(error: RuntimeError) -> bool:
    """gloo's own errors have no class of their own."""
    return isinstance(error, dist.DistError) or "gloo" in str(error)


def open_group(
    rank: int, size: int, store: str, host: str, on_store: Callable[[str], None], device: torch.device
) -> RankGroup:
    """Join the ranks of a replica. SetupError when they don't come together in time.

    store: host:port of rank 0's store; rank 0 opens one at `host` and tells its address by on_store. host: this
    process's own address, by which the others reach it.
    """
    if device.type == "cpu" and torch.accelerator.is_available():
        raise SetupError(
            "model.device is cpu and there are several ranks, but this process sees a GPU, which transformers would "
            "use; set CUDA_VISIBLE_DEVICES to nothing"
        )
    timeout = timedelta(seconds=JOIN_S)
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        os.environ.setdefault(variable, _interface(host))
    try:
        if rank == 0:
            opened = TCPStore(host, 0, size, is_master=True, wait_for_workers=False, timeout=timeout)
            on_store(f"{host}:{opened.port}")
        else:
            where, _, port = store.rpartition(":")
            opened = TCPStore(where, int(port), size, is_master=False, wait_for_workers=False, timeout=timeout)
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=opened, rank=rank, world_size=size, timeout=IDLE)
        control = dist.new_group(backend="gloo", timeout=IDLE)
        dist.barrier(group=control)
    except (RuntimeError, ValueError) as error:
        line = str(error).strip().splitlines()[0][:200]
        raise SetupError(f"rank {rank} of {size} could not join the others at {store or host}: {line}") from error
    assert dist.group.WORLD is not None
    return RankGroup(rank, size, dist.group.WORLD, control, opened)


def _interface(host: str) -> str:
    """The network interface of an address. SetupError where this machine has none with it."""
    if host.startswith("127."):
        host = "127.0.0.1"
    addresses = psutil.net_if_addrs()
    found = [name for name, entries in addresses.items() if any(entry.address == host for entry in entries)]
    if not found:
        raise SetupError(f"no network interface of this machine has the address {host}; its interfaces: {[*addresses]}")
    return found[0]
