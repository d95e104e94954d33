"""Methods by name: what `method` of a drafter in the config may say, and how it becomes a drafter.

A plug-in adds a method by an entry point in the group `draftwing.drafters`: its name is the method, its value a
`DrafterMethod`. Nothing here loads torch, and a method's module is imported only when it is asked for.
"""

from __future__ import annotations

import difflib
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from pydantic import ValidationError

from draftwing.config_errors import explain, refuse
from draftwing.config_models import DrafterConfig
from draftwing.drafters.base import Drafter, DrafterMethod, DrafterOptions
from draftwing.errors import ConfigError

GROUP = "draftwing.drafters"
BUILT_IN = {
    "none": "draftwing.drafters.none:METHOD",
    "ngram": "draftwing.drafters.ngram:METHOD",
    "draft_model": "draftwing.drafters.draft_model:METHOD",
    "suffix": "draftwing.drafters.suffix:METHOD",
    "auto": "draftwing.drafters.auto:METHOD",
    "lookahead": "draftwing.drafters.lookahead:METHOD",
    "eagle": "draftwing.drafters.eagle:EAGLE",
    "eagle2": "draftwing.drafters.eagle:EAGLE2",
    "eagle3": "draftwing.drafters.eagle:EAGLE3",
    "dflash": "draftwing.drafters.dflash:DFLASH",
    "dflash2": "draftwing.drafters.dflash:DFLASH2",
    "dspark": "draftwing.drafters.dflash:DSPARK",
    "medusa": "draftwing.drafters.medusa:METHOD",
    "mtp": "draftwing.drafters.mtp:METHOD",
}


def make_drafter(config: DrafterConfig, index: int = 0) -> Drafter:
    """The drafter a config names, not yet bound. ConfigError for an unknown method or wrong options.

    index: the entry's place in `drafters`, for messages.
    """
    method, options = check_drafter(config, index)
    return method.make(options)


def check_drafter(config: DrafterConfig, index: int = 0) -> tuple[DrafterMethod[Any], DrafterOptions]:
    """A drafter's method and options, checked. ConfigError as `make_drafter`."""
    method = find_method(config.method, f"drafters.{index}.method")
    try:
        return method, method.options.model_validate(config.options)
    except ValidationError as error:
        refuse([line for _, line in explain(error, method.options, ("drafters", index))])
        raise


def find_method(name: str, key: str = "method") -> DrafterMethod[Any]:
    """The method of this name, built in or plugged in. key: the setting that named it, for messages."""
    plugged = _plugged_in()
    if name in BUILT_IN:
        if name in plugged:
            raise ConfigError(
                f"{key} is {name!r}, which is built in, but the plug-in {plugged[name].value!r} claims the name too; "
                "uninstall it or let it take another name"
            )
        module, _, attribute = BUILT_IN[name].partition(":")
        found: object = getattr(import_module(module), attribute)
    elif name in plugged:
        found = _load(plugged[name], key)
    else:
        raise ConfigError(_unknown(name, key, available=sorted([*BUILT_IN, *plugged])))
    if not isinstance(found, DrafterMethod):
        raise ConfigError(
            f"{key} is {name!r}, but its plug-in gives a {type(found).__name__}; expected a DrafterMethod"
        )
    return found


def method_names() -> list[tuple[str, bool]]:
    """Every method, and whether a plug-in brings it: built in ones first."""
    return [(name, False) for name in BUILT_IN] + [(name, True) for name in sorted(set(_plugged_in()) - set(BUILT_IN))]


def _plugged_in() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}


def _load(point: EntryPoint, key: str) -> object:
    try:
        return point.load()
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"{key} is {point.name!r}, but its plug-in {point.value!r} can't be loaded: {error}"
        ) from error


def _unknown(name: str, key: str, available: list[str]) -> str:
    expected = ", ".join(available)
    near = difflib.get_close_matches(name, available, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"{key} is {name!r}{hint}; expected one of {expected}"
