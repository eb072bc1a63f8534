"""What runs inside the workers: the client task and the evaluation task.

Both are small objects. What never changes during a simulation (data, model, algorithm) is the
:class:`ClientSide`, which every worker receives once.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from fedbench.algorithms import Algorithm, Client, Update
from fedbench.data import ClientData, FederatedDataset
from fedbench.executors import Resident
from fedbench.reproducibility import (
    generator_scope,
    redirect_global_generators,
    torch_generator,
)
from fedbench.simulation.arguments import checked_model
from fedbench.simulation.devices import device_draws, moved
from fedbench.simulation.enclosure import EnclosureGuard
from fedbench.training import (
    LOSSES,
    EvaluationSums,
    LocalWork,
    Loss,
    ModelState,
    WorkerModel,
    evaluate_batches,
    worker_model,
)
from fedbench.workloads import Workload

__all__ = [
    "ClientItem",
    "ClientResult",
    "ClientSide",
    "ClientTask",
    "EvaluationTask",
    "num_bytes",
]


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
    check_enclosure: bool
    around_client: Callable[[Client], None] | None = None
    device: str = "cpu"

    @classmethod
    def of(
        cls,
        workload: Workload,
        dataset: FederatedDataset,
        algorithm: Algorithm,
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
            work=LocalWork(
                epochs=workload.local_epochs,
                batch_size=workload.batch_size,
                lr=workload.lr,
                momentum=workload.momentum,
                weight_decay=workload.weight_decay,
                nesterov=workload.nesterov,
            ),
            loss=LOSSES.load(workload.loss),
            seed=seed,
            level=level,
            **watching,
        )

    def worker_model(self) -> WorkerModel:
        """Return this worker's model, built without touching any global generator."""
        return worker_model(self, lambda: self._build().to(self.device))

    def server_model(self) -> WorkerModel:
        """Return the server's own model, which is in CPU memory whatever the clients' device."""
        return self.worker_model() if self.device == "cpu" else WorkerModel(self._build())

    def client_data(self, position: int) -> ClientData:
        """Return copies of a client's samples, on the clients' device."""
        data: ClientData = self.there(self.dataset.client(position))
        return data

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
        raise TypeError(f"{owner}.{name.rpartition('.')[2]} must return {what}, got {value!r}.")
    return value


@dataclass(frozen=True)
class ClientTask:
    """Runs the train and uplink phases of one client: ``task(broadcast, item) -> result``."""

    side: Resident[ClientSide]

    def __call__(self, down: Mapping[str, Any], item: ClientItem) -> ClientResult:
        """Run the client; reads `down` and its own data and state only."""
        side = self.side.value
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
            data=side.client_data(item.position),
            state=dict(side.there(item.state)),
            model=side.worker_model(),
            work=side.work,
            loss=side.loss,
            generator=generator,
            header=item.header,
            received=item.receives,
            num_clients=side.dataset.num_clients,
        )
        down = side.there({**down, **item.private}) if item.receives else {}
        guard = None
        if side.check_enclosure:
            guard = EnclosureGuard(item.client_id, item.round_index, down, client.model)
        metrics: Mapping[str, float] = {}
        update: Update | None = None
        with scope, device_draws(side.device, side.seed, item.client_id, item.round_index):
            if side.around_client is not None:
                side.around_client(client)
            start = time.perf_counter()
            if item.train:
                metrics = _returned(Mapping, _METRICS, side.algorithm.train, client, down)
            trained = time.perf_counter()
            if item.uplink:
                update = _returned(Update, "an Update", side.algorithm.uplink, client, down)
            if side.device != "cpu":
                update, client.state = moved((update, client.state), "cpu")
            sent = time.perf_counter()
        if guard is not None:
            guard.check("train and uplink", update.tensors if update else {}, client.state)
        return ClientResult(
            num_samples=client.num_samples,
            update=update,
            state=client.state,
            metrics=metrics,
            train_s=trained - start,
            uplink_s=sent - trained,
            uplink_bytes=num_bytes(update.tensors) if update else 0,
        )


@dataclass(frozen=True)
class EvaluationTask:
    """Evaluates a broadcast model on one chunk of the test set: ``task(broadcast, chunk)``."""

    side: Resident[ClientSide]

    def __call__(
        self, models: Mapping[str, ModelState], chunk: tuple[str, int, int]
    ) -> EvaluationSums:
        """Return the sums of the model ``chunk[0]`` over a range of the test samples."""
        side = self.side.value
        split, start, stop = chunk
        model = side.worker_model()
        model.load(models[split])
        rows = slice(start, stop)
        dataset = side.dataset
        samples = (dataset.test_inputs[rows], dataset.test_targets[rows])
        return evaluate_batches(model, *side.there(samples), side.loss)


def num_bytes(value: Any) -> int:
    """Return the bytes of all tensors in a nested mapping."""
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, Mapping):
        return sum(num_bytes(entry) for entry in value.values())
    return 0
