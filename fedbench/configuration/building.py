"""From a configuration to a workload, an executor and a simulation."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from fedbench.algorithms import Algorithm
from fedbench.configuration.components import find
from fedbench.configuration.options import simulation_options
from fedbench.configuration.schema import Component, RunConfiguration
from fedbench.configuration.yaml_text import dump
from fedbench.data import ArrayDataset, FederatedDataset, rotate_clients
from fedbench.errors import ConfigurationError
from fedbench.executors import Executor, make_executor
from fedbench.simulation import Simulation
from fedbench.workloads import Workload

__all__ = [
    "base_workload",
    "make_algorithm",
    "make_executor_of",
    "make_simulation",
    "make_workload",
    "resolve",
]

_FROM_WORKLOAD = (
    "loss",
    "cohort_size",
    "rounds",
    "local_epochs",
    "batch_size",
    "lr",
    "momentum",
    "weight_decay",
    "nesterov",
    "eval_every",
    "vectorized",
)
_WITHOUT_WORKLOAD = {
    "loss": "cross_entropy",
    "local_epochs": 1,
    "momentum": 0.0,
    "weight_decay": 0.0,
    "nesterov": False,
    "eval_every": 10,
    "vectorized": False,
}
_DATA_KEYS = ("workload", "dataset", "partitioner", "num_clients", "rotate", "data_seed", "model")


def resolve(configuration: RunConfiguration) -> RunConfiguration:
    """Return `configuration` with everything filled in that its workload says.

    What it leaves open (no partitioner: that of the workload) has no other name than the workload.
    """
    base = base_workload(configuration)
    found: dict[str, Any] = {}
    for key in _FROM_WORKLOAD:
        if getattr(configuration, key) is None:
            found[key] = getattr(base, key) if base else _WITHOUT_WORKLOAD[key]
    if configuration.algorithm is None:
        name = base.algorithm if base else "fedavg"
        options = dict(base.algorithm_options) if base else {}
        configuration = configuration.model_copy(
            update={"algorithm": Component(name=name, **options)}
        )
    algorithm = make_algorithm(configuration)
    hyperparameters = {field.name: getattr(algorithm, field.name) for field in algorithm.options()}
    name = _algorithm_of(configuration).name
    return configuration.model_copy(
        update={**found, "algorithm": Component(name=name, **hyperparameters)}
    )


def make_algorithm(configuration: RunConfiguration) -> Algorithm:
    """Return the algorithm of a configuration that names one."""
    component = _algorithm_of(configuration)
    found = find("algorithm", component.name)
    if not (isinstance(found, type) and issubclass(found, Algorithm)):
        raise ConfigurationError(
            "algorithm must be a subclass of fedbench.algorithms.Algorithm, got "
            f"{component.name!r}."
        )
    made: Algorithm = found(**component.options)
    return made


def _algorithm_of(configuration: RunConfiguration) -> Component:
    if configuration.algorithm is None:
        raise ConfigurationError("algorithm must be given, got none. Resolve the configuration.")
    return configuration.algorithm


def make_executor_of(configuration: RunConfiguration) -> Executor:
    """Return the executor of a configuration, not started."""
    return make_executor(
        configuration.backend.name,
        configuration.workers,
        intraop_threads=configuration.intraop_threads,
        retries=configuration.retries,
        timeout=configuration.timeout,
        **configuration.backend.options,
    )


def make_workload(configuration: RunConfiguration) -> Workload:
    """Return the workload that a resolved configuration describes.

    Its name is that of the configuration's workload if data and model are; otherwise the name
    ends in a digest of what was replaced, so that checkpoints of different data never mix.
    """
    base = base_workload(configuration)
    fields = {key: getattr(configuration, key) for key in _FROM_WORKLOAD}
    # Zero, for no evaluation, is the simulation's to know.
    fields["eval_every"] = max(1, fields["eval_every"])
    dataset = _dataset_of(configuration, base)
    component = configuration.model
    model: Callable[..., Any]
    if component is not None:
        model = partial(find("model", component.name), **component.options)
    elif base is not None:
        model = base.model
    else:
        raise _missing("model")
    data = {key: configuration.to_plain().get(key) for key in _DATA_KEYS}
    if base is not None:
        untouched = all(data[key] is None for key in ("dataset", "partitioner", "rotate", "model"))
        if untouched and configuration.data_seed == 0:
            return replace(base, **fields)
    digest = hashlib.blake2b(dump(data).encode(), digest_size=4).hexdigest()
    name = "custom" if base is None else base.name
    return Workload(
        name=f"{name}~{digest}",
        description=f"{name} with parts of a configuration",
        dataset=dataset,
        model=model,
        options={} if base is None else base.options,
        **fields,
    )


def make_simulation(configuration: RunConfiguration) -> Simulation:
    """Return the simulation of a resolved configuration; close its executor, which is started.

    Raises
    ------
    ValueError, TypeError
        If data, partition, model and the other values do not fit together.
    ResourceError
        If the machine does not provide what the workers need.
    """
    executor = make_executor_of(configuration)
    executor.start()  # first, because workers may get ready while the data is loaded
    try:
        return Simulation(
            make_workload(configuration),
            algorithm=make_algorithm(configuration),
            executor=executor,
            seed=configuration.seed,
            reproducibility=configuration.reproducibility,
            check_enclosure=configuration.check_enclosure,
            reduce_in_workers=configuration.reduce_in_workers,
            device=configuration.device,
            **simulation_options(configuration),
        )
    except BaseException:
        executor.close()
        raise


def base_workload(configuration: RunConfiguration) -> Workload | None:
    """Return the workload that a configuration starts from, None if it names none."""
    if configuration.workload is None:
        return None
    found = find("workload", configuration.workload.name)
    made = found if isinstance(found, Workload) else found(**configuration.workload.options)
    if not isinstance(made, Workload):
        raise ConfigurationError(
            f"workload must be a Workload or a function that returns a Workload, got "
            f"{configuration.workload.name!r}, which returns {type(made).__name__}."
        )
    return made


def _missing(key: str) -> ConfigurationError:
    return ConfigurationError(
        f"{key} is missing. Name a workload, or give dataset, model, cohort_size, rounds, "
        f"batch_size and lr."
    )


def _dataset_of(
    configuration: RunConfiguration, base: Workload | None
) -> Callable[..., FederatedDataset]:
    component = configuration.dataset
    source: Callable[..., ArrayDataset | FederatedDataset]
    if component is not None:
        source = partial(find("dataset", component.name), **component.options)
    elif base is not None:
        source = base.dataset
    else:
        raise _missing("dataset")
    return partial(
        federated,
        source=source,
        partitioner=configuration.partitioner,
        num_clients=configuration.num_clients,
        rotate=configuration.rotate,
        seed=configuration.data_seed,
    )


def federated(
    *,
    source: Callable[..., ArrayDataset | FederatedDataset],
    partitioner: Component | None,
    num_clients: int | None,
    rotate: list[float] | None,
    seed: int,
) -> FederatedDataset:
    """Load samples, divide them over clients, and rotate the clients' images where asked to."""
    divided = _divided(source(seed=seed), partitioner, num_clients, seed)
    return divided if rotate is None else rotate_clients(divided, rotate)


def _divided(
    data: ArrayDataset | FederatedDataset,
    partitioner: Component | None,
    num_clients: int | None,
    seed: int,
) -> FederatedDataset:
    """Divide samples over clients, again if they are divided already."""
    if isinstance(data, FederatedDataset):
        if partitioner is None:
            return data
        if partitioner.name == "natural":
            raise ConfigurationError(
                "partitioner must divide the samples anew, got 'natural'. Leave it out to keep "
                "the clients that the samples have."
            )
        num_clients = data.num_clients if num_clients is None else num_clients
        data = ArrayDataset(
            data.inputs, data.targets, data.test_inputs, data.test_targets, data.num_classes
        )
    if partitioner is None or partitioner.name == "natural":
        if data.client_keys is None:
            raise ConfigurationError(
                "partitioner must divide the samples, got "
                f"{'none' if partitioner is None else 'natural'}: they have no client of their "
                "own. Choose one of `fedbench list partitioners`."
            )
        return data.federate_by_key(**(partitioner.options if partitioner else {}))
    if num_clients is None:
        raise ConfigurationError(
            f"num_clients is missing: partitioner {partitioner.name!r} needs it."
        )
    return data.federate(
        find("partitioner", partitioner.name), num_clients, seed=seed, **partitioner.options
    )
