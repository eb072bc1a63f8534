"""Parts that are chosen by name: a schedule, an optimiser, a compression."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from fedbench.registry import Registry

__all__ = ["made"]


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
        If there is no such option, the message then lists those there are, or if one that has no
        default is missing.
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
    parameters = inspect.signature(target).parameters
    known = list(parameters)
    unknown = sorted(options.keys() - set(known))
    if unknown:
        raise TypeError(
            f"{registry.kind} {name!r} has no option {', '.join(map(repr, unknown))}. "
            f"It has {', '.join(map(repr, known)) or 'none'}."
        )
    for parameter in parameters.values():
        if parameter.default is parameter.empty and parameter.name not in options:
            raise TypeError(
                f"{registry.kind}.{parameter.name} is missing: {name!r} needs it. "
                f"Pass {{'name': {name!r}, {parameter.name!r}: ...}}."
            )
    try:
        return target(**options)
    except TypeError as error:
        raise TypeError(f"{registry.kind} {name!r}: {str(error).removesuffix('.')}.") from error
