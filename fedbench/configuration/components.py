"""Names with options, checked against the functions and classes that they stand for."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import typing
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from fedbench.algorithms.checks import check_declared
from fedbench.configuration.problems import Problem, problems_of, suggestion
from fedbench.configuration.schema import Component
from fedbench.configuration.yaml_text import KeyPath
from fedbench.errors import ConfigurationError, UnknownNameError
from fedbench.registry import Registry, own_code

__all__ = ["check_component", "find"]

_REGISTRIES = {
    "workload": "fedbench.workloads:WORKLOADS",
    "dataset": "fedbench.data:DATASETS",
    "partitioner": "fedbench.data:PARTITIONERS",
    "model": "fedbench.models:MODELS",
    "loss": "fedbench.training:LOSSES",
    "algorithm": "fedbench.algorithms:ALGORITHMS",
    "backend": "fedbench.executors:EXECUTORS",
    "schedule": "fedbench.training:SCHEDULES",
    "optimizer": "fedbench.training:OPTIMIZERS",
    "participation": "fedbench.simulation:PARTICIPATIONS",
    "stragglers": "fedbench.simulation:STRAGGLERS",
    "compression": "fedbench.simulation:COMPRESSIONS",
}
_OWN_PARTS = ("schedule", "optimizer", "participation", "stragglers", "compression")
"""Parts of a simulation; own code may be a class with options or anything else without."""
_OWN_CODE = ("workload", "dataset", "partitioner", "model", "algorithm", "train", *_OWN_PARTS)
_GIVEN_ELSEWHERE = {
    "dataset": {"seed"},
    "model": {"seed"},
    "partitioner": {"targets", "num_clients", "seed", "keys"},
    "backend": {"workers", "intraop_threads", "retries", "timeout"},
    "optimizer": {"params", "lr"},
}
"""Parameters that are no options: keys of their own, or known from the data."""
_SEEDED = ("dataset", "model")
"""Functions that are called with `seed`."""


def find(key: str, name: str) -> Any:
    """Return what `name` stands for: an entry of the key's registry, or ``module:attribute``.

    Raises
    ------
    UnknownNameError
        If the registry has no such name; the message lists the names.
    MissingExtraError
        If the entry needs a package that is not installed.
    ConfigurationError
        If own code is not named as ``module:attribute``, if there is no such module or attribute,
        or if the module cannot be imported.
    """
    if "=" in name:
        raise ConfigurationError(
            f"{key} must be a name, or a mapping with options, got {name!r}. "
            f'Write "{_as_mapping(name)}".'
        )
    if (":" in name and key in _OWN_CODE) or key == "train":
        try:
            return own_code(key, name)
        except ValueError as error:
            raise ConfigurationError(str(error)) from error
    module, _, attribute = _REGISTRIES[key].partition(":")
    registry: Registry[Any] = getattr(importlib.import_module(module), attribute)
    if key in _OWN_CODE and "." in name and name not in registry:
        raise ConfigurationError(f"{key} of your own must be MODULE:NAME, got {name!r}.")
    return registry.load(name)


def _as_mapping(text: str) -> str:
    """Return the mapping that stands for options written as a call, or after a colon."""
    call = re.fullmatch(r"(.+?)[:(,]\s*(\w+\s*=[^()]*)\)?", text)
    if call is None:
        return "{name: NAME, OPTION: VALUE}"
    options = re.sub(r"\s*=\s*", ": ", call[2]).strip(" ,")
    return f"{{name: {call[1]}, {options}}}"


def check_component(key: str, component: Component) -> list[Problem]:
    """Return what is wrong with the name and the options of `component`."""
    try:
        target = find(key, component.name)
    except (UnknownNameError, ConfigurationError) as error:
        return [((key,), str(error))]
    if ":" in component.name and key in _OWN_PARTS and not inspect.isclass(target):
        return []  # taken as it stands
    if key == "workload" and _is_workload(target):
        return [
            (
                (key, name),
                f"workload must be a function to have options, got {component.name!r}, which is a "
                f"Workload, with {name}. Leave the option out, or set the key {name} beside it.",
            )
            for name in component.options
        ]
    if not callable(target):
        kinds = "a Workload or a function" if key == "workload" else "a function or a class"
        sentence = (
            f"{key} must be {kinds}, got {component.name!r}, which is of type "
            f"{type(target).__name__}."
        )
        return [((key,), sentence)]
    if key in _SEEDED and not _takes_seed(target):
        sentence = (
            f"{key} must be a function that takes seed, got {component.name!r}, which does not. "
            f"Give it a parameter `seed=0`, and draw its random numbers from that alone."
        )
        return [((key,), sentence)]
    if key == "algorithm" and inspect.isclass(target):
        try:
            check_declared(target)
        except TypeError as error:
            return [((key,), str(error))]
    options, takes_any = _options(key, target)
    found: list[Problem] = [
        ((key,), f"{key}.{name} is missing: {component.name!r} needs it.")
        for name, (_, required) in options.items()
        if required and name not in component.options
    ]
    for name, value in component.options.items():
        if name in options:
            found += _check_option((key, name), value, options[name][0])
        elif not takes_any:
            hint = suggestion(name, options, "The options are")
            found.append(((key, name), f"unknown option {name!r} of {component.name!r}. {hint}"))
    return found


def _is_workload(target: Any) -> bool:
    from fedbench.workloads.base import Workload

    return isinstance(target, Workload)


def _takes_seed(target: Callable[..., Any]) -> bool:
    parameters = inspect.signature(target).parameters
    by_keyword = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()) or (
        "seed" in parameters and parameters["seed"].kind in by_keyword
    )


def _options(key: str, target: Callable[..., Any]) -> tuple[dict[str, tuple[Any, bool]], bool]:
    """Return each option's annotation and whether it is required; and whether any name goes."""
    # The fields of a dataclass may be inherited from modules in which alone their annotations
    # have a meaning; the hints of the class know.
    plain = not inspect.isclass(target) or dataclasses.is_dataclass(target)
    hints = _hints_of(target if plain else target.__init__)
    parameters = inspect.signature(target).parameters.values()
    hidden = _GIVEN_ELSEWHERE.get(key, set())
    options = {
        parameter.name: (hints.get(parameter.name, Any), parameter.default is parameter.empty)
        for parameter in parameters
        if parameter.name not in hidden
        and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    }
    return options, any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)


def _hints_of(target: Any) -> Mapping[str, Any]:
    try:
        return typing.get_type_hints(target)
    except NameError:  # a name imported for type checkers only: the types stay unchecked
        return {}


def _check_option(path: KeyPath, value: Any, annotation: Any) -> list[Problem]:
    adapter = _adapter(annotation)
    try:
        adapter.validate_python(value)
    except ValidationError as error:
        if isinstance(value, list) and _fits(adapter, tuple(value)):
            return []  # YAML has no tuples
        # One sentence is enough: a union reports each of its members.
        return [(path, problems_of(error, (), path)[0][1])]
    return []


def _fits(adapter: TypeAdapter[Any], value: Any) -> bool:
    try:
        adapter.validate_python(value)
    except ValidationError:
        return False
    return True


def _adapter(annotation: Any) -> TypeAdapter[Any]:
    return TypeAdapter(annotation, config=ConfigDict(strict=True, arbitrary_types_allowed=True))
