"""What is wrong with a configuration, said with the place, the key, the value and the remedy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from fedbench.configuration.yaml_text import KeyPath
from fedbench.errors import ConfigurationError
from fedbench.registry import did_you_mean

__all__ = ["Origins", "Problem", "problems_of", "refuse", "suggestion"]

Problem = tuple[KeyPath, str]
"""Where a value is in the configuration, and a sentence about it."""

_EXPECTED = {
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "string_too_short": "text that is not empty",
    "finite_number": "a finite number",
    "too_short": "a list that is not empty",
    "list_type": "a list",
    "tuple_type": "a list",
    "is_instance_of": "a list",
    "dict_type": "a mapping",
    "mapping_type": "a mapping",
    "model_type": "a name, or a mapping with a name and options",
    "none_required": "left out",
}
_BOUNDS = {
    "greater_than_equal": ("at least", "ge"),
    "greater_than": ("greater than", "gt"),
    "less_than_equal": ("at most", "le"),
    "less_than": ("less than", "lt"),
}


class Origins:
    """Where each part of a configuration was written: ``run.yaml:7``, ``--seed``, ..."""

    def __init__(self, known: Mapping[KeyPath, str] | None = None) -> None:
        self._known = dict(known or {})

    def note(self, path: KeyPath, origin: str) -> None:
        """Remember where the value at `path` comes from; all below it come from there too."""
        self.forget(path)
        self._known[path] = origin

    def forget(self, path: KeyPath) -> None:
        """Drop what is known of `path` and below."""
        for known in [p for p in self._known if p[: len(path)] == path]:
            del self._known[known]

    def copy(self) -> Origins:
        """Return an independent copy."""
        return Origins(self._known)

    def find(self, path: KeyPath) -> str | None:
        """Return where `path`, or the nearest thing around it, was written."""
        for length in range(len(path), -1, -1):
            if path[:length] in self._known:
                return self._known[path[:length]]
        return None


def suggestion(word: str, known: Iterable[str], plural: str) -> str:
    """Return the sentence that says which word may have been meant, or which ones there are."""
    known = list(known)
    otherwise = f"{plural}: {', '.join(known)}." if known else "There is no other key here."
    return did_you_mean(word, known).strip() or otherwise


def problems_of(error: ValidationError, keys: Sequence[str], at: KeyPath = ()) -> list[Problem]:
    """Return what pydantic found, one problem for each value, in our words.

    Parameters
    ----------
    error : ValidationError
        The finding.
    keys : sequence of str
        Keys to suggest from where a key is unknown.
    at : tuple
        KeyPath of what was validated.
    """
    found: dict[KeyPath, str] = {}
    for detail in error.errors(include_url=False):
        path = (*at, *detail["loc"])
        kind, given = detail["type"], detail["input"]
        if kind == "extra_forbidden":
            name = str(path[-1])
            sentence = f"unknown key {name!r}. {suggestion(name, keys, 'The keys are')}"
        elif kind == "missing":
            sentence = f"{dotted(path)} is missing."
        else:
            sentence = f"{dotted(path)} must be {_expected(detail)}, got {given!r}."
        found.setdefault(path, sentence)
    return list(found.items())


def _expected(detail: Any) -> str:
    kind, context = detail["type"], detail.get("ctx", {})
    if kind in _BOUNDS:
        words, bound = _BOUNDS[kind]
        return f"{words} {context[bound]:g}"
    if kind == "literal_error":
        return f"one of {context['expected']}"
    message: str = detail["msg"]
    return _EXPECTED.get(kind, f"valid ({message})")


def dotted(path: KeyPath) -> str:
    """Return ``algorithm.mu`` for ``("algorithm", "mu")``."""
    return ".".join(map(str, path))


def refuse(problems: Sequence[Problem], origins: Origins) -> ConfigurationError:
    """Return the error that lists all problems, each with the place where it was written."""
    sentences = []
    for path, sentence in problems:
        origin = origins.find(path)
        sentences.append(f"{origin}: {sentence}" if origin else sentence)
    return ConfigurationError("\n".join(dict.fromkeys(sentences)))
