"""Parts that are chosen by name: a schedule, an optimiser, a compression."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
from collections.abc import Mapping
from typing import Any

from fedbench.registry import Registry

__all__ = ["described", "made"]

_LONGEST = 500
"""Characters of a value, beyond which a digest tells it apart."""


def made(registry: Registry[Any], chosen: Any) -> Any:
    """Return what `chosen` stands for.

    Parameters
    ----------
    registry : Registry
        Where names are looked up; its entries are classes.
    chosen : object
        A name, a mapping of ``name`` and options, or something that is made already, which is
        returned as it is.

    Raises
    ------
    UnknownNameError
        If the registry has no such name.
    TypeError
        If there is no such option; the message lists those there are.
    ValueError
        If an option is out of its range.
    """
    if isinstance(chosen, str):
        chosen = {"name": chosen}
    if not isinstance(chosen, Mapping):
        return chosen
    options = dict(chosen)
    name = options.pop("name", None)
    if name is None:
        raise ValueError(
            f"a {registry.kind} must have a name, got {dict(chosen)!r}. Add 'name', one of "
            f"{', '.join(map(repr, registry))}."
        )
    target = registry.load(name)
    known = list(inspect.signature(target).parameters)
    unknown = sorted(options.keys() - set(known))
    if unknown:
        raise TypeError(
            f"{registry.kind} {name!r} has no option {', '.join(map(repr, unknown))}. "
            f"It has {', '.join(map(repr, known)) or 'none'}."
        )
    try:
        return target(**options)
    except TypeError as error:
        raise TypeError(f"{registry.kind} {name!r}: {error}.") from error


def described(part: Any) -> str:
    """Return a text that is the same in every process: for functions their place and name."""
    if isinstance(part, functools.partial):
        options = [
            *map(described, part.args),
            *(f"{name}={described(value)}" for name, value in part.keywords.items()),
        ]
        return f"{described(part.func)}({', '.join(options)})"
    if dataclasses.is_dataclass(part) and not isinstance(part, type):
        fields = [
            f"{field.name}={described(getattr(part, field.name))}"
            for field in dataclasses.fields(part)
            if field.repr
        ]
        return f"{type(part).__qualname__}({', '.join(fields)})"
    name = getattr(part, "__qualname__", None)
    if name is not None:
        return f"{part.__module__}:{name}"
    text = repr(part)
    if len(text) <= _LONGEST:
        return text
    return f"{text[:20]}... ({hashlib.blake2b(text.encode(), digest_size=8).hexdigest()})"
