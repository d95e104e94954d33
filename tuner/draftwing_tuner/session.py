"""What every part of `draftwing tune` works on: the engine of a config, what it is, and where results go."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from draftwing.checkpoints.cache import Progress, cache_root
from draftwing.checkpoints.tokenizer import TextTokenizer
from draftwing.config_models import Config, PolicyConfig
from draftwing.engine.build import build_local
from draftwing.engine.identity import profile_key
from draftwing.engine.step import Engine
from draftwing.errors import ConfigError
from draftwing.policy.artifact import Key
from draftwing.prompts import prompt_texts, random_prompts
from draftwing_tuner.bench import CLOCKS, Clock
from draftwing_tuner.prompts import PROMPTS


@dataclass(frozen=True, slots=True)
class Session:
    """key: of the profile. clock: name of the one that times. out: a folder that exists.

    config: with policy `off`, whatever it was: parts of tuning set the policies they need.
    """

    config: Config
    engine: Engine
    tokenizer: TextTokenizer | None
    key: Key
    clock: str
    out: Path

    @property
    def now(self) -> Clock:
        return CLOCKS[self.clock]

    @property
    def block(self) -> bool:
        return self.engine.drafting.drafter.traits.stop == "block"

    @property
    def file_key(self) -> dict[str, str]:
        return {**self.key, "clock": self.clock}

    def prompts(self, path: Path | None) -> list[list[int]]:
        """Token ids of the file's prompts, else of a few that come along."""
        if self.tokenizer is None:
            if path is not None:
                raise ConfigError(f"{self.config.model.path} has no tokenizer, so --prompts {path} can't be read")
            return random_prompts(self.engine.runner.vocab_size)
        return [self.tokenizer.encode(text) for text in (PROMPTS if path is None else prompt_texts(path))]


def open_session(config: Config, *, clock: str, out: Path | None, tell: Progress) -> Session:
    """Builds the engine. out None: a folder of the cache, the same for the same machine, model and drafter.

    ConfigError where the CPU clock would not tell the time of a step.
    """
    config = config.model_copy(update={"policy": PolicyConfig(mode="off")})
    engine, tokenizer = build_local(config, progress=tell)
    key = profile_key(config, engine)
    if clock == "cpu" and key["threads"] != "1":
        raise ConfigError(
            "--clock cpu adds up the time of all threads, which is no step's time; "
            "set model.cpu_threads: 1, or use --clock wall"
        )
    if out is None:
        name = hashlib.sha256(json.dumps({**key, "clock": clock}, sort_keys=True).encode()).hexdigest()[:16]
        out = cache_root() / "tune" / name
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out {out} can't be made: {error.strerror}") from error
    tell(f"results in {out}")
    return Session(config, engine, tokenizer, key, clock, out)
