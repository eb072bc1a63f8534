"""One model per worker: state is loaded into it, it is never copied.

A deep copy of the model for each client costs more than the training of a small one. A worker
(a thread, a process or an actor) therefore keeps one model for each client side that it serves,
with its trainable parameters laid out in one flat vector.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fedbench.errors import LayoutError
from fedbench.training.parameters import ParameterLayout

__all__ = ["ModelState", "WorkerModel", "worker_model"]

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

    Attributes
    ----------
    module : torch.nn.Module
        The model.
    layout : ParameterLayout
        Places of the trainable parameters in `flat`.
    flat : torch.Tensor
        The trainable parameters, shape ``(layout.numel,)``. In-place writes change the model.
    trainable : list of torch.Tensor
        The trainable parameters in layout order.
    """

    def __init__(self, model: nn.Module) -> None:
        self.module = model
        self.layout = ParameterLayout.of(model)
        self.trainable: list[Tensor] = [p for p in model.parameters() if p.requires_grad]
        self.flat = self.layout.zeros()
        with torch.no_grad():
            for parameter, view in zip(self.trainable, self.layout.views(self.flat), strict=True):
                view.copy_(parameter)
                parameter.data = view
        trainable = set(self.layout.names)
        state = model.state_dict(keep_vars=True)
        shared = {id(p) for p in self.trainable}
        self._carried: dict[str, Tensor] = {
            name: tensor.detach()
            for name, tensor in state.items()
            if name not in trainable and id(tensor) not in shared
        }

    def state(self) -> ModelState:
        """Return a copy of the model's present state."""
        return ModelState(self.flat.clone(), self.buffers())

    def buffers(self) -> dict[str, Tensor]:
        """Return copies of the persistent buffers and frozen parameters by name."""
        return {name: tensor.clone() for name, tensor in self._carried.items()}

    def load(self, state: ModelState) -> None:
        """Copy `state` into the model.

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
        self.flat.copy_(state.parameters)
        for name, tensor in self._carried.items():
            tensor.copy_(state.buffers[name])

    def state_dict(self) -> dict[str, Tensor]:
        """Return copies of parameters and buffers by name, as ``torch`` would list them."""
        return {name: tensor.detach().clone() for name, tensor in self.module.state_dict().items()}


class _Cache(threading.local):
    def __init__(self) -> None:
        self.models: OrderedDict[int, tuple[object, WorkerModel]] = OrderedDict()


_cache = _Cache()


def worker_model(owner: object, build: Callable[[], nn.Module]) -> WorkerModel:
    """Return this worker's model for `owner`, built by `build` when it is asked for first.

    Parameters
    ----------
    owner : object
        Whatever lives in the worker as long as the model is of use (the client side of a
        simulation). Compared by identity.
    build : callable
        Returns a new ``torch.nn.Module``.
    """
    models = _cache.models
    key = id(owner)
    if key in models:
        models.move_to_end(key)
        return models[key][1]
    # The entry holds `owner`, so its id cannot be given to another object meanwhile.
    models[key] = (owner, WorkerModel(build()))
    while len(models) > _KEPT_MODELS:
        models.popitem(last=False)
    return models[key][1]
