"""Where settings come from, and which of them wins: flags, then environment, then file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedbench.configuration.problems import Origins, suggestion
from fedbench.configuration.schema import COMMAND_KEYS, RunConfiguration, is_text
from fedbench.configuration.yaml_text import parse_document, parse_value
from fedbench.errors import ConfigurationError
from fedbench.registry import did_you_mean

__all__ = ["Layers", "flag_of", "rank_of", "read_layers", "variable_of"]

_PREFIX = "FEDBENCH_"
KEYS = tuple(RunConfiguration.model_fields)


def flag_of(key: str) -> str:
    """Return the flag of `key`: ``--cohort-size``."""
    return f"--{key.replace('_', '-')}"


def variable_of(key: str) -> str:
    """Return the environment variable of `key`: ``FEDBENCH_COHORT_SIZE``."""
    return f"{_PREFIX}{key.upper()}"


def rank_of(origin: str | None) -> int:
    """Return how far up the layer is that `origin` belongs to: a flag's is the highest."""
    if origin is None:
        return 0
    return 2 if origin.startswith("--") else int(origin.startswith(_PREFIX))


@dataclass
class Layers:
    """What was set, the winner for each key, before validation.

    Attributes
    ----------
    values : dict
        Top-level key to value.
    matrix : object
        Dotted key to the list of its values, as found.
    origins : Origins
        Where each of them was written.
    notes : list of str
        What a user may not expect.
    """

    values: dict[str, Any] = field(default_factory=dict)
    matrix: Any = field(default_factory=dict)
    origins: Origins = field(default_factory=Origins)
    notes: list[str] = field(default_factory=list)

    def set_over(self, key: str, value: Any, origin: str) -> None:
        """Set a key in a higher layer; a sweep of it in a lower layer ends."""
        self.values[key] = value
        self.origins.note((key,), origin)
        for swept in [s for s in self.matrix if s.partition(".")[0] == key]:
            del self.matrix[swept]
            self.origins.forget(("matrix", swept))
            self.notes.append(f"{origin} replaces the sweep over {swept}.")


def read_layers(
    source: str | Path | Mapping[str, Any] | None,
    environ: Mapping[str, str],
    flags: Mapping[str, str],
    sweeps: Mapping[str, str],
) -> Layers:
    """Return the settings of a file (or mapping), the environment and the flags, merged.

    Raises
    ------
    ConfigurationError
        If the file cannot be read or is no mapping, or a variable or flag is no YAML value.
    """
    layers = _from_file(source) if isinstance(source, str | Path) else _from_mapping(source)
    for key, text in _variables(environ).items():
        layers.set_over(key, _parsed(key, text, variable_of(key)), variable_of(key))
    for key, text in flags.items():
        layers.set_over(key, _parsed(key, text, flag_of(key)), flag_of(key))
    for key, text in sweeps.items():
        if key.partition(".")[0] in flags:
            raise ConfigurationError(
                f"--matrix: {key} must be swept or set, got both. "
                f"Leave out {flag_of(key.partition('.')[0])}."
            )
        listed = text if text.lstrip().startswith("[") else f"[{text}]"
        layers.matrix[key] = _parsed_value(listed, "--matrix")
        layers.origins.note(("matrix", key), "--matrix")
    return layers


def _from_file(path: str | Path) -> Layers:
    name = str(path)
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(
            f"the configuration must be a readable file, got {name!r} ({error.strerror})."
            f"{_meant_workload(name)}"
        ) from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"the configuration {name!r} must be UTF-8 text.") from None
    try:
        document = parse_document(text)
    except ConfigurationError as error:
        message = str(error)
        place = f"{name}:" if message.startswith("line ") else f"{name}: "
        raise ConfigurationError(f"{place}{message.removeprefix('line ')}") from None
    lines = {path: f"{name}:{line}" for path, line in document.lines.items()}
    return _layers(document.value, Origins({(): name, **lines}))


def _meant_workload(name: str) -> str:
    """Return the end of a message about a missing file whose name is that of a workload."""
    from fedbench.workloads import WORKLOADS

    known = [*WORKLOADS, *([name] if ":" in name else [])]
    flag = flag_of("workload")
    return did_you_mean(f"{flag} {name}", [f"{flag} {workload}" for workload in known], cutoff=0.85)


def _from_mapping(values: Mapping[str, Any] | None) -> Layers:
    return _layers({} if values is None else _plain(values, ()), Origins())


def _layers(value: Any, origins: Origins) -> Layers:
    if value is None:
        value = {}
    if not isinstance(value, dict):
        raise ConfigurationError(
            f"{origins.find(()) or 'the configuration'}: must be a mapping of keys to values, "
            f"got {type(value).__name__}. Start with a line such as `workload: digits-mlp`."
        )
    values = dict(value)
    matrix = values.pop("matrix", None)
    if matrix is None:
        matrix = {}
    if not isinstance(matrix, dict):
        origin = origins.find(("matrix",))
        raise ConfigurationError(
            f"{f'{origin}: ' if origin else ''}matrix must be a mapping of keys to lists of "
            f"values, got {matrix!r}."
        )
    return Layers(values, dict(matrix), origins)


def _plain(value: Any, path: tuple[str, ...]) -> Any:
    """Return `value` with lists for tuples; refuse what YAML has no form for."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner, (*path, str(key))) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner, path) for inner in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if value is None or type(value) in (bool, int, float, str):
        return value
    raise ConfigurationError(
        f"{'.'.join(path)} must be text, a number, true, false, a list or a mapping, got "
        f"{type(value).__name__}. Name your own code as 'module:attribute'."
    )


def _variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the texts of the variables that are set, by key; a near miss is an error."""
    known = {variable_of(key): key for key in KEYS}
    found = {}
    for name, text in environ.items():
        if name in known:
            if text:
                found[known[name]] = text
        # Other variables of this prefix belong to the build and to the C++ core.
        elif name.startswith(_PREFIX) and (hint := did_you_mean(name, known, cutoff=0.85)):
            raise ConfigurationError(f"unknown environment variable {name!r}.{hint}")
    return found


def _parsed(key: str, text: str, origin: str) -> Any:
    return text if is_text(key) else _parsed_value(text, origin)


def _parsed_value(text: str, origin: str) -> Any:
    try:
        return parse_value(text)
    except ConfigurationError as error:
        raise ConfigurationError(f"{origin}: {text!r} is no value: {error}") from None


def unknown_key(name: str, *, swept: bool) -> str:
    """Return the sentence about a key that does not exist."""
    known = [key for key in KEYS if not (swept and key in COMMAND_KEYS)]
    return f"unknown key {name!r}. {suggestion(name, [*known, 'matrix'], 'The keys are')}"
