"""`draftwing bench acceptance`: how far drafts are accepted, by drafter, position, temperature and acceptance rule."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftwing.checkpoints.methods import settle_methods
from draftwing.commands.common import add_config_flags, config_from_args, help_of, print_json, say, tell
from draftwing.config_models import BLIND_MODE, Config
from draftwing.core import Request, SamplingParams
from draftwing.errors import ConfigError, DraftwingError, SetupError
from draftwing.limits import MAX_TOKENS, check_params
from draftwing.prompts import prompt_texts, random_prompts

if TYPE_CHECKING:
    from draftwing.engine.acceptance import Verifies

SCHEMA = 1
TEMPERATURES = (0.0, 0.7, 1.0)
RULES = ("invariant", "rejection")


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser("bench", help="measure", allow_abbrev=False)
    parser.set_defaults(run=help_of(parser))
    below = parser.add_subparsers(title="what", metavar="WHAT")
    acceptance = below.add_parser(
        "acceptance",
        help="how far drafts are accepted",
        description="Run prompts with each configured drafter and count what was drafted and accepted at each "
        "position, by temperature and by acceptance rule (the setting `sampling`).",
        allow_abbrev=False,
    )
    acceptance.add_argument(
        "--prompts", type=Path, metavar="FILE", help='JSON lines of {"prompt": ...}; default: built in'
    )
    acceptance.add_argument("--max-tokens", type=int, default=64, metavar="N", help="new tokens of each (default: 64)")
    acceptance.add_argument("--rule", choices=(*RULES, "both"), default="both", help="default: both")
    acceptance.add_argument("--json", action="store_true", help="one JSON document instead of a table")
    acceptance.add_argument("--parquet", type=Path, metavar="FILE", help="also write the rows there (needs pyarrow)")
    add_config_flags(acceptance)
    acceptance.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    loaded = config_from_args(args)
    config = settle_methods(loaded.config, tell)
    if config.policy.mode == "off":
        raise ConfigError("nothing would be drafted: choose a drafter and a policy (--drafter ngram --draft-tokens 4)")
    if loaded.origins["policy.mode"] == "default":  # whole drafts: adaptive verifies the nodes that are likely
        config = config.model_copy(update={"policy": config.policy.model_copy(update={"mode": BLIND_MODE})})
    if args.parquet is not None:
        _pyarrow()
    check_params(SamplingParams(max_tokens=args.max_tokens), MAX_TOKENS)
    texts = prompt_texts(args.prompts)
    rules = RULES if args.rule == "both" else (args.rule,)
    if "rejection" in rules and not config.policy.blind:
        raise ConfigError(
            f"policy.mode is {config.policy.mode!r}, and the rule rejection needs off or fixed; "
            "give --rule invariant, or a fixed mode (--draft-tokens 4)"
        )
    rows = [
        row for one in _each_drafter(config) for rule in rules for row in _measure(one, rule, texts, args.max_tokens)
    ]
    if args.parquet is not None:
        _write(rows, args.parquet)
    if args.json:
        print_json({"schema": SCHEMA, "policy": config.policy.mode, "prompts": len(texts), "rows": rows})
    else:
        _table(rows)
    return 0


def _each_drafter(config: Config) -> list[Config]:
    """The config with each drafter alone; one that chooses among others comes last, with them."""
    alone = [
        config.model_copy(update={"drafters": [entry]})
        for entry in config.drafters
        if entry.method not in ("auto", "none")
    ]
    return [*alone, config] if len(config.drafters) > 1 else alone


def _measure(config: Config, rule: str, texts: list[str], max_tokens: int) -> list[dict[str, Any]]:
    """One row per temperature and position."""
    from draftwing.engine.acceptance import watched
    from draftwing.engine.build import build_local
    from draftwing.offline import acceptance_length, run_all

    engine, tokenizer = build_local(config.model_copy(update={"sampling": rule}), progress=tell)
    prompts = [tokenizer.encode(t) for t in texts] if tokenizer else random_prompts(engine.runner.vocab_size)
    rows: list[dict[str, Any]] = []
    for temperature in TEMPERATURES:
        verifies = watched(engine)
        params = SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=7)
        outputs = run_all(engine, [Request(f"{temperature}/{i}", prompt, params) for i, prompt in enumerate(prompts)])
        name, length = config.drafter_name, acceptance_length(outputs)
        if failed := engine.drafting.failures or engine.counters.bad_drafts:
            raise DraftwingError(f"drafter {name} failed or was refused {failed} times, so its rates mean nothing")
        method = next(entry.method for entry in config.drafters if entry.name == name)
        common = {"drafter": name, "method": method, "rule": rule, "temperature": temperature, "length": length}
        rows += [common | row for row in _positions(verifies)]
    return rows


def _positions(verifies: Verifies) -> list[dict[str, Any]]:
    """Per position: verifies whose draft got there after all before was accepted, and those that accepted there too."""
    rows = []
    for position in range(1, max((drafted for drafted, _ in verifies), default=0) + 1):
        reached = sum(drafted >= position and accepted >= position - 1 for drafted, accepted in verifies)
        accepted = sum(accepted >= position for _, accepted in verifies)
        rate = accepted / reached if reached else None
        rows.append({"position": position, "reached": reached, "accepted": accepted, "rate": rate})
    return rows or [{"position": 0, "reached": 0, "accepted": 0, "rate": None}]


def _table(rows: list[dict[str, Any]]) -> None:
    say(f"{'drafter':12} {'rule':10} {'temp.':>5} {'length':>6}  accepted where reached, by position")
    groups: dict[tuple[Any, ...], list[str]] = {}
    for row in rows:
        key = (row["drafter"], row["rule"], row["temperature"], row["length"])
        rate = "-" if row["rate"] is None else f"{row['rate']:.2f}"
        groups.setdefault(key, []).append(f"{rate} of {row['reached']}")
    for (drafter, rule, temperature, length), rates in groups.items():
        say(f"{drafter:12} {rule:10} {temperature:5.1f} {length:6.2f}  {', '.join(rates)}")


def _pyarrow() -> Any:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise SetupError("--parquet needs pyarrow; install draftwing[bench]") from error
    return pyarrow


def _write(rows: list[dict[str, Any]], path: Path) -> None:
    pyarrow = _pyarrow()
    table = pyarrow.Table.from_pylist(rows).replace_schema_metadata({"draftwing_schema": str(SCHEMA)})
    try:
        pyarrow.parquet.write_table(table, path)
    except OSError as error:
        raise ConfigError(f"--parquet {path} can't be written: {error}") from error
