"""Local SGD of many clients at once: their parameters stacked, their batches side by side.

A step of a small model costs little more than the calls that make it up. Stacked, one call serves
all clients of a chunk: the parameters are ``[clients, numel]``, a step's samples ``[clients,
batch, features]``, and the gradients of the linear layers are batched matrix products that go
straight into the parameters.

Clients of unequal sizes are sorted by their number of steps, so that those who still train are the
first rows. A batch that is smaller than the widest of its step is filled up with samples of weight
zero.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedbench.errors import VectorizationError
from fedbench.training.local_sgd import LocalWork, batch_gradient
from fedbench.training.losses import CROSS_ENTROPY, Loss
from fedbench.training.vectorized_reading import read_dense_network
from fedbench.training.vectorized_step import STACKED_LOSSES, StackedStep, VectorizedModel
from fedbench.training.worker_model import WorkerModel

__all__ = ["StackedResult", "refuse_work", "stacked_sgd", "vectorized_model"]

_CHECK_TOLERANCE = 1e-4
"""Difference from autograd's gradient, relative to its largest entry, at which to refuse."""

_SUPPORTED_WORK = {"epochs", "batch_size", "lr", "momentum", "weight_decay", "nesterov"}


@dataclass(frozen=True)
class StackedResult:
    """What the clients of a chunk end with.

    Attributes
    ----------
    parameters : torch.Tensor
        ``[clients, numel]``, in the order in which the clients were given.
    losses : list of float
        Mean training loss over the samples that each client visited.
    """

    parameters: Tensor
    losses: list[float]


def refuse_work(work: LocalWork) -> None:
    """Raise ``VectorizationError`` if `work` is more than SGD with momentum and decay."""
    for field in dataclasses.fields(work):
        value = getattr(work, field.name)
        if field.name not in _SUPPORTED_WORK and value != field.default:
            raise VectorizationError(
                f"the local work sets {field.name}, and only plain SGD with momentum and weight "
                "decay can be stacked"
            )


def vectorized_model(
    model: WorkerModel, inputs: Tensor, targets: Tensor, loss: Loss
) -> VectorizedModel:
    """Return what :func:`stacked_sgd` needs to know of a model, checked against autograd.

    Parameters
    ----------
    model : WorkerModel
        Read, not changed.
    inputs, targets : torch.Tensor
        Samples of the data to be trained on; the first ones are used to read and check the model.
    loss : Loss
        The loss of a batch.

    Raises
    ------
    VectorizationError
        If the clients of such a model cannot be stacked; the message is the reason.
    """
    if loss not in STACKED_LOSSES:
        raise VectorizationError("only the losses cross_entropy and mse have a stacked form")
    x, y = inputs[:2].clone(), targets[:2].clone()
    if x.dtype != model.layout.dtype:
        raise VectorizationError(
            f"the inputs are {x.dtype} and the model {model.layout.dtype}, and only models that "
            "take the samples as they are can be stacked"
        )
    found = VectorizedModel(read_dense_network(model, x), model.layout, loss)
    _check_targets(found, y)
    _check_gradient(found, model, x, y)
    return found


def _check_targets(found: VectorizedModel, targets: Tensor) -> None:
    network, layout = found.network, found.layout
    outputs = layout.shapes[layout.names.index(network.layers[-1].weight)][0]
    if found.loss == CROSS_ENTROPY:
        expected, fits = "one class for each sample", targets.dim() == 1 and not network.scalar
    else:
        expected = "as many values as the model has outputs"
        fits = targets.shape[1:] == (() if network.scalar else (outputs,))
    if not fits:
        raise VectorizationError(
            f"the targets of a sample must be {expected}, got shape {tuple(targets.shape[1:])}"
        )


def _check_gradient(found: VectorizedModel, model: WorkerModel, x: Tensor, y: Tensor) -> None:
    """Compare one stacked gradient with autograd's: shows what the recorded pass does not."""
    _, expected = batch_gradient(model, x, y, found.loss)
    gradient = torch.zeros_like(model.flat).unsqueeze(0)
    step = StackedStep(found, model.flat.clone().unsqueeze(0), gradient, lr=0.0)
    step.keep(1)
    step.run(x.flatten(1).unsqueeze(0), y.unsqueeze(0), torch.full((1, len(x)), 1 / len(x)))
    apart = float((gradient[0] - expected).abs().max())
    if not apart <= _CHECK_TOLERANCE * max(float(expected.abs().max()), 0.1):
        raise VectorizationError(
            f"the gradient of the stacked layers differs from autograd's by {apart:.1e}: the model "
            "does something that its operations do not show"
        )


def stacked_sgd(
    model: VectorizedModel,
    work: LocalWork,
    start: Tensor,
    clients: Sequence[Tensor],
    inputs: Tensor,
    targets: Tensor,
    generator: Callable[[int, int], torch.Generator],
    *,
    proximal: float = 0.0,
    anchor: Tensor | None = None,
) -> StackedResult:
    """Run the local work of several clients from one starting point.

    The batches are those of :func:`local_sgd` with the same generators. The operations on the
    numbers are grouped otherwise, so the result is that of :func:`local_sgd` up to rounding.

    Parameters
    ----------
    model : VectorizedModel
        From :func:`vectorized_model`.
    work : LocalWork
        Accepted by :func:`refuse_work`.
    start : torch.Tensor
        Flat parameters, shape ``(numel,)``; not changed. The clients train on its device.
    clients : sequence of torch.Tensor
        For each client the int64 indices of its samples, at least one.
    inputs, targets : torch.Tensor
        The samples of all clients, ``[n, ...]``.
    generator : callable
        ``(client, epoch) -> torch.Generator`` that orders the samples of that epoch.
    proximal, anchor
        As in :func:`local_sgd`.

    Returns
    -------
    StackedResult
        The clients' parameters and mean losses.

    Notes
    -----
    The bits are a function of the arguments, but those of one client may depend on which others
    are in the chunk.
    """
    device = start.device
    schedule = _Schedule(clients, work, generator, device)
    parameters = start.repeat(len(clients), 1)
    plain = not (work.momentum or work.weight_decay or proximal)
    gradient = None if plain else torch.zeros_like(parameters)
    step = StackedStep(model, parameters, gradient, work.lr)
    optimiser = _Optimiser(work, parameters, gradient, proximal, anchor)
    totals = torch.zeros(len(clients), dtype=torch.float64, device=device)
    for active, rows, weights, sizes in schedule:
        step.keep(active)
        flat = rows.flatten()
        x = inputs.index_select(0, flat).view(*rows.shape, -1).to(device)
        y = targets.index_select(0, flat).view(*rows.shape, *targets.shape[1:]).to(device)
        totals[:active] += step.run(x, y, weights) * sizes
        optimiser.step(active)
    means = totals.cpu() / (schedule.counts * work.epochs)
    back = schedule.positions.argsort()
    return StackedResult(parameters.index_select(0, back.to(device)), means[back].tolist())


class _Schedule:
    """The batches of a chunk: for each step the samples of the clients that still train.

    Iterating gives ``(active, rows, weights, sizes)``: the number of clients, their sample indices
    and weights ``[active, batch]``, and their batch sizes ``[active]``. The clients are in the
    order of `positions`, the longest first.
    """

    def __init__(
        self,
        clients: Sequence[Tensor],
        work: LocalWork,
        generator: Callable[[int, int], torch.Generator],
        device: torch.device,
    ) -> None:
        given = torch.tensor([len(indices) for indices in clients])
        self.positions = torch.argsort(given, descending=True, stable=True)
        self.counts = given[self.positions]
        batch = min(work.batch_size, int(self.counts[0]))
        per_epoch = (-(-self.counts // batch)).tolist()
        steps = torch.arange(per_epoch[0] * work.epochs).unsqueeze(1)
        rows = torch.empty(len(clients), len(steps), batch, dtype=torch.int64)
        sizes = torch.full((len(clients), len(steps)), batch)
        placed = zip(self.positions.tolist(), self.counts.tolist(), per_epoch, strict=True)
        for place, (position, count, length) in enumerate(placed):
            indices, last = clients[position], count - (length - 1) * batch
            if last < batch:
                # Padding repeats a sample of the client's own, with weight zero.
                rows[place] = indices[0]
                sizes[place, length - 1 :: length] = last
            visits = rows[place].view(-1)
            for epoch in range(work.epochs):
                order = torch.randperm(count, generator=generator(position, epoch))
                begin = epoch * length * batch
                torch.index_select(indices, 0, order, out=visits[begin : begin + count])
        self._rows = rows.transpose(0, 1).contiguous()
        sizes = sizes.T.contiguous()
        self._active = (torch.tensor(per_epoch) * work.epochs > steps).sum(1).tolist()
        filled = torch.arange(batch) < sizes.unsqueeze(2)
        self._weights = (filled / sizes.unsqueeze(2)).to(device)
        self._sizes = sizes.to(device)

    def __iter__(self) -> Iterator[tuple[int, Tensor, Tensor, Tensor]]:
        steps = zip(self._active, self._rows, self._weights, self._sizes, strict=True)
        for active, rows, weights, sizes in steps:
            yield active, rows[:active], weights[:active], sizes[:active]


class _Optimiser:
    """SGD as ``torch.optim.SGD`` defines it, with a proximal term, on stacked parameters."""

    def __init__(
        self,
        work: LocalWork,
        parameters: Tensor,
        gradient: Tensor | None,
        proximal: float,
        anchor: Tensor | None,
    ) -> None:
        self._work, self._parameters, self._gradient = work, parameters, gradient
        self._proximal, self._anchor = proximal, anchor
        self._velocity = torch.zeros_like(parameters) if work.momentum else None

    def step(self, active: int) -> None:
        """Move the first `active` clients along their gradients, unless that is done already."""
        if self._gradient is None:
            return
        work, own, step = self._work, self._parameters[:active], self._gradient[:active]
        if work.weight_decay:
            step.add_(own, alpha=work.weight_decay)
        if self._proximal and self._anchor is not None:
            step.add_(own - self._anchor, alpha=self._proximal)
        if self._velocity is not None:
            velocity = self._velocity[:active].mul_(work.momentum).add_(step)
            step = step.add_(velocity, alpha=work.momentum) if work.nesterov else velocity
        own.add_(step, alpha=-work.lr)
