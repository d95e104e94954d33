"""What the way to a drafter in another process costs: the wait for drafts, less the drafting itself.

A drafter process on loopback follows B sequences; each round commits a few tokens and asks for the next drafts. Prints
median and p95 per batch size, in microseconds. The bound is 500 us at the median.

usage: python benchmarks/remote_draft.py [--rounds 400] [--json]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from multiprocessing.connection import Connection
from statistics import quantiles
from time import perf_counter

import numpy as np

from draftwing.core import DraftShape, Request, SamplingParams, StepPlan
from draftwing.drafters.base import Accepted, DrafterTraits, NullController, TargetInfo
from draftwing.drafters.ngram import NgramDrafter
from draftwing.engine.sequence import Tracked
from draftwing.parallel.channel import ChannelServer
from draftwing.parallel.draft_server import DraftServer
from draftwing.parallel.endpoint import Endpoint
from draftwing.parallel.remote_drafter import RemoteDrafter, RemoteOptions

VOCABULARY, PROMPT, STEP_TOKENS = 50_000, 400, 3
BATCHES = (1, 8, 32)
BOUND_US = 500.0
WARM_UP = 20
COLUMNS = ("way_p50_us", "way_p95_us", "drafting_p50_us")


def serve(pipe: Connection) -> None:
    drafter = NgramDrafter()
    drafter.bind(TargetInfo(VOCABULARY, 1 << 20))
    channel = ChannelServer()
    pipe.send(channel.endpoint.to_dict())
    DraftServer(drafter, channel, None, VOCABULARY).run()


def measure(endpoint: Endpoint, batch: int, rounds: int) -> tuple[float, float, float]:
    """Median and p95 of the way there and back, and the median of drafting, in microseconds."""
    remote = RemoteDrafter(DrafterTraits(), RemoteOptions(deadline_s=5.0), [endpoint])
    draw = np.random.default_rng(batch)
    params = SamplingParams(temperature=0)
    sequences = []
    for i in range(batch):
        tokens = draw.integers(0, 50, PROMPT).tolist()  # few different tokens, so that lookups hit
        sequences.append(Tracked(Request(f"{batch}-{i}", tokens, params), list(tokens)))
    plan = StepPlan("lookup", (DraftShape((1,) * 4, 4),) * batch)
    ways, drafting = [], []
    for number in range(rounds + WARM_UP):
        before = remote.counts.drafted_s
        begun = perf_counter()
        remote.propose(sequences, plan, NullController())
        waited = perf_counter() - begun
        drafted = remote.counts.drafted_s - before
        if number >= WARM_UP:
            ways.append((waited - drafted) * 1e6)
            drafting.append(drafted * 1e6)
        for sequence in sequences:
            sequence.tokens.extend(draw.integers(0, 50, STEP_TOKENS).tolist())
        nothing = np.empty(0, dtype=np.int64)
        remote.commit(sequences, [Accepted(nothing, STEP_TOKENS)] * batch)
    assert remote.counts.late == 0, "a draft was late"
    remote.close()
    cuts = quantiles(ways, n=20)
    return cuts[9], cuts[18], quantiles(drafting, n=2)[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs,), daemon=True)
    process.start()
    endpoint = Endpoint.from_dict(ours.recv())
    rows = []
    try:
        for batch in BATCHES:
            median, tail, drafting = measure(endpoint, batch, args.rounds)
            rows.append({"batch": batch, "way_p50_us": median, "way_p95_us": tail, "drafting_p50_us": drafting})
    finally:
        process.terminate()
        process.join()
    if args.json:
        json.dump({"schema": 1, "bound_us": BOUND_US, "rows": rows}, sys.stdout, indent=2)
        print()
    else:
        print("batch   " + "   ".join(COLUMNS))
        for row in rows:
            print(f"{row['batch']:5}   " + "   ".join(f"{row[name]:10.0f}" for name in COLUMNS))
    return 0 if rows[0]["way_p50_us"] <= BOUND_US else 1


if __name__ == "__main__":
    raise SystemExit(main())
