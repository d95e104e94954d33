"""Find the value of every setting, and remember where it came from.

The first source that has a value wins: flag, environment, file, default. The file is the one named (`-c`), else
./draftwing.yaml, else $XDG_CONFIG_HOME/draftwing/config.yaml. The variable of `model.path` is DRAFTWING_MODEL__PATH:
sections are parted by two underscores. In variables and flags a text setting is taken as it is, any other as YAML, and
null clears a setting that may be null. All problems of all sources are reported together, a line each.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from draftwing.config_errors import closest, dotted, explain, refuse, section_in, unknown_key
from draftwing.config_models import (
    FROM_CHECKPOINT,
    CacheConfig,
    Config,
    DrafterConfig,
    LimitsConfig,
    ModelConfig,
    ParallelConfig,
    PolicyConfig,
    ServerConfig,
)
from draftwing.config_yaml import MAX_BYTES, Keys, parse_yaml
from draftwing.drafters.registry import check_drafter
from draftwing.errors import ConfigError

__all__ = [
    "CacheConfig",
    "Config",
    "DrafterConfig",
    "LimitsConfig",
    "LoadedConfig",
    "ModelConfig",
    "ParallelConfig",
    "PolicyConfig",
    "ServerConfig",
    "load_config",
    "parse_setting",
    "require_model",
    "with_environment",
]

ENV_PREFIX = "DRAFTWING_"
# Read elsewhere: by the tests, for the folder of converted weights, and by `draftwing k8s check`.
ENV_RESERVED = frozenset({"DRAFTWING_REQUIRE_ALL", "DRAFTWING_GOLDENS", "DRAFTWING_CACHE", "DRAFTWING_CRDS"})
# Kubernetes sets these in every pod beside a service called draftwing*.
_SERVICE_LINK = re.compile(r"DRAFTWING(_[A-Z0-9]+)*_(SERVICE_(HOST|PORT)(_[A-Z0-9_]+)?|PORT(_\d+_(TCP|UDP)(_\w+)?)?)")


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """The settings, where each came from ("flag", "env NAME", "file PATH:LINE" or "default"), and the file read."""

    config: Config
    origins: dict[str, str]
    file: Path | None = None


@dataclass(frozen=True, slots=True)
class _Source:
    """Where values come from. lines: for files, the line of each key."""

    origin: str
    lines: Mapping[Keys, int] | None = None

    def at(self, keys: Keys) -> str:
        """The origin of the value at keys, which may lie deeper than the setting itself."""
        if self.lines is None:
            return self.origin
        known = (self.lines[keys[:size]] for size in range(len(keys), 0, -1) if keys[:size] in self.lines)
        line = next(known, None)
        return self.origin if line is None else f"{self.origin}:{line}"

    def problem(self, keys: Keys, message: str) -> str:
        """The message with its place before it. A flag needs none: the user has just typed it."""
        place = self.at(keys).partition(" ")[2]
        return f"{place}: {message}" if place else message


_FLAG = _Source("flag")
_DEFAULT = _Source("default")


def settings() -> dict[str, FieldInfo]:
    """Every setting by its dotted key, in order. Sections are not settings; a list is one setting."""
    return dict(_settings(Config, ()))


def _settings(section: type[BaseModel], prefix: tuple[str, ...]) -> Iterator[tuple[str, FieldInfo]]:
    for name, field in section.model_fields.items():
        if inner := section_in(field.annotation):
            yield from _settings(inner, (*prefix, name))
        else:
            yield dotted((*prefix, name)), field


def load_config(
    file: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
) -> LoadedConfig:
    """Read all sources and check them. ConfigError lists every problem.

    file: None looks in the usual places. overrides: dotted key -> value, from flags. environ: None is this process's.
    """
    environ = os.environ if environ is None else environ
    found = _Found()
    file = file or _usual_file(environ)
    if file is not None:
        data, lines = parse_yaml(_read(file), str(file))
        found.add(data, _Source(f"file {file}", lines))
    found.add_environment(environ)
    for key, value in (overrides or {}).items():
        found.add(_nest({key: value}), _FLAG)
    return found.resolve(file)


def with_environment(config: Config, environ: Mapping[str, str] | None = None) -> Config:
    """The config with this process's variables over it, for those who got it from elsewhere than `load_config`.

    ConfigError lists every problem.
    """
    found = _Found()
    found.add(config.model_dump(exclude_unset=True), _Source("the given config"))
    found.add_environment(os.environ if environ is None else environ)
    return found.resolve(None).config


def require_model(config: Config) -> None:
    """ConfigError unless a target is configured."""
    if not config.model.path:
        raise ConfigError(
            "model.path is not set; give --model, a config file with model.path, or DRAFTWING_MODEL__PATH"
        )


def parse_setting(key: str, text: str, source: str = "") -> Any:
    """The value that a variable or a flag gives to the setting `key`. ConfigError if there is no such setting."""
    known = settings()
    if key not in known:
        raise ConfigError(unknown_key(tuple(key.split(".")), list(known)))
    takes_text, takes_null = _takes(known[key].annotation)
    if takes_text:
        return None if takes_null and text == "null" else text
    return parse_yaml(text, source or key)[0]


def _takes(annotation: Any) -> tuple[bool, bool]:
    """Whether a setting may be text, and whether it may be null."""
    if get_origin(annotation) is Annotated:
        return _takes(get_args(annotation)[0])
    if get_origin(annotation) is Literal:
        return any(isinstance(option, str) for option in get_args(annotation)), False
    if annotation in (str, type(None)):
        return annotation is str, annotation is not str
    options = [] if get_origin(annotation) is list else [_takes(option) for option in get_args(annotation)]
    return any(text for text, _ in options), any(null for _, null in options)


class _Found:
    """What the sources say, weakest first, and what is wrong with it."""

    def __init__(self) -> None:
        self._known = list(settings())
        self._values: dict[str, Any] = {}
        self._sources: dict[str, _Source] = {}
        self._problems: list[str] = []

    def add(self, data: Any, source: _Source) -> None:
        self._add(data, Config, (), source)

    def _add(self, data: Any, section: type[BaseModel], keys: tuple[str, ...], source: _Source) -> None:
        if data is None:  # a section whose lines are all commented out
            return
        if not isinstance(data, dict):
            what = f"{dotted(keys)} must be" if keys else "a config is"
            self._problems.append(source.problem(keys, f"{what} a mapping with {', '.join(section.model_fields)}"))
            return
        for name, value in data.items():
            here = (*keys, name)
            if name not in section.model_fields:
                self._problems.append(source.problem(here, unknown_key(here, self._known)))
            elif inner := section_in(section.model_fields[name].annotation):
                self._add(value, inner, here, source)
            else:
                self._values[dotted(here)] = value
                self._sources[dotted(here)] = source

    def add_environment(self, environ: Mapping[str, str]) -> None:
        names = {_variable(key): key for key in self._known}
        for name in sorted(environ):
            if not name.startswith(ENV_PREFIX) or name in ENV_RESERVED or _SERVICE_LINK.fullmatch(name):
                continue
            if name not in names:
                meant = closest(name.removeprefix(ENV_PREFIX).lower().replace("__", "."), self._known)
                hint = f"did you mean {_variable(meant)}?" if meant else "`draftwing config show` lists the settings"
                self._problems.append(f"environment: {name[:100]} is not a setting; {hint}")
                continue
            try:
                value = parse_setting(names[name], environ[name], source=name)
            except ConfigError as error:
                self._problems.append(str(error))
            else:
                self.add(_nest({names[name]: value}), _Source(f"env {name}"))

    def resolve(self, file: Path | None) -> LoadedConfig:
        config = self._validated()
        self._check_drafters()
        refuse(self._problems)
        assert config is not None
        origins = {key: self._sources.get(key, _DEFAULT).at(tuple(key.split("."))) for key in self._known}
        return LoadedConfig(config, origins, file)

    def _check_drafters(self) -> None:
        """Their options, which only the methods know."""
        drafters = self._values.get("drafters")
        for i, entry in enumerate(drafters if isinstance(drafters, list) else []):
            try:
                drafter = DrafterConfig.model_validate(entry)
                if drafter.method != FROM_CHECKPOINT or "path" not in drafter.options:
                    check_drafter(drafter, i)
            except ValidationError:  # reported with the rest of the config
                continue
            except ConfigError as error:
                place = self._sources["drafters"]
                self._problems += [place.problem(("drafters", i), line) for line in str(error).splitlines()]

    def _validated(self) -> Config | None:
        try:
            return Config.model_validate(_nest(self._values))
        except ValidationError as error:
            for keys, message in explain(error, Config):
                self._problems.append(self._source_of(dotted(keys)).problem(keys, message))
            return None

    def _source_of(self, key: str) -> _Source:
        """Of the setting that key is or lies in, else of one in the section that key is."""
        for setting, source in self._sources.items():
            if f"{key}.".startswith(f"{setting}.") or f"{setting}.".startswith(f"{key}."):
                return source
        return _DEFAULT


def _variable(key: str) -> str:
    return ENV_PREFIX + key.upper().replace(".", "__")


def _nest(values: Mapping[str, Any]) -> dict[str, Any]:
    """{"a.b": 1} as {"a": {"b": 1}}."""
    nested: dict[str, Any] = {}
    for key, value in values.items():
        *sections, name = key.split(".")
        place = nested
        for section in sections:
            place = place.setdefault(section, {})
        place[name] = value
    return nested


def _usual_file(environ: Mapping[str, str]) -> Path | None:
    places = [Path("draftwing.yaml")]
    if home := environ.get("XDG_CONFIG_HOME") or (environ.get("HOME") and f"{environ['HOME']}/.config"):
        places.append(Path(home) / "draftwing" / "config.yaml")
    return next((place for place in places if place.exists()), None)


def _read(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
        return data.decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"config file {file} can't be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"config file {file} is not UTF-8 text (byte {error.start})") from None
