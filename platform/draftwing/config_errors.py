"""What is wrong with a config, in one line per problem: where, which setting, its value, and what is accepted."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from pydantic import BaseModel, SecretStr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from draftwing.config_yaml import Keys
from draftwing.errors import ConfigError
from draftwing.limits import shown

HIDDEN = "(hidden)"
MAX_PROBLEMS = 20
_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text", SecretStr: "text"}


def dotted(keys: Iterable[str | int]) -> str:
    return ".".join(map(str, keys))


def refuse(problems: Sequence[str]) -> None:
    """Raise all problems as one ConfigError, a line each; nothing if there are none."""
    if problems:
        more = len(problems) - MAX_PROBLEMS
        raise ConfigError("\n".join([*problems[:MAX_PROBLEMS], *([f"and {more} more"] if more > 0 else [])]))


def closest(unknown: str, known: Sequence[str]) -> str | None:
    """The dotted key that was probably meant: a near spelling in the same section, the same word in another, any."""
    section, _, word = unknown[:100].rpartition(".")
    siblings = {name: key for key in known for place, _, name in [key.rpartition(".")] if place == section}
    if near := difflib.get_close_matches(word, siblings, n=1, cutoff=0.65):
        return siblings[near[0]]
    if elsewhere := [key for key in known if key.rpartition(".")[2] == word]:
        return elsewhere[0]
    # Within a section that exists, the shared beginning would make any key look near.
    anywhere = [] if section and siblings else difflib.get_close_matches(unknown[:100], known, n=1, cutoff=0.7)
    return next(iter(anywhere), None)


def unknown_key(keys: Keys, known: Sequence[str]) -> str:
    """One line for a key that no setting has. known: the settings."""
    key = dotted(keys)
    parts = [key.split(".") for key in known]
    names = list(dict.fromkeys(dotted(part[:size]) for part in parts for size in range(1, len(part) + 1)))
    if key in names:
        hint = f"write {keys[-1]} as nested keys"
    elif meant := closest(key, [name for name in names if not key.startswith(f"{name}.")]):
        hint = f"did you mean {meant}?"
    else:
        siblings = [name for name in names if name.rpartition(".")[0] == dotted(keys[:-1])]
        hint = f"expected one of {', '.join(name.rpartition('.')[2] for name in siblings)}"
    return f"{shown(key)[1:-1]} is not a setting; {hint}"


def explain(error: ValidationError, root: type[BaseModel], prefix: Keys = ()) -> list[tuple[Keys, str]]:
    """Each problem as its keys and one line. root: the model that refused; prefix: where it stands in the config."""
    return [
        ((*prefix, *details["loc"]), _line(details, root, prefix))
        for details in error.errors(include_url=False)
        if details["type"] != "default_factory_not_called"  # follows from another problem
    ]


def _line(details: ErrorDetails, root: type[BaseModel], prefix: Keys) -> str:
    loc = details["loc"]
    key = dotted((*prefix, *loc))
    if details["type"] == "extra_forbidden":
        parent = _field(root, loc[:-1])
        fields = (section_in(parent.annotation) if parent else root) or root
        return unknown_key((*prefix, *loc), [dotted((*prefix, *loc[:-1], name)) for name in fields.model_fields])
    field = _field(root, loc)
    expected = accepted(field) if field else details["msg"]
    if details["type"] == "missing":
        return f"{key} is missing; expected {expected}"
    value = _value(details["input"], field)
    if details["type"] == "value_error":  # raised by a validator of ours, which says what follows the value
        return f"{key} is {value}{details['ctx']['error']}"
    return f"{key} is {value}; expected {expected}"


def _value(value: Any, field: FieldInfo | None) -> str:
    """A refused value as it would be written in YAML, shortened; never a secret."""
    if field and holds_secret(field.annotation):
        return HIDDEN
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return shown(value)


def accepted(field: FieldInfo) -> str:
    """What a setting may be, as words: its description if it has one, else from its type and range."""
    if field.description:
        return field.description
    options = [option for option in _options(field.annotation) if option is not NoneType]
    words = [_kind(option, field.metadata) if len(options) == 1 else _words(option) for option in options]
    return " or ".join([*(["null"] if NoneType in _options(field.annotation) else []), *words])


def _words(annotation: Any) -> str:
    return accepted(FieldInfo.from_annotation(annotation))


def _kind(annotation: Any, metadata: Sequence[Any]) -> str:
    if get_origin(annotation) is Annotated:
        return _words(annotation)
    if get_origin(annotation) is Literal:
        *others, last = map(repr, get_args(annotation))
        return f"{', '.join(others)} or {last}" if others else last
    if get_origin(annotation) is list:
        return f"a list{_range(metadata)} of {_words(get_args(annotation)[0])}"
    if section := section_in(annotation):
        return f"a mapping with {', '.join(section.model_fields)}"
    return _KINDS.get(annotation, "another value") + _range(metadata)


def _range(metadata: Sequence[Any]) -> str:
    """Bounds as words, with a leading space; "" if there are none."""
    low = high = ""
    for bound in metadata:
        match bound:
            case Ge(ge=number) | MinLen(min_length=number):
                low = f"at least {number}"
            case Gt(gt=number):
                low = f"above {number}"
            case Le(le=number) | MaxLen(max_length=number):
                high = f"at most {number}"
            case Lt(lt=number):
                high = f"below {number}"
    both = ", ".join(filter(None, (low, high)))
    return f" ({both})" if both else ""


def section_in(annotation: Any) -> type[BaseModel] | None:
    """The model that a setting's own keys belong to, if it is a section (or may be null instead)."""
    models = (option for option in _options(annotation) if isinstance(option, type) and issubclass(option, BaseModel))
    return next(models, None)


def holds_secret(annotation: Any) -> bool:
    if section := section_in(annotation):
        return any(holds_secret(field.annotation) for field in section.model_fields.values())
    return annotation is SecretStr or any(holds_secret(part) for part in get_args(annotation))


def _field(root: type[BaseModel], loc: Keys) -> FieldInfo | None:
    """The definition of the setting at loc, if there is one."""
    field = FieldInfo.from_annotation(root)
    for part in loc:
        if isinstance(part, int):
            items = [get_args(option)[0] for option in _options(field.annotation) if get_origin(option) is list]
            found = FieldInfo.from_annotation(items[0]) if items else None
        else:
            section = section_in(field.annotation)
            found = section.model_fields.get(part) if section else None
        if found is None:
            return None
        field = found
    return field


def _options(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
