"""Who is sampled for a round: the cohort.

Sampling takes time and memory of the cohort, not of the population, and draws from a stream of the
server's that belongs to the round alone.
"""

from __future__ import annotations

import bisect
import csv
import itertools
import math
import os
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fedbench.data import FederatedDataset
from fedbench.registry import Entry, Registry
from fedbench.reproducibility import digest
from fedbench.training import described, whole

__all__ = ["PARTICIPATIONS", "Participation", "Sampler", "Trace", "Uniform", "Weighted"]

Sampler = Callable[[int, random.Random], tuple[int, ...]]
"""``(round_index, random) -> positions`` of the cohort, in selection order."""

_DRAWS_PER_CLIENT = 16
"""Draws for a client after which those who are left are weighed anew."""


class Participation(ABC):
    """How cohorts are sampled; a frozen dataclass whose fields are the options."""

    @abstractmethod
    def sampler(self, dataset: FederatedDataset, cohort_size: int) -> Sampler:
        """Return the function that samples the cohort of a round.

        Called once for a simulation, so that work over the whole population is done once.

        Parameters
        ----------
        dataset : FederatedDataset
            The population.
        cohort_size : int
            Clients per round, at most the size of the population.

        Returns
        -------
        callable
            ``(round_index, random) -> positions``, with the round counted from 0 and the
            server's stream of that round.
        """


@dataclass(frozen=True)
class Uniform(Participation):
    """All clients alike, without replacement."""

    def sampler(self, dataset: FederatedDataset, cohort_size: int) -> Sampler:
        """Return the sampler; the whole population keeps its order."""
        population = range(dataset.num_clients)

        def sample(round_index: int, rng: random.Random) -> tuple[int, ...]:
            if cohort_size == len(population):
                return tuple(population)
            return tuple(rng.sample(population, cohort_size))

        return sample


@dataclass(frozen=True)
class Weighted(Participation):
    """Clients one after another, each with a chance in proportion to its weight, none twice.

    An algorithm that weighs updates by samples counts large clients twice if they are also
    sampled by samples: use ``weighting="uniform"`` there.

    Parameters
    ----------
    weights : {"samples"} or sequence of float
        The number of samples of each client, or one number for each client, at least 0. A client
        with weight 0 is never sampled.
    """

    weights: Literal["samples"] | Sequence[float] = "samples"

    def __post_init__(self) -> None:
        if isinstance(self.weights, str):
            if self.weights != "samples":
                raise ValueError(
                    f"weights must be 'samples' or one number per client, got {self.weights!r}."
                )
            return
        if not isinstance(self.weights, Iterable):
            raise TypeError(
                f"weights must be 'samples' or one number per client, got {self.weights!r}."
            )
        values: list[Any] = [*self.weights]
        wrong = [value for value in values if not _is_weight(value)]
        if wrong:
            raise ValueError(f"weights must be finite numbers of at least 0, got {wrong[0]!r}.")
        # A tuple: hashable, and the caller's list may change later.
        object.__setattr__(self, "weights", tuple(map(float, values)))

    def sampler(self, dataset: FederatedDataset, cohort_size: int) -> Sampler:
        """Return the sampler."""
        weights = self._values(dataset)
        positive = int(np.count_nonzero(weights))
        if positive < cohort_size:
            raise ValueError(
                f"weights must be positive for at least as many clients as a cohort has, "
                f"{cohort_size}, got {positive}. Lower cohort_size or raise weights."
            )
        ends = _ends(weights)

        def sample(round_index: int, rng: random.Random) -> tuple[int, ...]:
            found = _draw(ends, cohort_size, _DRAWS_PER_CLIENT * cohort_size, rng)
            while len(found) < cohort_size:
                left = weights.copy()
                left[list(found)] = 0.0
                wanted = cohort_size - len(found)
                found |= _draw(_ends(left), wanted, _DRAWS_PER_CLIENT * wanted, rng)
            return tuple(found)

        return sample

    def _values(self, dataset: FederatedDataset) -> npt.NDArray[np.float64]:
        if self.weights == "samples":
            return dataset.client_sizes().numpy().astype(np.float64)
        if len(self.weights) != dataset.num_clients:
            raise ValueError(
                f"weights must be one number per client, {dataset.num_clients}, got "
                f"{len(self.weights)}."
            )
        return np.array(self.weights, dtype=np.float64)


def _is_weight(value: Any) -> bool:
    try:
        return isinstance(value, Real) and 0.0 <= float(value) < math.inf
    except OverflowError:  # an integer beyond all floats
        return False


def _ends(weights: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the running sums of the weights, times a power of two with which none overflows.

    The factor keeps all bits of the weights, also of those too small to be multiplied exactly.
    """
    exponent = np.frexp(weights.max())[1]
    return np.cumsum(np.ldexp(weights, -exponent))


def _draw(
    ends: npt.NDArray[np.float64], wanted: int, draws: int, rng: random.Random
) -> dict[int, None]:
    """Return up to `wanted` different positions in the order in which they were drawn.

    A draw of a client that is in the cohort already is thrown away, which leaves the others their
    chances; after so many `draws` whoever calls goes on with those that are left.
    """
    found: dict[int, None] = {}
    total = float(ends[-1])
    for _ in range(draws):
        # To the right of equal ends: those belong to clients without weight.
        position = bisect.bisect_right(ends, rng.random() * total)
        # A product that is rounded up to the total has no client to its right.
        position = min(position, int(np.searchsorted(ends, total)))
        found[position] = None
        if len(found) == wanted:
            break
    return found


@dataclass(frozen=True)
class Trace(Participation):
    """All clients alike of those that a trace says are available.

    A round in which fewer are available than a cohort has takes them all; one without any does
    nothing.

    Parameters
    ----------
    available : str, path or callable
        A CSV file with the columns ``client_id``, ``first`` and ``last``, one line for each span
        of rounds in which a client is available, or a function ``round -> client ids``. Rounds
        count from 1, as in the history; both ends of a span belong to it. In a file, clients
        without a line are never available.
    period : int, optional
        The trace starts again after so many rounds.
    """

    available: str | Path | Callable[[int], Iterable[int | str]]
    period: int | None = None

    _spans: dict[str, list[tuple[int, int]]] | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.period is not None:
            object.__setattr__(self, "period", whole("period", self.period))
        available: object = self.available
        if not callable(available) and not isinstance(available, str | os.PathLike):
            raise TypeError(
                f"available must be a CSV file or a function of the round, got {available!r}."
            )
        spans = None if callable(available) else _read_spans(Path(available))
        object.__setattr__(self, "_spans", spans)

    def identity(self) -> str:
        """Return text that tells this trace from others; a file counts by its spans."""
        if self._spans is None:
            who = described(self.available)
        else:
            in_order = {client_id: sorted(spans) for client_id, spans in self._spans.items()}
            who = f"spans {digest(in_order)[:16]}"
        return f"{type(self).__qualname__}({who}, period={described(self.period)})"

    def sampler(self, dataset: FederatedDataset, cohort_size: int) -> Sampler:
        """Return the sampler."""
        positions = {client_id: place for place, client_id in enumerate(dataset.client_ids)}
        available = self._lookup(positions)

        def sample(round_index: int, rng: random.Random) -> tuple[int, ...]:
            number = round_index % self.period if self.period else round_index
            # In the order of the population, so that no order of the trace shows.
            there = sorted(set(available(number + 1)))
            return tuple(rng.sample(there, min(cohort_size, len(there))))

        return sample

    def _lookup(self, positions: dict[int | str, int]) -> Callable[[int], list[int]]:
        if self._spans is not None:
            return self._of_file(positions, self._spans)
        function: Any = self.available

        def of_function(number: int) -> list[int]:
            there = function(number)
            try:
                return [self._position(positions, client_id) for client_id in [*there]]
            except TypeError as error:  # not a list of anything, or of what cannot be an id
                raise TypeError(
                    f"available must return a list of client ids, got {there!r} for round "
                    f"{number} from {described(function)}."
                ) from error

        return of_function

    def _of_file(
        self, positions: dict[int | str, int], spans: dict[str, list[tuple[int, int]]]
    ) -> Callable[[int], list[int]]:
        # A file holds text; ids that are numbers are found by their digits.
        texts: dict[int | str, int] = {str(key): place for key, place in positions.items()}
        begins: dict[int, list[int]] = {}
        ends: dict[int, list[int]] = {}
        for client_id, listed in spans.items():
            place = self._position(texts, client_id)
            for first, last in listed:
                begins.setdefault(first, []).append(place)
                ends.setdefault(last + 1, []).append(place)
        # Who is there changes only where a span begins or ends.
        changes = sorted({*begins, *ends})
        states: list[list[int]] = []
        counts: dict[int, int] = {}
        for number in changes:
            for place in begins.get(number, []):
                counts[place] = counts.get(place, 0) + 1
            for place in ends.get(number, []):
                counts[place] -= 1
            states.append([place for place, count in counts.items() if count])

        def of_file(number: int) -> list[int]:
            index = bisect.bisect_right(changes, number) - 1
            return states[index] if index >= 0 else []

        return of_file

    def _position(self, positions: dict[int | str, int], client_id: int | str) -> int:
        if client_id not in positions:
            some = ", ".join(map(repr, itertools.islice(positions, 3)))
            raise ValueError(
                f"available must name clients of the data, got {client_id!r}. They are called "
                f"{some}, ..."
            )
        return positions[client_id]


def _read_spans(path: Path) -> dict[str, list[tuple[int, int]]]:
    spans: dict[str, list[tuple[int, int]]] = {}
    columns = ["client_id", "first", "last"]
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            if reader.fieldnames is None or [*reader.fieldnames] != columns:
                raise ValueError(
                    f"available must be a CSV file with the columns {', '.join(columns)}, got "
                    f"{', '.join(reader.fieldnames or ['none'])} in {str(path)!r}."
                )
            for row in reader:
                if None in row:
                    raise ValueError(
                        f"available must have {len(columns)} columns in every line, got "
                        f"{len(columns) + len(row[None])} at {path}:{reader.line_num}."
                    )
                spans.setdefault(row["client_id"], []).append(
                    _span(row["first"], row["last"], f"{path}:{reader.line_num}")
                )
    except OSError as error:
        raise ValueError(
            f"available must be a readable file, got {str(path)!r}: {error.strerror}."
        ) from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(
            f"available must be a CSV file in UTF-8, got {str(path)!r}: {error}."
        ) from error
    return spans


def _span(first: str | None, last: str | None, place: str) -> tuple[int, int]:
    try:
        span = int(first or ""), int(last or "")
    except ValueError:
        span = (0, 0)
    if not 1 <= span[0] <= span[1]:
        raise ValueError(
            f"available must have whole rounds with 1 <= first <= last in every line, got "
            f"{first!r} and {last!r} at {place}."
        )
    return span


PARTICIPATIONS: Registry[type[Participation]] = Registry(
    "participation",
    {
        "uniform": Entry(f"{__name__}:Uniform", "all clients alike"),
        "weighted": Entry(f"{__name__}:Weighted", "in proportion to samples or given weights"),
        "trace": Entry(f"{__name__}:Trace", "those that a file or a function says are available"),
    },
)
