"""What no single key can know: names, options, and how the keys fit together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedbench.configuration.components import check_component, find
from fedbench.configuration.problems import Problem
from fedbench.configuration.schema import COMPONENTS, RunConfiguration
from fedbench.configuration.yaml_text import KeyPath
from fedbench.errors import MissingExtraError, UnknownNameError, UnsupportedPlatformError
from fedbench.reproducibility import check_level

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["semantic_problems"]

_NEEDED_WITHOUT_WORKLOAD = ("dataset", "model", "cohort_size", "rounds", "batch_size", "lr")
_Question = tuple[str, "Callable[[], object]"]
"""A key, and what complains if the key is wrong."""


def semantic_problems(configuration: RunConfiguration) -> list[Problem]:
    """Return what is wrong with a configuration whose keys are right one by one."""
    found: list[Problem] = []
    for key in COMPONENTS:
        component = configuration.component(key)
        if component is not None:
            found += check_component(key, component)
    if configuration.loss is not None:
        try:
            find("loss", configuration.loss)
        except UnknownNameError as error:
            found.append((("loss",), str(error)))
    found += _completeness(configuration)
    # The parts that check their own values are asked once all names and types are right.
    return found or _asked(configuration)


def _completeness(configuration: RunConfiguration) -> list[Problem]:
    found: list[Problem] = []
    if configuration.workload is None:
        missing = [key for key in _NEEDED_WITHOUT_WORKLOAD if getattr(configuration, key) is None]
        if missing == list(_NEEDED_WITHOUT_WORKLOAD):
            sentence = (
                "workload is missing. Name one of `fedbench list workloads`, or give "
                f"{', '.join(missing[:-1])} and {missing[-1]}."
            )
            return [((), sentence)]
        found += [
            ((), f"{key} is missing: there is no workload to take it from.") for key in missing
        ]
    partitioner = configuration.partitioner
    if partitioner is None or partitioner.name == "natural":
        if configuration.num_clients is not None:
            sentence = (
                "num_clients needs a partitioner that divides the samples, got "
                f"{'none' if partitioner is None else 'natural'}. Choose one of "
                "`fedbench list partitioners`."
            )
            found.append((("num_clients",), sentence))
    elif configuration.num_clients is None and configuration.dataset is not None:
        found.append((("partitioner",), f"partitioner {partitioner.name!r} needs num_clients."))
    if configuration.resume and configuration.checkpoints is None:
        sentence = "resume needs checkpoints: name the folder to resume from."
        found.append((("resume",), sentence))
    if configuration.parallel > 1 and configuration.backend.name != "sequential":
        sentence = (
            f"backend must be sequential where parallel is more than 1, got "
            f"{configuration.backend.name!r}. Runs of a matrix use one core each; the results "
            "are the same."
        )
        found.append((("backend",), sentence))
    return found


def _asked(configuration: RunConfiguration) -> list[Problem]:
    from fedbench.configuration.building import (
        base_workload,
        make_executor_of,
        make_workload,
        resolve,
    )
    from fedbench.simulation.devices import checked_device

    device, backend = configuration.device, configuration.backend.name
    apart: list[_Question] = [
        ("reproducibility", lambda: check_level(configuration.reproducibility)),
        ("device", lambda: checked_device(device, backend)),
        ("backend", lambda: make_executor_of(configuration)),
    ]
    # Each of these does again what the one before it does, and would repeat its complaint.
    chain: list[_Question] = [
        ("workload", lambda: base_workload(configuration)),
        ("algorithm", lambda: resolve(configuration)),
        ("workload", lambda: make_workload(resolve(configuration))),
        ("participation", lambda: _check_options(resolve(configuration))),
    ]
    found = [problem for question in apart for problem in _answer(configuration, *question)]
    for question in chain:
        problems = _answer(configuration, *question)
        if problems:
            return problems + found
    return found


def _answer(configuration: RunConfiguration, key: str, ask: Callable[[], object]) -> list[Problem]:
    try:
        ask()
    except MissingExtraError:
        raise
    except (ValueError, TypeError, UnsupportedPlatformError) as error:
        return [(_place(configuration, key, str(error)), str(error))]
    return []


def _check_options(configuration: RunConfiguration) -> None:
    from fedbench.configuration.building import make_algorithm, make_workload
    from fedbench.configuration.options import simulation_options
    from fedbench.simulation.options import make_options

    of_workload = make_workload(configuration).options
    options = make_options(of_workload, simulation_options(configuration))
    options.refuse_for(make_algorithm(configuration))


def _place(configuration: RunConfiguration, key: str, sentence: str) -> KeyPath:
    """Return the key that `sentence` starts with, as the messages of this package do."""
    word = sentence.partition(" ")[0]
    if key in COMPONENTS:
        component = configuration.component(key)
        if component is not None and word in component.options:
            return (key, word)
    return (word,) if word in RunConfiguration.model_fields else (key,)
