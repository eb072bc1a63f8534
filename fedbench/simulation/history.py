"""What a simulation reports: one record for each round, and tables made from them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["PHASES", "History", "RoundRecord"]

PHASES = ("broadcast", "train", "uplink", "aggregate", "evaluate")
"""Phases of a round in their order."""


@dataclass(frozen=True)
class RoundRecord:
    """What happened in one round.

    Attributes
    ----------
    round : int
        Number of the round, counted from 1.
    cohort : tuple
        Ids of the sampled clients in selection order.
    metrics : mapping of str to mapping of str to float
        ``{"train": {...}, "test": {...}}``; ``"test"`` only in rounds that evaluated.
        Training metrics are means over the cohort weighted by number of samples. Where clients
        evaluate on their own data there are ``"clients"`` (the server's model) and
        ``"personal"`` (their own models), each with ``_worst_decile`` and ``_variance`` of the
        loss and the score over the clients.
    seconds : mapping of str to float
        Seconds for each of ``PHASES`` and ``"total"``. Work inside client tasks is summed
        over the clients, so with several workers the phases may add up to more than ``"total"``,
        which is the wall time of the round without evaluation.
    task_s : float
        Seconds spent inside client tasks, summed over the clients, without evaluation.
    uplink_bytes : int
        Bytes of what the clients sent: parameters, buffers and the like, compressed if they are.
    reduced_in_workers : bool
        Whether the workers folded the updates, so that only partial sums travelled.
    lr : float
        Learning rate of the clients in this round.
    dropped, late : tuple
        Ids of the sampled clients that failed, and of those that missed the deadline, in
        simulation.
    simulated_s : float or None
        Simulated seconds of the round; None without stragglers.
    clients : mapping of str to mapping of str to list
        Metrics of each client, by split, as columns: ``"client"``, ``"samples"`` and the metrics.
    """

    round: int
    cohort: tuple[int | str, ...]
    metrics: Mapping[str, Mapping[str, float]]
    seconds: Mapping[str, float]
    task_s: float
    uplink_bytes: int
    reduced_in_workers: bool = False
    lr: float = math.nan
    dropped: tuple[int | str, ...] = ()
    late: tuple[int | str, ...] = ()
    simulated_s: float | None = None
    clients: Mapping[str, Mapping[str, Sequence[Any]]] = field(default_factory=dict, repr=False)

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> RoundRecord:
        """Return the record whose fields, as JSON gives them back, are in `plain`."""
        tuples = {name: tuple(plain.get(name, ())) for name in ("cohort", "dropped", "late")}
        return cls(**{**plain, **tuples})


@dataclass(repr=False)
class History:
    """The records of a simulation, in order.

    Attributes
    ----------
    records : list of RoundRecord
        One for each round.
    pinned : dict
        What the bits of the run depend on besides its seed: versions, instruction sets, threads,
        flags (:func:`fedbench.reproducibility.pinned`).
    """

    records: list[RoundRecord] = field(default_factory=list)
    pinned: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        last: dict[str, float] = {}
        for record in self.records:
            for split, metrics in record.metrics.items():
                last |= {f"{split} {name}": value for name, value in metrics.items()}
        shown = "".join(f", {name} {value:.4g}" for name, value in last.items())
        return f"History({len(self.records)} rounds{shown})"

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[RoundRecord]:
        return iter(self.records)

    def last(self, split: str, metric: str) -> float:
        """Return the most recent value of a metric.

        Raises
        ------
        KeyError
            If no round has it; the message lists what there is.
        """
        for record in reversed(self.records):
            if metric in record.metrics.get(split, {}):
                return record.metrics[split][metric]
        known = sorted({f"{s}/{m}" for r in self.records for s, v in r.metrics.items() for m in v})
        raise KeyError(f"no round has the metric {split}/{metric}; there is {', '.join(known)}.")

    def to_frame(self) -> pd.DataFrame:
        """Return the metrics as a tidy table.

        Returns
        -------
        pandas.DataFrame
            One row for each round, split and metric, with the columns ``round`` (from 1),
            ``split`` (``"train"``, ``"test"``, ...), ``metric`` and ``value``.
        """
        import pandas as pd

        rows = [
            (record.round, split, metric, value)
            for record in self.records
            for split, metrics in record.metrics.items()
            for metric, value in metrics.items()
        ]
        return pd.DataFrame(rows, columns=["round", "split", "metric", "value"])

    def client_frame(self) -> pd.DataFrame:
        """Return the metrics of each client as a tidy table.

        Returns
        -------
        pandas.DataFrame
            One row for each round, split, client and metric, with the columns ``round`` (from 1),
            ``split``, ``client``, ``samples`` (that its metrics are about), ``metric`` and
            ``value``.
        """
        import pandas as pd

        rows = [
            (record.round, split, client, samples, metric, value)
            for record in self.records
            for split, table in record.clients.items()
            for metric in table
            if metric not in ("client", "samples")
            for client, samples, value in zip(
                table["client"], table["samples"], table[metric], strict=True
            )
        ]
        columns = ["round", "split", "client", "samples", "metric", "value"]
        return pd.DataFrame(rows, columns=columns)

    def rounds_frame(self) -> pd.DataFrame:
        """Return what happened in each round beside its metrics.

        Returns
        -------
        pandas.DataFrame
            One row for each round: ``round``, ``lr``, ``cohort``, ``dropped`` and ``late``
            (numbers of clients), ``simulated_s`` and ``uplink_bytes``.
        """
        import pandas as pd

        rows = [
            {
                "round": r.round,
                "lr": r.lr,
                "cohort": len(r.cohort),
                "dropped": len(r.dropped),
                "late": len(r.late),
                "simulated_s": math.nan if r.simulated_s is None else r.simulated_s,
                "uplink_bytes": r.uplink_bytes,
            }
            for r in self.records
        ]
        columns = ["round", "lr", "cohort", "dropped", "late", "simulated_s", "uplink_bytes"]
        return pd.DataFrame(rows, columns=columns)

    def timings(self) -> pd.DataFrame:
        """Return the seconds of each phase, one row for each round (see :class:`RoundRecord`)."""
        import pandas as pd

        rows = [
            {"round": r.round, **{p: r.seconds[p] for p in (*PHASES, "total")}, "task_s": r.task_s}
            for r in self.records
        ]
        return pd.DataFrame(rows, columns=["round", *PHASES, "total", "task_s"])
