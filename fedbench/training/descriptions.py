"""Parts of a simulation as text: equal parts have equal texts, in every process.

Checkpoints carry these texts, and belong only to simulations whose parts have the same.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import reprlib
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from fedbench.reproducibility import digest
from fedbench.training.values import plain

__all__ = ["described"]

_LONGEST = 500
"""Characters of a value, beyond which a digest tells it apart."""


@reprlib.recursive_repr("...")
def described(part: Any) -> str:
    """Return a text that is the same for equal parts, in every process.

    Whole numbers are written alike whether they are integers or not, mappings and keyword
    arguments in the order of their keys, arrays as digests. Functions are their place and name;
    lambdas and functions made inside others, which share names, have a digest of their bytecode
    besides, and the values that they close over. What a function looks up when it is called does
    not show. Objects without a ``repr`` of their own are their class and attributes; a method
    ``identity() -> str`` of a part goes before all that.
    """
    if isinstance(part, bool | str | bytes) or part is None:
        return _shortened(repr(part))
    if isinstance(part, int | float | np.generic):
        return _number(part)
    if isinstance(part, list | tuple | Mapping | set | frozenset):
        return _shortened(_collection(part))
    if isinstance(part, Tensor | np.ndarray):
        return f"array({digest(part)[:16]})"
    if isinstance(part, functools.partial):
        arguments = [*map(described, part.args), *_assignments(part.keywords)]
        if not arguments:
            return described(part.func)
        return f"{described(part.func)}({', '.join(arguments)})"
    if isinstance(part, types.FunctionType):
        return _function(part)
    if isinstance(part, types.MethodType):
        return f"{described(part.__self__)}.{part.__name__}"
    return _object(part)


def _number(value: Any) -> str:
    value = plain(value)
    is_whole = isinstance(value, float) and value.is_integer() and abs(value) < 2**53
    return repr(int(value) if is_whole else value)


def _collection(values: Any) -> str:
    if isinstance(values, Mapping):
        pairs = sorted((described(key), described(value)) for key, value in values.items())
        return "{" + ", ".join(f"{key}: {value}" for key, value in pairs) + "}"
    # Weights of a whole population are many numbers.
    are_numbers = set(map(type, values)) <= {int, float}
    texts = map(_number if are_numbers else described, values)
    if isinstance(values, list | tuple):
        return f"({', '.join(texts)})"
    return "{" + ", ".join(sorted(texts)) + "}"


def _assignments(values: Mapping[str, Any]) -> list[str]:
    return [f"{name}={described(value)}" for name, value in sorted(values.items())]


def _function(function: types.FunctionType) -> str:
    name = f"{function.__module__}:{function.__qualname__}"
    if "<" not in function.__qualname__:
        return name
    values = [_code(function.__code__), described(function.__defaults__)]
    values.append(described(function.__kwdefaults__))
    for cell in function.__closure__ or ():
        try:
            values.append(described(cell.cell_contents))
        except ValueError:  # a name that the outer function has not bound yet
            values.append("unbound")
    return f"{name} ({_digest('; '.join(values))})"


def _code(code: types.CodeType) -> str:
    constants = [
        _code(value) if isinstance(value, types.CodeType) else described(value)
        for value in code.co_consts
    ]
    return f"{code.co_code.hex()} {code.co_names} {constants}"


def _object(part: Any) -> str:
    identity: Callable[[], str] | None = getattr(part, "identity", None)
    is_instance = not isinstance(part, type)
    if is_instance and callable(identity):
        return identity()
    if is_instance and dataclasses.is_dataclass(part):
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
    if isinstance(part, Path) or " at 0x" not in text:
        return _shortened(text)
    # The address is that of this process.
    kind = type(part)
    return f"{kind.__module__}:{kind.__qualname__}({', '.join(_assignments(_attributes(part)))})"


def _attributes(part: Any) -> dict[str, Any]:
    listed = [vars(kind).get("__slots__", ()) for kind in type(part).__mro__]
    slots = [name for names in listed for name in ([names] if isinstance(names, str) else names)]
    found = {name: getattr(part, name) for name in slots if hasattr(part, name)}
    return {**found, **getattr(part, "__dict__", {})}


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:20]}... ({_digest(text)})"


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
