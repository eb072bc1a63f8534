"""What a simulation does beside the plain course: participation, faults, exchange, evaluation."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from fedbench.algorithms import Algorithm
from fedbench.registry import did_you_mean
from fedbench.simulation.compression import COMPRESSIONS, Compression
from fedbench.simulation.faults import STRAGGLERS, Stragglers, check_dropout
from fedbench.simulation.participation import PARTICIPATIONS, Participation, Uniform
from fedbench.training import (
    SCHEDULES,
    Constant,
    Exchange,
    LocalWork,
    MakeOptimizer,
    OwnTraining,
    Schedule,
    checked_flag,
    described,
    made,
    plain,
    resolve_optimizer,
)
from fedbench.workloads import Workload

__all__ = ["SimulationOptions", "held_out", "make_options", "refuse_compression"]


ARGUMENTS = (
    "algorithm",
    "executor",
    "workers",
    "seed",
    "reproducibility",
    "cohort_size",
    "check_enclosure",
    "reduce_in_workers",
    "vectorized",
    "device",
    "observer",
    "around_client",
)
"""The keyword arguments of a simulation that are not its options."""

_OTHERWISE = {
    "backend": "Pass executor='NAME' with the name of the backend.",
    **dict.fromkeys(
        ("num_workers", "n_workers", "max_workers", "n_jobs"), "Did you mean 'workers'?"
    ),
    "rounds": "Pass rounds to its method run().",
    "num_clients": (
        "Pass cohort_size for the clients of a round; how many there are in all is up to the data."
    ),
    "clients_per_round": "Did you mean 'cohort_size'?",
}
"""What is meant by names that are not alike, by the name."""


@dataclass(frozen=True)
class SimulationOptions:
    """Further keyword arguments of a :class:`fedbench.simulation.Simulation`.

    Where a part is chosen, a name stands for the part with its defaults, a mapping such as
    ``{"name": "top_k", "fraction": 0.1}`` for one with options, and an object for itself.

    Parameters
    ----------
    participation : str, mapping or Participation
        How cohorts are sampled: a name of ``fedbench.simulation.PARTICIPATIONS``.
    client_dropout : float
        Probability that a sampled client fails before it has done anything, in [0, 1).
    stragglers : str, mapping or Stragglers, optional
        Simulated durations and a deadline: a name of ``fedbench.simulation.STRAGGLERS``. The round
        of a client that is late is void, as that of one that fails.
    schedule : str, mapping or callable
        Factor of the learning rate in each round: a name of ``fedbench.training.SCHEDULES``, or
        a function ``round_index -> factor`` with rounds counted from 0.
    clip_norm, clip_value : float, optional
        Clip the gradients of the local steps; see :class:`fedbench.training.LocalWork`.
    optimizer : str, mapping or callable, optional
        Optimiser of the local steps in place of SGD: a name of ``fedbench.training.OPTIMIZERS``, or
        a function ``(parameters, lr) -> optimiser``. Made anew for each participation.
    train : callable, optional
        ``train(model, data, rng) -> loss``: your local training in place of the epochs of SGD.
    drop_last : bool
        Leave out the last batch of a local epoch where it is smaller than the others; see
        :class:`fedbench.training.LocalWork`.
    buffers : {"average", "local"}
        See :class:`fedbench.training.Exchange`, as for the next three.
    integers : {"max", "server", "sum"}
        What becomes of integer buffers.
    frozen, personal : sequence of str
        Patterns of entries that are not trained, and of entries that never leave their client.
    compression : str, mapping or Compression, optional
        Of the uplink: a name of ``fedbench.simulation.COMPRESSIONS``.
    validation : float
        Share of each client's samples that is kept from training for its own evaluation, in
        [0, 1), rounded to whole samples; at least one of each part if the client has two.
    evaluate_clients : {"cohort", "all"}, optional
        Which clients evaluate on their own data in the rounds that are evaluated.

    Raises
    ------
    UnknownNameError, TypeError, ValueError
        If an option is not as described.
    """

    participation: Participation = dataclasses.field(default_factory=Uniform)
    client_dropout: float = 0.0
    stragglers: Stragglers | None = None
    schedule: Schedule = dataclasses.field(default_factory=Constant)
    clip_norm: float | None = None
    clip_value: float | None = None
    optimizer: MakeOptimizer | None = None
    train: OwnTraining | None = None
    drop_last: bool = False
    buffers: Literal["average", "local"] = "average"
    integers: Literal["max", "server", "sum"] = "max"
    frozen: tuple[str, ...] = ()
    personal: tuple[str, ...] = ()
    compression: Compression | None = None
    validation: float = 0.0
    evaluate_clients: Literal["cohort", "all"] | None = None

    def __post_init__(self) -> None:
        parts = {
            "participation": made(PARTICIPATIONS, self.participation),
            "stragglers": made(STRAGGLERS, self.stragglers),
            "schedule": made(SCHEDULES, self.schedule),
            "compression": made(COMPRESSIONS, self.compression),
            "optimizer": resolve_optimizer(self.optimizer),
            "client_dropout": check_dropout(self.client_dropout),
            "drop_last": checked_flag("drop_last", self.drop_last),
        }
        exchange = Exchange(self.buffers, self.integers, self.frozen, self.personal)
        parts |= {"frozen": exchange.frozen, "personal": exchange.personal}
        for name, value in parts.items():
            object.__setattr__(self, name, value)
        _check_part("participation", self.participation, Participation)
        for name, kind in (("stragglers", Stragglers), ("compression", Compression)):
            if getattr(self, name) is not None:
                _check_part(name, getattr(self, name), kind)
        if not callable(self.schedule):
            raise TypeError(
                f"schedule must be a name, a mapping or a function of the round, got "
                f"{type(self.schedule).__name__}."
            )
        if self.train is not None and self.schedule != Constant():
            raise ValueError(
                f"schedule must be left out beside train, got {described(self.schedule)}: your "
                f"function chooses its own learning rate and would not know this one."
            )
        share = plain(self.validation)
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share < 1:
            raise ValueError(f"validation must be a share in [0, 1), got {share!r}.")
        object.__setattr__(self, "validation", share)
        if self.evaluate_clients not in (None, "cohort", "all"):
            raise ValueError(
                f"evaluate_clients must be 'cohort', 'all' or left out, got "
                f"{self.evaluate_clients!r}."
            )

    @property
    def exchange(self) -> Exchange:
        """Which entries of the model travel."""
        return Exchange(self.buffers, self.integers, self.frozen, self.personal)

    def work(self, workload: Workload) -> LocalWork:
        """Return the local work of the workload's clients under these options."""
        return LocalWork(
            epochs=workload.local_epochs,
            batch_size=workload.batch_size,
            lr=workload.lr,
            momentum=workload.momentum,
            weight_decay=workload.weight_decay,
            nesterov=workload.nesterov,
            clip_norm=self.clip_norm,
            clip_value=self.clip_value,
            optimizer=self.optimizer,
            train=self.train,
            drop_last=self.drop_last,
        )

    def changed(self) -> dict[str, str]:
        """Return the options that are not the default, as text that tells them apart."""
        return {name: described(getattr(self, name)) for name in self._changed_names()}

    def _changed_names(self) -> list[str]:
        defaults = SimulationOptions()
        names = [field.name for field in dataclasses.fields(self)]
        return [name for name in names if getattr(self, name) != getattr(defaults, name)]

    def refuse_for(self, algorithm: Algorithm) -> None:
        """Raise ``ValueError`` if `algorithm` cannot honour one of these options."""
        wrong = sorted(algorithm.unsupported.intersection(self._changed_names()))
        if wrong:
            raise ValueError(
                f"{wrong[0]} must be left out with {type(algorithm).__name__}, which does not "
                f"honour it."
            )


def refuse_compression(
    compression: Compression | None, dtype: torch.dtype, reduce_in_workers: bool | None
) -> None:
    """Raise ``ValueError`` if updates cannot be compressed in this simulation."""
    if compression is None:
        return
    if reduce_in_workers:
        raise ValueError(
            "reduce_in_workers must be left out with compression, got True: workers fold whole "
            "vectors only."
        )
    if dtype not in compression.dtypes:
        raise ValueError(
            f"compression must be one for {dtype} parameters, got {described(compression)}, which "
            f"is for {', '.join(sorted(map(str, compression.dtypes)))}."
        )


def make_options(of_workload: Mapping[str, Any], given: Mapping[str, Any]) -> SimulationOptions:
    """Return the options of a workload with those that were `given` in their place.

    Raises
    ------
    TypeError
        If there is no such option; the message says which one may have been meant.
    """
    chosen = {**of_workload, **given}
    known = [field.name for field in dataclasses.fields(SimulationOptions)]
    for name in chosen:
        if name not in known:
            raise TypeError(f"a simulation has no option {name!r}. {_meant(name, known)}")
    return SimulationOptions(**chosen)


def _meant(name: str, known: list[str]) -> str:
    """Return where a keyword argument belongs that is no option of a simulation."""
    if name in _OTHERWISE:
        return _OTHERWISE[name]
    of_workload = [field.name for field in dataclasses.fields(Workload)]
    name = {"learning_rate": "lr", "epochs": "local_epochs"}.get(name, name)
    if name in of_workload:
        return (
            f"{name} belongs to the workload: pass dataclasses.replace(workload, {name}=...), "
            f"where fedbench.workloads.load('NAME') gives a built-in workload."
        )
    if name in ARGUMENTS:
        return f"Pass {name} to the Simulation itself."
    known = [*ARGUMENTS, *known]
    return did_you_mean(name, known).lstrip() or f"There are {', '.join(known)}."


def held_out(num_samples: int, share: float) -> int:
    """Return how many of a client's samples are kept for its evaluation."""
    if share == 0.0 or num_samples < 2:
        return 0
    return min(max(1, math.floor(share * num_samples + 0.5)), num_samples - 1)


def _check_part(name: str, value: object, kind: type) -> None:
    if not isinstance(value, kind):
        raise TypeError(
            f"{name} must be a name, a mapping with a name and options, or a "
            f"{kind.__name__}, got {type(value).__name__}."
        )
