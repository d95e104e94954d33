"""What deciding costs: the solver's numeric core, median CPU time, beside its bound.

usage: python benchmarks/policy_cost.py [--rounds 400] [--json]
Exit code 1: the core takes more than 100 us at 256 sequences x 8 nodes.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from functools import partial
from time import process_time_ns

import numpy as np

from draftwing.policy.adaptive import LOOK_AHEAD
from draftwing.policy.solver import admit, look_ahead, path_keys

BOUND_US = 100.0
SIZES = ((1, 8), (16, 8), (64, 8), (256, 8))


def median_us(call: Callable[[], object], rounds: int) -> float:
    times = []
    for _ in range(rounds):
        started = process_time_ns()
        call()
        times.append(process_time_ns() - started)
    return float(np.median(times)) / 1e3


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    rows: list[dict[str, float]] = []
    for batch, depth in SIZES:
        count = batch * depth
        acceptance = rng.random(count)
        parents = np.where(np.arange(count) % depth, np.arange(count) - 1, -1)
        step_ms = 5 + 0.01 * np.arange(count + LOOK_AHEAD * batch + 1)
        keys = path_keys(acceptance, parents, depth)
        front = np.sort(rng.random(batch))[::-1]
        means, level_ms = np.full(LOOK_AHEAD, 0.7), np.cumsum(np.full((LOOK_AHEAD, batch + 1), 0.3), axis=0)
        means[0] = 1.0
        chain = partial(path_keys, acceptance, parents, depth)
        choice = partial(admit, keys, step_ms[: count + 1], 0.2)
        ahead = partial(look_ahead, acceptance, front, means, step_ms, 0.2, level_ms)
        times: dict[str, Callable[[], object]] = {"keys_us": chain, "admit_us": choice, "look_ahead_us": ahead}
        rows.append({"sequences": batch, "nodes": depth} | {k: median_us(v, args.rounds) for k, v in times.items()})
    core = rows[-1]["keys_us"] + rows[-1]["admit_us"]
    if args.json:
        print(json.dumps({"schema": 1, "bound_us": BOUND_US, "core_us": core, "rows": rows}))
    else:
        for row in rows:
            print("  ".join(f"{name} {value:.4g}" for name, value in row.items()))
        print(f"core at 256 x 8: {core:.1f} us, bound {BOUND_US:.0f} us")
    return int(core > BOUND_US)


if __name__ == "__main__":
    sys.exit(main())
