"""What a user may pass to a simulation, made definite or refused."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from torch import nn

from fedbench.algorithms import Algorithm, make_algorithm
from fedbench.data import ArrayDataset, FederatedDataset
from fedbench.errors import UnknownNameError
from fedbench.executors import EXECUTORS, Executor, make_executor
from fedbench.registry import did_you_mean
from fedbench.training import checked_flag, whole
from fedbench.workloads import Workload, load

__all__ = [
    "check_flags",
    "checked_cohort",
    "checked_model",
    "loaded_dataset",
    "positions_of",
    "resolve_algorithm",
    "resolve_executor",
    "resolve_workload",
]


def resolve_workload(workload: str | Workload | Mapping[str, Any]) -> Workload:
    """Return the workload that a name, a workload or a mapping of parts stands for."""
    if isinstance(workload, Workload):
        return workload
    if isinstance(workload, str):
        return load(workload)
    if isinstance(workload, Mapping):
        return Workload(**workload)
    raise TypeError(
        f"workload must be a name, a Workload or a mapping of its parts, "
        f"got {type(workload).__name__}. `fedbench list` shows the names."
    )


def loaded_dataset(workload: Workload) -> FederatedDataset:
    """Return what the workload's dataset function returns, if it is a federated data set."""
    dataset: object = workload.dataset()
    if not isinstance(dataset, FederatedDataset):
        raise TypeError(
            f"the workload's dataset function must return a FederatedDataset, "
            f"got {type(dataset).__name__}. {_federated(dataset)}"
        )
    return dataset


def _federated(dataset: object) -> str:
    if isinstance(dataset, ArrayDataset):
        return 'Divide it among clients: return dataset.federate("dirichlet", 100, alpha=0.5).'
    return "Make one with fedbench.data.FederatedDataset(...)."


def checked_model(model: object) -> nn.Module:
    """Return what the workload's model function returned, if it is a module."""
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"the workload's model function must return a torch.nn.Module, "
            f"got {type(model).__name__}. Return the module itself."
        )
    return model


def resolve_algorithm(
    algorithm: str | Algorithm | Mapping[str, Any] | None, workload: Workload
) -> Algorithm:
    """Return the algorithm that was asked for, the workload's own if none was."""
    if isinstance(algorithm, Algorithm):
        return algorithm
    if algorithm is None or algorithm == workload.algorithm:
        return make_algorithm(workload.algorithm, **workload.algorithm_options)
    if isinstance(algorithm, Mapping):
        options = dict(algorithm)
        if "name" not in options:
            raise ValueError(
                f"algorithm must have a name, got {options!r}. Add it, for example "
                f"{{'name': 'fedprox', 'mu': 0.1}}."
            )
        return make_algorithm(options.pop("name"), **options)
    if not isinstance(algorithm, str):
        raise TypeError(
            f"algorithm must be a name, a mapping with a name and hyperparameters, or an "
            f"Algorithm, got {_not_an_algorithm(algorithm)}"
        )
    return make_algorithm(algorithm)


def _not_an_algorithm(given: object) -> str:
    if isinstance(given, type) and issubclass(given, Algorithm):
        return f"the class {given.__name__}. Pass {given.__name__}()."
    return f"{type(given).__name__}. `fedbench list` shows the names."


def resolve_executor(executor: str | Executor, workers: int | None) -> tuple[Executor, bool]:
    """Return the executor and whether it was made here, and so has to be closed here."""
    if isinstance(executor, str):
        if executor not in EXECUTORS:
            raise UnknownNameError(
                f"executor must be one of {', '.join(map(repr, EXECUTORS))}, got {executor!r}."
                f"{did_you_mean(executor, EXECUTORS)}"
            )
        return make_executor(executor, workers), True
    if workers is not None:
        raise ValueError(
            f"workers must be left out when an executor is given, got {workers!r}. "
            f"Set it where the executor is made."
        )
    return executor, False


def check_flags(**flags: bool | None) -> None:
    """Raise ``TypeError`` if one of the `flags` is neither True nor False, nor left out as None."""
    for name, value in flags.items():
        if value is not None:
            checked_flag(name, value)


def checked_cohort(size: int, num_clients: int) -> int:
    """Return `size` if a cohort may have it."""
    size = whole("cohort_size", size)
    if size > num_clients:
        raise ValueError(
            f"cohort_size must be at most the number of clients, {num_clients}, got {size}."
        )
    return size


def positions_of(
    client_ids: Sequence[int | str], wanted: str | Iterable[int | str]
) -> Sequence[int]:
    """Return the positions of clients in the population; ``"all"`` stands for everyone."""
    if isinstance(wanted, str):
        if wanted == "all":
            return range(len(client_ids))
        raise ValueError(f"clients must be 'all' or a list of client ids, got {wanted!r}.")
    if not isinstance(wanted, Iterable):
        raise TypeError(
            f"clients must be 'all' or a list of client ids, got {wanted!r}. For one client give "
            f"[{wanted!r}]."
        )
    positions = {client_id: position for position, client_id in enumerate(client_ids)}
    listed = list(wanted)
    unknown = [one for one in listed if not isinstance(one, Hashable) or one not in positions]
    if unknown:
        raise ValueError(
            f"clients must be ids of the data's clients, got {unknown[0]!r}. They are in "
            f"dataset.client_ids."
        )
    return [positions[client_id] for client_id in listed]
