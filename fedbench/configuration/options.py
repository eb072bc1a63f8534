"""The keys of a configuration that are options of its simulations."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from fedbench.configuration.components import find
from fedbench.configuration.schema import Component, RunConfiguration
from fedbench.errors import ConfigurationError

__all__ = ["OPTION_KEYS", "simulation_options"]

OPTION_KEYS = (
    "participation",
    "client_dropout",
    "stragglers",
    "schedule",
    "clip_norm",
    "clip_value",
    "optimizer",
    "train",
    "drop_last",
    "buffers",
    "integers",
    "frozen",
    "personal",
    "compression",
    "validation",
    "evaluate_clients",
)
"""The fields of ``fedbench.simulation.SimulationOptions``; a test compares them."""


def simulation_options(configuration: RunConfiguration) -> dict[str, Any]:
    """Return the options that a configuration sets, as a simulation takes them.

    Raises
    ------
    ConfigurationError
        If own code that is named cannot be imported, or is no class and has options.
    """
    found: dict[str, Any] = {}
    for key in OPTION_KEYS:
        value = getattr(configuration, key)
        if value is None:
            continue
        if isinstance(value, Component):
            value = _part(key, value)
        elif key == "train":
            value = find(key, value)
        found[key] = value
    return found


def _part(key: str, component: Component) -> Any:
    if ":" not in component.name:
        return {"name": component.name, **component.options}
    own = find(key, component.name)
    if key == "optimizer":
        return functools.partial(own, **component.options) if component.options else own
    if inspect.isclass(own):
        return own(**component.options)
    if component.options:
        raise ConfigurationError(
            f"{key} must be a class to have options, got {component.name!r} with "
            f"{', '.join(component.options)}. Leave them out, or name a class."
        )
    return own
