"""What trains inside the workers: the client task.

It is a small object. What never changes during a simulation (data, model, algorithm) is the
:class:`ClientSide`, which every worker receives once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedbench.algorithms import Algorithm, Client, Update
from fedbench.data import ClientData, FederatedDataset
from fedbench.executors import Resident
from fedbench.reproducibility import (
    generator_scope,
    numpy_generator,
    redirect_global_generators,
    torch_generator,
)
from fedbench.simulation.arguments import checked_model
from fedbench.simulation.client_state import kept_state
from fedbench.simulation.compression import Compression, compressed, num_bytes
from fedbench.simulation.devices import device_draws, moved
from fedbench.simulation.enclosure import EnclosureGuard
from fedbench.simulation.options import SimulationOptions, held_out
from fedbench.training import (
    LOSSES,
    Exchange,
    LocalWork,
    Loss,
    OwnEntries,
    WorkerModel,
    plain,
    worker_model,
)
from fedbench.workloads import Workload

__all__ = ["ClientItem", "ClientResult", "ClientSide", "ClientTask", "parted"]

_OWN_ENTRIES, _RESIDUALS = "own entries", "uplink residuals"
"""Where a client's state holds what never leaves it, and what compression left out."""


def parted(state: Mapping[str, Any]) -> tuple[dict[str, Any], OwnEntries, Mapping[str, Tensor]]:
    """Return what the algorithm sees of a client's state, then what is the simulation's own."""
    seen = dict(state)
    return seen, seen.pop(_OWN_ENTRIES, {}), seen.pop(_RESIDUALS, {})


@dataclass(frozen=True)
class ClientSide:
    """Everything that client tasks need and that stays the same for a whole simulation."""

    dataset: FederatedDataset
    model: Callable[[], nn.Module]
    algorithm: Algorithm
    work: LocalWork
    loss: Loss
    seed: int
    level: str
    exchange: Exchange
    compression: Compression | None
    validation: float
    check_enclosure: bool
    around_client: Callable[[Client], None] | None = None
    device: str = "cpu"

    @classmethod
    def of(
        cls,
        workload: Workload,
        dataset: FederatedDataset,
        algorithm: Algorithm,
        options: SimulationOptions,
        *,
        seed: int,
        level: str,
        **watching: Any,
    ) -> ClientSide:
        """Return the client side of a workload, and make ready for its level."""
        if level == "L1":
            # Now and not in the first task: what tasks import later by name is then redirected.
            redirect_global_generators()
        return cls(
            dataset=dataset,
            model=functools.partial(workload.model, seed=seed),
            algorithm=algorithm,
            work=options.work(workload),
            loss=LOSSES.load(workload.loss),
            seed=seed,
            level=level,
            exchange=options.exchange,
            compression=options.compression,
            validation=options.validation,
            **watching,
        )

    def worker_model(self) -> WorkerModel:
        """Return this worker's model, built without touching any global generator."""
        return worker_model(self, lambda: self._build().to(self.device), self.exchange)

    def server_model(self) -> WorkerModel:
        """Return the server's own model, which is in CPU memory whatever the clients' device."""
        if self.device == "cpu":
            return self.worker_model()
        return WorkerModel(self._build(), self.exchange)

    def train_size(self, position: int) -> int:
        """Return the number of samples that the client at `position` trains on."""
        size = self.dataset.client_size(position)
        return size - held_out(size, self.validation)

    def client_data(self, position: int) -> tuple[ClientData, ClientData]:
        """Return copies of the samples that a client trains on and of those it evaluates on.

        They are on the clients' device, and the same where nothing is held out for validation.
        """
        data: ClientData = self.dataset.client(position)
        if not self.validation:
            there: ClientData = self.there(data)
            return there, there
        generator = torch_generator(self.seed, "validation", self.dataset.client_ids[position])
        order = torch.randperm(len(data.inputs), generator=generator)
        count = held_out(len(data.inputs), self.validation)
        parts = [rows.sort().values for rows in (order[count:], order[:count])]
        train, held = (ClientData(*(t.index_select(0, rows) for t in data)) for rows in parts)
        both: tuple[ClientData, ClientData] = self.there((train, held))
        return both

    def server_draws(self, *phase: int | str) -> contextlib.AbstractContextManager[Any]:
        """Return the scope of what the algorithm draws in a phase on the server.

        At L0 that is the process's global generators, as for everything else.
        """
        if self.level != "L1":
            return contextlib.nullcontext()
        return generator_scope(self.seed, "server", *phase)

    def there(self, value: Any) -> Any:
        """Return `value` with its tensors on the clients' device."""
        return value if self.device == "cpu" else moved(value, self.device)

    def _build(self) -> nn.Module:
        with generator_scope(self.seed, "init-model"):
            module = checked_model(self.model())
            return self.algorithm.adapt_model(module, self.loss)


@dataclass(frozen=True)
class ClientItem:
    """One client's part in a round."""

    client_id: int | str
    position: int
    round_index: int
    receives: bool
    train: bool
    uplink: bool
    lr: float
    state: dict[str, Any] = field(default_factory=dict)
    header: Mapping[str, Any] = field(default_factory=dict)
    private: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ClientResult:
    """What a client task returns: its update, its new state, its metrics and its timings."""

    num_samples: int
    update: Update | None
    state: dict[str, Any]
    metrics: Mapping[str, float]
    train_s: float
    uplink_s: float
    uplink_bytes: int


def _no_generator(purpose: str, *key: int | str) -> None:
    """Level L0: no generator of the client's own, draws come from the global one."""


_METRICS = 'a mapping of metrics, for example {"loss": loss}'


def _returned(kind: type, what: str, method: Callable[..., Any], *arguments: Any) -> Any:
    """Call a method of the algorithm and return its result if it is of the right kind."""
    value = method(*arguments)
    if not isinstance(value, kind):
        name = getattr(method, "__qualname__", repr(method))
        owner = type(getattr(method, "__self__", None)).__name__
        found = type(value).__name__
        raise TypeError(f"{owner}.{name.rpartition('.')[2]} must return {what}, got {found}.")
    return value


def _number(name: str, value: Any) -> float:
    """Return the value of a metric, which may be a tensor of one number, as a number."""
    number = value.item() if isinstance(value, Tensor) and value.numel() == 1 else plain(value)
    if not isinstance(number, int | float):
        raise TypeError(
            f"the metric {name!r} that train returns must be a number, got "
            f"{type(value).__name__}. Return its mean, for example."
        )
    return number


@dataclass(frozen=True)
class ClientTask:
    """Runs the train and uplink phases of one client: ``task(broadcast, item) -> result``."""

    side: Resident[ClientSide]

    def __call__(self, down: Mapping[str, Any], item: ClientItem) -> ClientResult:
        """Run the client; reads `down` and its own data and state only."""
        side = self.side.value
        state, own, residuals = parted(item.state)
        client, scope = _client(side, item, state)
        model = client.model
        down = side.there({**down, **item.private}) if item.receives else {}
        guard = None
        if side.check_enclosure:
            guard = EnclosureGuard(item.client_id, item.round_index, down, model)
        metrics: Mapping[str, float] = {}
        update: Update | None = None
        model.begin(own)
        try:
            with scope, _draws(side, item):
                if side.around_client is not None:
                    side.around_client(client)
                start = time.perf_counter()
                if item.train:
                    metrics = _returned(Mapping, _METRICS, side.algorithm.train, client, down)
                    metrics = {name: _number(name, value) for name, value in metrics.items()}
                trained = time.perf_counter()
                if item.uplink:
                    update = _returned(Update, "an Update", side.algorithm.uplink, client, down)
                own = model.kept()
                if side.device != "cpu":
                    update, client.state, own = moved((update, client.state, own), "cpu")
                if side.compression is not None and update is not None:
                    noise = functools.partial(_noise, side, item)
                    size = model.layout.num_parameters
                    update, residuals = compressed(side.compression, update, residuals, size, noise)
                sent = time.perf_counter()
        finally:
            model.begin({})  # the worker's next task belongs to somebody else
        if guard is not None:
            guard.check("train and uplink", update.tensors if update else {}, client.state)
        kept = kept_state(side.algorithm, client.state, item.client_id, item.round_index)
        simulated = {_OWN_ENTRIES: own, _RESIDUALS: residuals}
        return ClientResult(
            num_samples=client.num_samples,
            update=update,
            state={**kept, **{name: value for name, value in simulated.items() if value}},
            metrics=metrics,
            train_s=trained - start,
            uplink_s=sent - trained,
            uplink_bytes=num_bytes(update.tensors, model.layout) if update else 0,
        )


def _client(
    side: ClientSide, item: ClientItem, state: dict[str, Any]
) -> tuple[Client, contextlib.AbstractContextManager[Any]]:
    """Return the client of a task, and the scope of its random generators."""
    scope: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
    generator: Callable[..., torch.Generator | None] = _no_generator
    if side.level == "L1":
        key = (item.client_id, item.round_index)
        scope = generator_scope(side.seed, *key, check=side.check_enclosure)

        def generator(purpose: str, *more: int | str) -> torch.Generator:
            return torch_generator(side.seed, purpose, *key, *more)

    client = Client(
        client_id=item.client_id,
        position=item.position,
        round_index=item.round_index,
        data=side.client_data(item.position)[0],
        state=dict(side.there(state)),
        model=side.worker_model(),
        work=dataclasses.replace(side.work, lr=item.lr),
        loss=side.loss,
        generator=generator,
        header=item.header,
        received=item.receives,
        num_clients=side.dataset.num_clients,
    )
    return client, scope


def _draws(side: ClientSide, item: ClientItem) -> contextlib.AbstractContextManager[None]:
    """Return the scope of what a task draws on a GPU; at L0 that is the GPU's own generator."""
    if side.device == "cpu" or side.level != "L1":
        return contextlib.nullcontext()
    return device_draws(side.device, side.seed, item.client_id, item.round_index)


def _noise(side: ClientSide, item: ClientItem, entry: str) -> np.random.Generator:
    """Return the generator of a compression that rounds at random."""
    if side.level == "L1":
        return numpy_generator(side.seed, "noise", item.client_id, item.round_index, entry)
    # Level L0: from the process's global generator, as everything else of the client.
    return np.random.default_rng(np.random.randint(0, 2**31, size=4))  # noqa: NPY002
