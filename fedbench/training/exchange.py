"""Which entries of a model travel between server and clients, and which stay where they are."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from fedbench.registry import did_you_mean

__all__ = ["Exchange", "Roles"]


@dataclass(frozen=True)
class Roles:
    """The names of a model's entries by what happens to them.

    Attributes
    ----------
    own : tuple of str
        Entries that stay on the client, in the order of the state dict; tied entries once.
    withheld : frozenset of str
        Entries that the server has and clients never send back.
    """

    own: tuple[str, ...]
    withheld: frozenset[str]


@dataclass(frozen=True)
class Exchange:
    """What happens to the buffers of the model and to entries that are named by pattern.

    Patterns are those of ``fnmatch``, matched against the names of the state dict:
    ``"head.*"``, ``"*.bias"``.

    Parameters
    ----------
    buffers : {"average", "local"}
        Average the buffers like parameters, or keep them on the client as FedBN does [1]_,
        integer ones included, since they count what the others are statistics of.
    integers : {"max", "server", "sum"}
        What becomes of integer and bool buffers that are averaged otherwise: the largest value of
        the clients, the server's own, or the server's plus the increments of all clients (for
        bool: whether any is true).
    frozen : sequence of str
        Patterns of parameters that are not trained and not sent back.
    personal : sequence of str
        Patterns of parameters and buffers that stay on the client: trained by its local steps,
        kept between its rounds, seen by no algorithm and never sent.

    References
    ----------
    .. [1] Li, Jiang, Zhang, Kamp and Dou, "FedBN: Federated Learning on Non-IID Features via Local
       Batch Normalization", ICLR 2021. It also keeps the affine parameters of the normalisation;
       name them in `personal` for that.
    """

    buffers: Literal["average", "local"] = "average"
    integers: Literal["max", "server", "sum"] = "max"
    frozen: tuple[str, ...] = ()
    personal: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, known in (("buffers", ("average", "local")), ("integers", _INTEGERS)):
            value = getattr(self, name)
            if value not in known:
                raise ValueError(
                    f"{name} must be one of {', '.join(map(repr, known))}, got {value!r}."
                )
        for name in ("frozen", "personal"):
            patterns = getattr(self, name)
            texts = not isinstance(patterns, str | Mapping) and isinstance(patterns, Iterable)
            if not texts or not all(isinstance(pattern, str) for pattern in patterns):
                raise TypeError(
                    f"{name} must be a list of patterns such as ['head.*'], got {patterns!r}."
                )
            object.__setattr__(self, name, tuple(patterns))

    def apply(self, model: nn.Module) -> Roles:
        """Freeze what is to be frozen in `model` and return the roles of its entries.

        Raises
        ------
        ValueError
            If a pattern matches nothing, an entry is frozen and personal, or one of two tied
            entries is personal and the other is not.
        """
        state = model.state_dict(keep_vars=True)
        parameters = dict(model.named_parameters(remove_duplicate=False))
        frozen = _matched("frozen", self.frozen, parameters, "parameters")
        personal = _matched("personal", self.personal, state, "entries")
        both = sorted(frozen & personal)
        if both:
            raise ValueError(
                f"frozen and personal must name different entries, got {both[0]!r} in both. A "
                f"frozen parameter is the same everywhere."
            )
        _check_ties(personal, state)
        for name in frozen:
            parameters[name].requires_grad_(False)
        fixed = {name for name, p in parameters.items() if not p.requires_grad}
        buffers = [name for name in state if name not in parameters]
        withheld = set(fixed)
        if self.buffers == "local":
            personal |= set(buffers)
        elif self.integers == "server":
            withheld |= {name for name in buffers if not _is_floating(state[name])}
        once = {id(state[name]): name for name in reversed(state) if name in personal}
        own = tuple(name for name in state if once.get(id(state[name])) == name)
        return Roles(own, frozenset(withheld))


_INTEGERS = ("max", "server", "sum")


def _is_floating(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _matched(
    option: str, patterns: Iterable[str], entries: Mapping[str, torch.Tensor], what: str
) -> set[str]:
    """Return the names that the patterns match; each has to match one."""
    found: set[str] = set()
    for pattern in patterns:
        names = fnmatch.filter(entries, pattern)
        if not names:
            modules = dict.fromkeys(name.rpartition(".")[0] for name in entries)
            known = [*entries, *(f"{module}.*" for module in modules if module)]
            hint = did_you_mean(pattern, known, cutoff=0.4) or f" There are {', '.join(entries)}."
            raise ValueError(
                f"{option} must match {what} of the model, but {pattern!r} matches none.{hint}"
            )
        found.update(names)
    return found


def _check_ties(personal: set[str], state: Mapping[str, torch.Tensor]) -> None:
    owners = {id(state[name]): name for name in state if name in personal}
    for name, tensor in state.items():
        if id(tensor) in owners and name not in personal:
            raise ValueError(
                f"personal must name both of two tied entries or neither, got "
                f"{owners[id(tensor)]!r} without {name!r}."
            )
