"""Cost curves that no machine has: what `replay_day.py --costs benchmarks/data/costs` is to hold on as well.

Four were made by hand, each for something that the curves of real machines lack: steps late in a concave curve, levels
of drafts that cost a fifth of a step, tiles of eight rows, every row as dear as the next. The others are drawn: memory
bandwidth and a knee, experts, tiles, a CPU's uneven products, a straight line; and levels of 2 to 30 % of a step, which
grow by 0.1 to 6 % with each further node.

usage: python benchmarks/make_costs.py [--seeds 110 111 112 113 114] [--out benchmarks/data/costs]
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections.abc import Callable
from pathlib import Path

Curve = Callable[[int], float]  # of rows, or of nodes that a level grows from, in ms

ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
NODES = (1, 4, 16, 64, 256)
OUT = Path(__file__).parent / "data" / "costs"


def tiles(rows: int, size: int) -> int:
    return math.ceil(rows / size) - 1


BY_HAND: dict[str, tuple[Curve, Curve]] = {
    "late-steps": (
        lambda n: 9 + 0.35 * n**0.8 + 1.5 * (n > 16) + 4 * (n > 96),
        lambda n: 1.4 + 0.028 * (n - 1) ** 0.88,
    ),
    "dear-levels": (lambda n: 20 + 0.05 * n, lambda n: 4 + 0.01 * n),
    "tiles-of-8": (lambda n: 10 + 2 * tiles(n, 8) + 0.02 * n, lambda n: 0.8 + 0.02 * n),
    "steep": (lambda n: 5 + 1.2 * n, lambda n: 0.5 + 0.05 * n),
}


def between(draw: random.Random, low: float, high: float) -> float:
    """Evenly on a logarithmic scale."""
    return math.exp(draw.uniform(math.log(low), math.log(high)))


def bandwidth(draw: random.Random) -> Curve:
    base, knee = between(draw, 3, 40), between(draw, 24, 400)
    return lambda n: base * (max(1, n / knee) + 0.15 * min(1, n / knee))


def experts(draw: random.Random) -> Curve:
    shared, count = between(draw, 1, 6), draw.choice((8, 64, 128, 256))
    active = 2 if count == 8 else 8
    each, tail = between(draw, 10, 40), between(draw, 200, 800)
    one = shared + each * active / count
    return lambda n: max(shared + each * (1 - (1 - active / count) ** (n**0.9)), one * n / tail)


def stairs(draw: random.Random) -> Curve:
    base, size = between(draw, 3, 30), draw.choice((8, 16, 32))
    step = between(draw, 0.03, 0.3)
    return lambda n: base * (1 + step * tiles(n, size) + 0.001 * n)


def uneven(draw: random.Random) -> Curve:
    base, slope = between(draw, 10, 40), between(draw, 0.05, 0.4)
    factors = {n: draw.uniform(0.9, 1.15) for n in ROWS}
    return lambda n: base * (1 + slope * (n - 1)) ** 0.7 * factors[n]


def line(draw: random.Random) -> Curve:
    base, slope = between(draw, 4, 25), between(draw, 0.02, 0.25)
    return lambda n: base * (1 + slope * n)


FAMILIES = (bandwidth, experts, stairs, uneven, line)


def drawn(seed: int) -> tuple[str, Curve, Curve]:
    draw, family = random.Random(seed), FAMILIES[seed % len(FAMILIES)]
    verify = family(draw)
    level, growth = verify(1) * between(draw, 0.02, 0.3), between(draw, 0.001, 0.06)
    return f"{family.__name__}-{seed}", verify, lambda n: level * (1 + growth * (n - 1))


def document(name: str, verify: Curve, level: Curve) -> dict[str, object]:
    return {
        "name": name,
        "kind": "derived",
        "how": "made up by benchmarks/make_costs.py",
        "verify": [{"batch": 1, "rows": n, "context": 256, "verify_ms": round(verify(n), 4)} for n in ROWS],
        "draft_step_ms": [{"batch": n, "ms": round(level(n), 4)} for n in NODES],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="*", default=[110, 111, 112, 113, 114])
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    made = [(name, *curves) for name, curves in BY_HAND.items()] + [drawn(seed) for seed in args.seeds]
    for name, verify, level in made:
        (args.out / f"{name}.json").write_text(json.dumps(document(name, verify, level), indent=1) + "\n")


if __name__ == "__main__":
    main()
