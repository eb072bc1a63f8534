"""YAML as people expect it: YAML 1.2's plain values, no duplicate keys, every key's line known."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import yaml

from fedbench.errors import ConfigurationError

__all__ = ["Document", "KeyPath", "dump", "parse_document", "parse_value"]

KeyPath = tuple[str | int, ...]
"""Keys and positions from the top of a document to a value."""

_NUMBER_STARTS = list("-+.0123456789")


class _Rules:
    """YAML 1.2's core schema in place of PyYAML's 1.1.

    In 1.1 ``no`` and ``off`` are false, ``1e-3`` is text, ``1:30`` is ninety and ``2024-01-01``
    is a date.
    """

    @classmethod
    def install(cls, target: type[yaml.SafeLoader] | type[yaml.SafeDumper]) -> None:
        target.yaml_implicit_resolvers = {}
        for tag, pattern, first in (
            ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
            ("int", r"[-+]?[0-9]+", _NUMBER_STARTS),
            (
                "float",
                r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"
                r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
                _NUMBER_STARTS,
            ),
            ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
        ):
            target.add_implicit_resolver(
                f"tag:yaml.org,2002:{tag}", re.compile(rf"(?:{pattern})\Z"), first
            )


class _Loader(yaml.SafeLoader):
    pass


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        """Write equal objects out in full: anchors are hard to read."""
        return True


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    # PyYAML writes some line breaks of Unicode as they are, and reads them back as others.
    style = None if text.isprintable() else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


def _decimal(loader: _Loader, node: yaml.ScalarNode) -> int:
    return int(node.value)  # 010 is ten here; PyYAML would read it as octal


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: dict[str, int] = {}
    for key, _ in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode):
            raise ConfigurationError(f"line {line}: a key must be plain text.")
        if key.value in seen:
            raise ConfigurationError(
                f"line {line}: the key {key.value!r} is in the same mapping already, on line "
                f"{seen[key.value]}. Remove one of the two."
            )
        seen[key.value] = line
    return {key.value: loader.construct_object(value, deep=True) for key, value in node.value}


_Rules.install(_Loader)
_Rules.install(_Dumper)
_Dumper.add_representer(str, _text)
_Loader.add_constructor("tag:yaml.org,2002:int", _decimal)
_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)


@dataclass(frozen=True)
class Document:
    """A parsed document.

    Attributes
    ----------
    value : object
        Mappings with text keys, lists and plain values.
    lines : dict of tuple to int
        Line of every key and list item, from 1.
    """

    value: Any
    lines: dict[KeyPath, int] = field(default_factory=dict)


def parse_document(text: str) -> Document:
    """Return the value of a YAML document and the line of each of its keys.

    Raises
    ------
    ConfigurationError
        If the text is not YAML, has a key twice, or has a tag that is no plain value; the
        message says on which line.
    """
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return Document(None)
            value = loader.construct_document(node)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = "" if mark is None else f"line {mark.line + 1}: "
        raise ConfigurationError(f"{line}not YAML: {error.problem or error.context}.") from None
    except yaml.YAMLError as error:
        raise ConfigurationError(f"not YAML: {str(error).splitlines()[0]}.") from None
    lines: dict[KeyPath, int] = {}
    _note_lines(node, (), lines)
    return Document(value, lines)


def _note_lines(node: yaml.Node, path: KeyPath, lines: dict[KeyPath, int]) -> None:
    children: list[tuple[str | int, yaml.Node, yaml.Node]] = []
    if isinstance(node, yaml.MappingNode):
        children = [(key.value, key, value) for key, value in node.value]
    elif isinstance(node, yaml.SequenceNode):
        children = [(position, item, item) for position, item in enumerate(node.value)]
    for name, key, value in children:
        here = (*path, name)
        lines[here] = key.start_mark.line + 1
        _note_lines(value, here, lines)


def parse_value(text: str) -> Any:
    """Return the value that `text` would have after a colon: a number, text, a list, ..."""
    return parse_document(text).value


def dump(value: Any) -> str:
    """Return `value` as YAML that :func:`parse_document` reads back to an equal value."""
    text: str = yaml.dump(
        value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False
    )
    return text
