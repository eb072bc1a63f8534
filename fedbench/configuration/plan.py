"""From settings to runs: validation, the matrix, and names for what was swept."""

from __future__ import annotations

import hashlib
import itertools
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fedbench.configuration.checks import semantic_problems
from fedbench.configuration.layers import (
    KEYS,
    Layers,
    rank_of,
    read_layers,
    unknown_key,
    variable_of,
)
from fedbench.configuration.problems import Origins, Problem, problems_of, refuse
from fedbench.configuration.schema import (
    COMMAND_KEYS,
    COMPONENTS,
    Component,
    RunConfiguration,
)
from fedbench.configuration.yaml_text import dump
from fedbench.errors import ConfigurationError

__all__ = ["Plan", "PlannedRun", "load"]


@dataclass(frozen=True)
class PlannedRun:
    """One run of a plan.

    Attributes
    ----------
    keys : dict of str to object
        The swept keys and what they are in this run, as a table shows them; empty without a
        matrix.
    configuration : RunConfiguration
        The configuration, with what its workload says filled in.
    """

    keys: dict[str, Any]
    configuration: RunConfiguration

    @property
    def label(self) -> str:
        """The swept keys and values as text, such as ``algorithm=fedprox, seed=1``."""
        return ", ".join(f"{key}={value}" for key, value in self.keys.items())


@dataclass(frozen=True)
class Plan:
    """A validated configuration: one run, or those of a matrix.

    Attributes
    ----------
    settings : RunConfiguration
        What all runs share, as it was set.
    matrix : dict of str to list
        Swept key to its values; empty for a single run.
    runs : tuple of PlannedRun
        The runs, the last swept key changing fastest.
    notes : tuple of str
        What a user may not expect: a sweep that a flag replaced.
    """

    settings: RunConfiguration
    matrix: dict[str, list[Any]]
    runs: tuple[PlannedRun, ...]
    notes: tuple[str, ...] = ()

    def to_plain(self) -> dict[str, Any]:
        """Return the resolved configuration; loading it again gives the same plan."""
        if self.matrix:
            return {**self.settings.to_plain(), "matrix": self.matrix}
        return self.runs[0].configuration.to_plain()

    def to_yaml(self) -> str:
        """Return the resolved configuration as YAML."""
        return dump(self.to_plain())


def load(
    source: str | Path | Mapping[str, Any] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, str] | None = None,
    sweeps: Mapping[str, str] | None = None,
) -> Plan:
    """Read a configuration and return the validated plan of its runs.

    Where a key is set more than once, flags win over the environment, which wins over the file,
    which wins over the defaults. A key is replaced as a whole, options included.

    Parameters
    ----------
    source : str, path or mapping, optional
        A YAML file, or its content as a mapping.
    environ : mapping of str to str, optional
        Environment variables, ``FEDBENCH_<KEY>``; those of the process by default.
    flags : mapping of str to str, optional
        Key to the text of its flag, read as a YAML value.
    sweeps : mapping of str to str, optional
        Dotted key to the values of a sweep, separated by commas.

    Raises
    ------
    ConfigurationError
        If a key is unknown or a value wrong. The message lists everything that is wrong, each
        with the file and line, the variable or the flag, the key, the value and what was
        expected.
    MissingExtraError
        If something that is named needs a package that is not installed.

    Examples
    --------
    >>> plan = load({"workload": "digits-logreg", "matrix": {"seed": [0, 1]}}, environ={})
    >>> [run.label for run in plan.runs]
    ['seed=0', 'seed=1']
    """
    environ = os.environ if environ is None else environ
    layers = read_layers(source, environ, flags or {}, sweeps or {})
    axes = _checked_matrix(layers)
    settings, problems = _validated(layers.values, layers.origins)
    if problems or settings is None:
        raise refuse(problems, layers.origins)
    runs = tuple(_runs(layers, axes))
    if not axes:
        return Plan(settings, {}, runs, tuple(layers.notes))
    if len({run.label for run in runs}) < len(runs):
        raise refuse([(("matrix",), "matrix must not list a value twice.")], layers.origins)
    return Plan(settings, axes, runs, tuple(layers.notes))


def _validated(
    values: Mapping[str, Any], origins: Origins
) -> tuple[RunConfiguration | None, list[Problem]]:
    try:
        return RunConfiguration.model_validate(dict(values)), []
    except ValidationError as error:
        return None, problems_of(error, [*KEYS, "matrix"])


def _checked_matrix(layers: Layers) -> dict[str, list[Any]]:
    problems: list[Problem] = []
    for swept, values in layers.matrix.items():
        path = ("matrix", swept)
        key, *options = str(swept).split(".")
        if key in COMMAND_KEYS:
            problems.append((path, f"{key} is the same for all runs and cannot be swept."))
        elif key not in KEYS:
            problems.append((path, unknown_key(key, swept=True)))
        elif options and key not in COMPONENTS:
            problems.append((path, f"{key} has no options, got {swept!r}. Sweep {key}."))
        elif len(options) > 1 or options == [""]:
            problems.append((path, f"a swept key must be KEY or KEY.OPTION, got {swept!r}."))
        elif not isinstance(values, list) or not values:
            problems.append((path, f"matrix.{swept} must be a list of values, got {values!r}."))
    if problems:
        raise refuse(problems, layers.origins)
    return dict(layers.matrix)


def _runs(layers: Layers, axes: Mapping[str, list[Any]]) -> Iterator[PlannedRun]:
    """Yield the runs; raise one error for all that is wrong with any of them."""
    wrong: list[str] = []
    choices = [range(len(values)) for values in axes.values()]
    for positions in itertools.product(*choices):
        chosen = {
            key: (position, axes[key][position])
            for key, position in zip(axes, positions, strict=True)
        }
        try:
            run = _run(layers, chosen)
        except ConfigurationError as error:
            wrong += str(error).splitlines()
            continue
        if not wrong:
            yield run
    if wrong:
        raise ConfigurationError("\n".join(dict.fromkeys(wrong)))


def _run(layers: Layers, chosen: Mapping[str, tuple[int, Any]]) -> PlannedRun:
    values, origins = dict(layers.values), layers.origins.copy()
    # Options after the names that they belong to, whatever the order in the file.
    for swept in sorted(chosen, key=lambda key: key.count(".")):
        position, value = chosen[swept]
        key, _, option = swept.partition(".")
        path: tuple[str, ...] = (key, option) if option else (key,)
        values[key] = _with_option(values.get(key), option, value) if option else value
        place = layers.origins.find(("matrix", swept, position))
        if place is not None:
            origins.note(path, place)
    configuration, problems = _validated(values, origins)
    if configuration is None:
        raise refuse(problems, origins)
    if configuration.backend.name == "sequential":
        configuration = _without_pool(configuration, layers, origins, chosen)
    problems = semantic_problems(configuration)
    if problems:
        raise refuse(problems, origins)
    # After the checks: only what is right can be resolved.
    from fedbench.configuration.building import resolve

    keys = {swept: _shown(configuration, swept) for swept in chosen}
    configuration = resolve(configuration)
    if chosen and configuration.checkpoints is not None:
        folder = Path(configuration.checkpoints) / _slug(keys)
        configuration = configuration.model_copy(update={"checkpoints": str(folder)})
    return PlannedRun(keys, configuration)


def _without_pool(
    configuration: RunConfiguration,
    layers: Layers,
    origins: Origins,
    chosen: Mapping[str, Any],
) -> RunConfiguration:
    """Leave out what only parallel backends know, where it was not meant for `sequential`.

    That is, where the backend was chosen in a higher layer (``--backend sequential`` beside the
    ``workers`` of a file) or is swept. FEDBENCH_WORKERS speaks for the parallel backends alone.
    """
    backend = origins.find(("backend",))
    for key in ("workers", "timeout"):
        value, origin = getattr(configuration, key), origins.find((key,))
        if value is None or key in chosen:
            continue
        if origin == variable_of("workers") or "backend" in chosen:
            configuration = configuration.model_copy(update={key: None})
        elif rank_of(backend) > rank_of(origin):
            configuration = configuration.model_copy(update={key: None})
            note = f"{backend} sequential leaves out {key} ({value}) of a lower layer."
            if note not in layers.notes:
                layers.notes.append(note)
    return configuration


def _with_option(component: Any, option: str, value: Any) -> Any:
    """Return the raw `component` with one more option; anything odd is left to validation."""
    if isinstance(component, str):
        return {"name": component, option: value}
    if isinstance(component, Mapping):
        return {**component, option: value}
    return {option: value}


def _shown(configuration: RunConfiguration, swept: str) -> Any:
    key, _, option = swept.partition(".")
    value = getattr(configuration, key)
    if option:
        value = value.options[option]
    if isinstance(value, Component):
        return value.label
    return value if value is None or isinstance(value, bool | int | float) else str(value)


def _slug(keys: Mapping[str, Any]) -> str:
    """Return a folder name for a run: readable, and different for different keys."""
    text = ",".join(f"{key}={value}" for key, value in keys.items())
    plain = re.sub(r"[^A-Za-z0-9=,._-]+", "_", text)[:100]
    if plain == text:
        return plain
    return f"{plain}-{hashlib.blake2b(text.encode(), digest_size=4).hexdigest()}"
