"""One model per worker: state is loaded into it, it is never copied.

A deep copy of the model for each client costs more than the training of a small one. A worker
(a thread, a process or an actor) therefore keeps one model for each client side that it serves,
with its trainable parameters laid out in one flat vector.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fedbench.errors import LayoutError
from fedbench.training.exchange import Exchange
from fedbench.training.flat_vectors import copy_vector
from fedbench.training.parameters import ParameterLayout

__all__ = ["ModelState", "OwnEntries", "WorkerModel", "worker_model"]

OwnEntries = Mapping[str, Mapping[str, Tensor]]
"""Entries that stay on a client, by name, for each of the models that it trains."""

_KEPT_MODELS = 4


@dataclass
class ModelState:
    """State of a model apart from its structure.

    Attributes
    ----------
    parameters : torch.Tensor
        Flat vector of the trainable parameters, see :class:`ParameterLayout`.
    buffers : dict of str to torch.Tensor
        Persistent buffers and frozen parameters by name.
    """

    parameters: Tensor
    buffers: dict[str, Tensor] = field(default_factory=dict)

    def clone(self) -> ModelState:
        """Return a copy that shares no memory with this state."""
        copied = {name: tensor.clone() for name, tensor in self.buffers.items()}
        return ModelState(self.parameters.clone(), copied)


class WorkerModel:
    """A model whose trainable parameters are views into one flat vector.

    Parameters
    ----------
    model : torch.nn.Module
        Taken over: its parameters' storage is replaced.
    exchange : Exchange
        Which entries travel.

    Attributes
    ----------
    module : torch.nn.Module
        The model.
    layout : ParameterLayout
        Places in `flat` of the trainable parameters that travel.
    flat : torch.Tensor
        These parameters, shape ``(layout.numel,)``. In-place writes change the model.
    trainable : list of torch.Tensor
        All trainable parameters: those of the layout in its order, then the client's own.
    sent : list of str
        Names of the buffers that a client sends back.
    """

    def __init__(self, model: nn.Module, exchange: Exchange | None = None) -> None:
        self.module = model
        roles = (exchange or Exchange()).apply(model)
        self.layout = ParameterLayout.of(model, without=roles.own)
        named = dict(model.named_parameters())
        self.trainable: list[Tensor] = [named[name] for name in self.layout.names]
        self.flat = self.layout.zeros()
        with torch.no_grad():
            for parameter, view in zip(self.trainable, self.layout.views(self.flat), strict=True):
                view.copy_(parameter)
                parameter.data = view
        state = model.state_dict(keep_vars=True)
        placed = {id(p) for p in self.trainable} | {id(state[name]) for name in roles.own}
        self.trainable += [state[n] for n in roles.own if state[n].requires_grad]
        self._carried: dict[str, Tensor] = {
            name: tensor.detach() for name, tensor in state.items() if id(tensor) not in placed
        }
        self.sent = [name for name in self._carried if name not in roles.withheld]
        self._shapes = {name: tensor.shape for name, tensor in state.items()}
        self._own = {name: state[name].detach() for name in roles.own}
        self._first = self._own_entries()
        self._requires_grad: list[tuple[Tensor, bool]] = [
            (parameter, parameter.requires_grad) for parameter in model.parameters()
        ]
        self.begin({})

    def begin(self, own: OwnEntries) -> None:
        """Let the client begin whose own entries are `own`; what the last one left is dropped."""
        self._kept: dict[str, Mapping[str, Tensor]] = dict(own)
        self._loaded: str | None = None

    def kept(self) -> dict[str, Mapping[str, Tensor]]:
        """Return the client's own entries by model as they are now; empty if it has none."""
        if self._own and self._loaded is not None:
            self._kept[self._loaded] = self._own_entries()
        return dict(self._kept)

    def state(self) -> ModelState:
        """Return a copy of the model's present state, the client's own entries left out."""
        return ModelState(self.flat.clone(), self.buffers())

    def buffers(self) -> dict[str, Tensor]:
        """Return copies of the persistent buffers and frozen parameters that travel, by name."""
        return {name: tensor.clone() for name, tensor in self._carried.items()}

    def sent_buffers(self) -> dict[str, Tensor]:
        """Return copies of those buffers that a client sends back, by name."""
        return {name: self._carried[name].clone() for name in self.sent}

    def load(self, state: ModelState, own: str = "shared") -> None:
        """Copy `state` into the model, and the client's own entries with it.

        Parameters
        ----------
        state : ModelState
            Parameters and buffers.
        own : str
            Which of the client's models this is. Its own entries are kept under this name; they
            start as those of the initial model.

        Raises
        ------
        LayoutError
            If the state is not that of this architecture.
        """
        if state.buffers.keys() != self._carried.keys():
            missing = sorted(self._carried.keys() - state.buffers.keys())
            unexpected = sorted(state.buffers.keys() - self._carried.keys())
            raise LayoutError(
                f"the state's buffers are not those of the model: missing {missing}, "
                f"unexpected {unexpected}. Use one architecture for server and clients."
            )
        if state.parameters.shape != self.flat.shape:
            raise LayoutError(
                f"the state has {state.parameters.numel()} flat parameters, the model has "
                f"{self.flat.numel()}. Use one architecture for server and clients."
            )
        copy_vector(self.flat, state.parameters)
        for name, tensor in self._carried.items():
            tensor.copy_(state.buffers[name])
        if self._own:
            self._kept = self.kept()
            entries = self._kept.get(own, self._first)
            for name, tensor in self._own.items():
                tensor.copy_(entries[name])
            self._loaded = own

    @property
    def own_names(self) -> tuple[str, ...]:
        """Names of the entries that stay on a client."""
        return tuple(self._own)

    def has_own(self, own: str) -> bool:
        """Return whether the client has entries of its own for its model `own`."""
        return own in self._kept

    def take_in(self) -> None:
        """Make sure that `flat` holds the parameters after code that may have moved them.

        Raises
        ------
        LayoutError
            If the module has other parameters than before, or one of another shape.
        """
        if [id(p) for p, _ in self._requires_grad] != [id(p) for p in self.module.parameters()]:
            raise LayoutError(
                "the parameters of the model must stay the same objects, but some were replaced. "
                "Change them in place, for example with parameter.copy_(...) under no_grad()."
            )
        for name, tensor in self.module.state_dict().items():
            if tensor.shape != self._shapes.get(name, tensor.shape):
                raise LayoutError(
                    f"the shape of {name!r} must stay {tuple(self._shapes[name])}, got "
                    f"{tuple(tensor.shape)}. Change the entries of the model in place."
                )
        for parameter, requires_grad in self._requires_grad:
            parameter.requires_grad_(requires_grad)
        with torch.no_grad():
            for parameter, view in zip(self.trainable, self.layout.views(self.flat), strict=False):
                if parameter.data_ptr() != view.data_ptr():
                    view.copy_(parameter)
                    parameter.data = view

    def _own_entries(self) -> dict[str, Tensor]:
        return {name: tensor.clone() for name, tensor in self._own.items()}

    def state_dict(self) -> dict[str, Tensor]:
        """Return copies of parameters and buffers by name, as ``torch`` would list them."""
        return {name: tensor.detach().clone() for name, tensor in self.module.state_dict().items()}


class _Cache(threading.local):
    def __init__(self) -> None:
        self.models: OrderedDict[int, tuple[object, WorkerModel]] = OrderedDict()


_cache = _Cache()


def worker_model(
    owner: object, build: Callable[[], nn.Module], exchange: Exchange | None = None
) -> WorkerModel:
    """Return this worker's model for `owner`, built by `build` when it is asked for first.

    Parameters
    ----------
    owner : object
        Whatever lives in the worker as long as the model is of use (the client side of a
        simulation). Compared by identity.
    build : callable
        Returns a new ``torch.nn.Module``.
    exchange : Exchange, optional
        Which entries of it travel.
    """
    models = _cache.models
    key = id(owner)
    if key in models:
        models.move_to_end(key)
        return models[key][1]
    # The entry holds `owner`, so its id cannot be given to another object meanwhile.
    models[key] = (owner, WorkerModel(build(), exchange))
    while len(models) > _KEPT_MODELS:
        models.popitem(last=False)
    return models[key][1]
