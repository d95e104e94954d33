"""Draws the figures of docs/policy.md, from the policy's own code, as SVG.

usage: python benchmarks/policy_figures.py [--out docs/figures]
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from draftwing.policy.closed_form import expected_tokens
from draftwing.policy.cost import CostModel
from draftwing.policy.curves import BatchCell, CostCurves, VerifyCell
from draftwing.policy.solver import admit, path_keys, survival

WIDTH, HEIGHT, EDGE = 560, 300, 48
COLOURS = ("#1b6ca8", "#c4572a", "#3d8b57", "#7a5195")
# One thread of a CPU, ms by rows: not monotone, as measured ones are.
VERIFY = {1: 13.9, 2: 21.3, 3: 29.9, 4: 21.7, 8: 30.6, 16: 37.7, 32: 47.0}
LEVEL_MS = 1.0
Line = tuple[str, Sequence[float], Sequence[float]]


def chart(title: str, axes: tuple[str, str], lines: Sequence[Line], marks: Sequence[tuple[float, float]] = ()) -> str:
    """axes: names of x and y. lines: name, x, y. marks: points to ring."""
    xs, ys = np.concatenate([line[1] for line in lines]), np.concatenate([line[2] for line in lines])
    low, high = min(ys.min(), 0.0), ys.max() * 1.05

    def place(x: float, y: float) -> tuple[float, float]:
        across = EDGE + (x - xs.min()) / (xs.max() - xs.min()) * (WIDTH - 2 * EDGE)
        return across, HEIGHT - EDGE - (y - low) / (high - low) * (HEIGHT - 2 * EDGE)

    def text(x: float, y: float, words: str, anchor: str = "middle", colour: str = "#333") -> str:
        return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{words}</text>'

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        f'font-size="12" role="img" aria-label="{title}"><rect width="100%" height="100%" fill="#fff"/>',
        text(WIDTH / 2, 20, title),
        text(WIDTH / 2, HEIGHT - 8, axes[0]),
        text(EDGE - 36, EDGE - 12, axes[1], "start"),
    ]
    for y in np.linspace(low, high, 5):
        at = place(xs.min(), y)[1]
        parts.append(f'<path d="M{EDGE} {at:.1f}H{WIDTH - EDGE}" stroke="#ddd"/>')
        parts.append(text(EDGE - 6, at + 4, f"{y:.3g}", "end"))
    for x in np.linspace(xs.min(), xs.max(), 5):
        parts.append(text(place(x, low)[0], HEIGHT - EDGE + 16, f"{x:.3g}"))
    for i, (name, x, y) in enumerate(lines):
        points = " ".join("{:.1f},{:.1f}".format(*place(a, b)) for a, b in zip(x, y, strict=True))
        colour = COLOURS[i % len(COLOURS)]
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(text(EDGE + 8, EDGE + 6 + 16 * i, name, "start", colour))
    for x, y in marks:
        parts.append('<circle cx="{:.1f}" cy="{:.1f}" r="5" fill="none" stroke="#000"/>'.format(*place(x, y)))
    return "\n".join([*parts, "</svg>\n"])


def costs() -> CostModel:
    cells = tuple(VerifyCell(batch=1, rows=n, context=0, verify_ms=ms) for n, ms in VERIFY.items())
    return CostModel.fit(CostCurves(name="a CPU", verify=cells, draft_step_ms=(BatchCell(batch=1, ms=LEVEL_MS),)))


def speedups() -> str:
    """A chain of k at batch 1: what each draft length brings, by acceptance."""
    model, lengths = costs(), np.arange(13.0)
    plain = float(model.step_ms(1, 1))
    lines = []
    for alpha in (0.9, 0.7, 0.5):
        times = [float(model.step_ms(1, k + 1) + model.draft_ms(1, int(k))) for k in lengths]
        rates = [expected_tokens(alpha, int(k)) * plain / ms for k, ms in zip(lengths, times, strict=True)]
        lines.append((f"acceptance {alpha}", lengths, rates))
    return chart("Speed-up of a fixed draft length on a CPU", ("draft length k", "x plain"), lines)


def values() -> str:
    """One step of four sequences: tokens less lambda times time, for every number of nodes."""
    model, draw = costs(), np.random.default_rng(4)
    chances = draw.choice([0.95, 0.85, 0.6, 0.3], 4 * 6)
    parents = np.where(np.arange(24) % 6, np.arange(24) - 1, -1)
    keys = path_keys(chances, parents)
    step_ms, price = model.step_ms(4, 4 + np.arange(25)), 4 / float(model.step_ms(4, 4))
    found = admit(keys, step_ms, price)
    tokens = np.concatenate([[0.0], np.cumsum(np.sort(survival(keys))[::-1])])
    worth = tokens - price * (step_ms - step_ms[0])
    nodes = np.arange(25.0)
    best = len(found.nodes)
    lines = [("expected tokens", nodes, tokens), ("tokens - lambda * time", nodes, worth)]
    title = "The choice of a step: every number of nodes is looked at"
    return chart(title, ("nodes verified", "tokens"), lines, [(best, worth[best])])


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("docs/figures"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for name, drawn in (("policy_speedup.svg", speedups()), ("policy_choice.svg", values())):
        (args.out / name).write_text(drawn, encoding="utf-8")
        print(args.out / name)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
