"""YAML as config files need it: plain data with line numbers, and no surprises.

The types are those of YAML 1.2's core schema, so `mode: off`, `revision: 1_000` and `name: 12:30` stay text. Duplicate
keys, aliases, merge keys, tags and several documents are refused with their line: each hides what a file says.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from draftwing.errors import ConfigError

Keys = tuple[str | int, ...]
MAX_BYTES = 2**20
MAX_DEPTH = 20

_PREFIX = "tag:yaml.org,2002:"
_BOOLS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}


class _CoreLoader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 (PyYAML's own protocol)
    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent):
            raise _Refused("aliases (*name) are not accepted; write the value out", event)
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise _Refused(f"nested deeper than {MAX_DEPTH} levels", event)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


for _tag, _pattern, _first in (
    ("null", r"|~|null|Null|NULL", ["", "~", "n", "N"]),
    ("bool", "|".join(_BOOLS), list("tTfF")),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    (
        "float",
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
):
    _CoreLoader.add_implicit_resolver(_PREFIX + _tag, re.compile(rf"(?:{_pattern})\Z"), _first)


class _Refused(Exception):
    """What a file may not hold, and the event or node that says where."""

    def __init__(self, message: str, place: Any) -> None:
        super().__init__(message)
        self.line = place.start_mark.line + 1


def parse_yaml(text: str, source: str) -> tuple[Any, dict[Keys, int]]:
    """The data of one YAML document, and the line of each key and list entry by its path.

    source: what error messages call the text. An empty document is None. ConfigError: one line, with the line number.
    """
    if len(text) > MAX_BYTES:
        raise ConfigError(f"{source}: {len(text)} characters; a config has at most {MAX_BYTES}")
    lines: dict[Keys, int] = {}
    try:
        loader = _CoreLoader(text)
        try:
            node = loader.get_single_node()
            return (None if node is None else _build(node, (), lines)), lines
        finally:
            loader.dispose()
    except _Refused as error:
        raise ConfigError(f"{source}:{error.line}: {error}") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f":{mark.line + 1}" if mark else ""
        what = ", ".join(part for part in (error.context, error.problem) if part)
        raise ConfigError(f"{source}{where}: not valid YAML: {what}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ConfigError(
            f"{source}:{line}: the character U+{int(error.character):04X} is not allowed in YAML"
        ) from None


def _build(node: yaml.Node, path: Keys, lines: dict[Keys, int]) -> Any:
    if isinstance(node, yaml.MappingNode) and node.tag == _PREFIX + "map":
        return _mapping(node, path, lines)
    if isinstance(node, yaml.SequenceNode) and node.tag == _PREFIX + "seq":
        for i, item in enumerate(node.value):
            lines[(*path, i)] = item.start_mark.line + 1
        return [_build(item, (*path, i), lines) for i, item in enumerate(node.value)]
    if isinstance(node, yaml.ScalarNode):
        return _scalar(node)
    raise _Refused(f"the tag {node.tag!r} is not accepted; use plain values", node)


def _mapping(node: yaml.MappingNode, path: Keys, lines: dict[Keys, int]) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key = _scalar(key_node) if isinstance(key_node, yaml.ScalarNode) else None
        if not isinstance(key, str):
            raise _Refused("a key must be text", key_node)
        here = (*path, key)
        if here in lines:
            raise _Refused(f"{'.'.join(map(str, here))} is set twice, first in line {lines[here]}; keep one", key_node)
        lines[here] = key_node.start_mark.line + 1
        data[key] = _build(value_node, here, lines)
    return data


def _scalar(node: yaml.ScalarNode) -> Any:
    text = node.value
    try:
        match node.tag.removeprefix(_PREFIX):
            case "str":
                return text
            case "null":
                return None
            case "bool":
                return _BOOLS[text]
            case "int":
                return int(text, 0 if text[:2] in ("0x", "0o") else 10)
            case "float":
                return float(text.replace(".inf", "inf").replace(".nan", "nan") if text[-1:].isalpha() else text)
    except (KeyError, ValueError):
        raise _Refused(f"not a value of type {node.tag.removeprefix(_PREFIX)}", node) from None
    raise _Refused(f"the tag {node.tag!r} is not accepted; use plain values", node)
