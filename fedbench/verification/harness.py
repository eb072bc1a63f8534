"""Runs a reference and candidates side by side and compares them after every phase.

The runs go in step, a round at a time, so that a difference is found in the round in which it
arises, with the values of both sides at hand.
"""

from __future__ import annotations

import functools
import inspect
import random
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fedbench.algorithms import Algorithm, Client
from fedbench.errors import TraceError
from fedbench.executors import EXECUTORS
from fedbench.reproducibility import incomparable, pinned
from fedbench.simulation import Simulation
from fedbench.verification.compare import Difference, first_difference
from fedbench.verification.trace import EntryDigests, Trace, entry_digests
from fedbench.workloads import Workload

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Candidate", "Verification", "seeded_loop", "verify"]

Loop = Callable[..., Iterator[Mapping[str, Tensor]]]
"""A hand-written loop: a generator that yields the server's state dict after each round."""


@dataclass(frozen=True)
class Candidate:
    """One side of a comparison.

    Parameters
    ----------
    backend : str
        Name of the executor.
    workers : int, optional
        Worker count; the backend's default otherwise.
    delays : bool
        Let every client sleep for a random moment, so that tasks finish in a random order.
    """

    backend: str
    workers: int | None = None
    delays: bool = False

    def __str__(self) -> str:
        workers = f" x{self.workers}" if self.workers is not None else ""
        return f"{self.backend}{workers}{' delayed' if self.delays else ''}"


@dataclass
class Verification:
    """What was compared and where the candidates part from the reference.

    Attributes
    ----------
    reference : str
        What the candidates were compared with.
    incomparable : list of str
        Why the reference, made elsewhere, cannot be expected to have the same bits; then
        nothing was compared.
    trace : Trace
        Digests of the first candidate's run.
    rounds : int
        Number of rounds.
    entries : dict of Candidate to int
        How many entries were compared for each candidate.
    differences : dict of Candidate to Difference
        The first difference of each candidate that has one.
    digests : dict of Candidate to str
        Digest of each candidate's final state.
    """

    reference: str
    rounds: int
    entries: dict[Candidate, int] = field(default_factory=dict)
    differences: dict[Candidate, Difference] = field(default_factory=dict)
    digests: dict[Candidate, str] = field(default_factory=dict)
    incomparable: list[str] = field(default_factory=list)
    trace: Trace | None = None

    @property
    def identical(self) -> bool:
        """Whether every candidate was bitwise equal to the reference in every entry."""
        return not self.differences and not self.incomparable

    def to_frame(self) -> pd.DataFrame:
        """Return one row for each candidate, with its first difference."""
        import pandas as pd

        rows = []
        for candidate, compared in self.entries.items():
            difference = self.differences.get(candidate)
            rows.append(
                {
                    "backend": candidate.backend,
                    "workers": candidate.workers,
                    "delays": candidate.delays,
                    "identical": difference is None,
                    "compared": compared,
                    "digest": self.digests[candidate],
                    "round": difference and difference.round,
                    "phase": difference and difference.phase,
                    "client": difference and difference.client,
                    "entry": difference and difference.entry,
                    "num_different": difference and difference.num_different,
                    "max_ulps": difference and difference.max_ulps,
                }
            )
        return pd.DataFrame(rows)


def verify(
    workload: str | Workload,
    *,
    algorithm: str | Algorithm | None = None,
    reference: Candidate | Loop | Trace | None = None,
    candidates: Sequence[Candidate] | None = None,
    rounds: int = 3,
    seed: int = 0,
    on_round: Callable[[int], None] | None = None,
) -> Verification:
    """Compare runs bit for bit after every phase of every round.

    Parameters
    ----------
    workload : str or Workload
        What to run.
    algorithm : str or Algorithm, optional
        Replaces the workload's algorithm.
    reference : Candidate or callable, optional
        ``Candidate("sequential")`` by default. A callable is a hand-written loop: a generator
        function that yields the server's state dict (names to tensors) after each round; it is
        called with ``seed=seed`` if it takes a `seed`, otherwise without arguments. Only the
        server's model is then compared. A :class:`Trace` is a run of the same job made
        elsewhere, of which only the digests are known.
    candidates : sequence of Candidate, optional
        By default every registered backend with one and two workers, delayed.
    rounds : int
        How many rounds.
    seed : int
        Seed of all simulations.
    on_round : callable, optional
        Called with the number of each round when all sides have finished it.

    Returns
    -------
    Verification
        ``.identical``, and the first difference of each candidate that has one. A candidate is
        not run on after its first difference.

    Raises
    ------
    ClientTaskError, WorkerDiedError, MissingExtraError
        If a side cannot run.
    TraceError
        If the trace is of another job or has too few rounds.
    ValueError
        If a hand-written loop ends before the last round, or takes no `seed` and `seed` is not 0.
    TypeError
        If a hand-written loop needs other arguments.

    Examples
    --------
    >>> from fedbench.verification import Candidate, verify
    >>> result = verify("digits-logreg", candidates=[Candidate("threads", 2)], rounds=2)
    >>> result.identical
    True
    """
    if callable(reference):
        seeded_loop(reference, seed)  # refused before anything is started
    chosen = _default_candidates() if candidates is None else list(candidates)
    sides = {candidate: _Side(workload, algorithm, candidate, seed) for candidate in chosen}
    first = Candidate("sequential") if reference is None else reference
    result = Verification(reference=_name_of(first), rounds=rounds)
    result.entries = dict.fromkeys(chosen, 0)
    result.digests = dict.fromkeys(chosen, "")
    job = _job(next(iter(sides.values())).simulation)
    here = pinned()
    if isinstance(first, Trace):
        _check_job(first.job, job)
        if len(first.rounds) < rounds:
            raise TraceError(
                f"the trace has {len(first.rounds)} rounds, but {rounds} are to be verified. "
                f"Verify at most as many, or save a longer trace."
            )
        result.incomparable = incomparable(first.pinned, here)
    source = _source(first, workload, algorithm, seed)
    traced: list[list[list[Any]]] = []
    try:
        if result.incomparable:
            return result
        for number, expected in zip(range(1, rounds + 1), source, strict=False):
            for candidate, side in sides.items():
                if candidate in result.differences:
                    continue
                seen = side.run_round()
                if candidate == chosen[0]:
                    traced.append([[*key, entry_digests(state)] for key, state in seen.items()])
                compared, difference = _compare(expected, seen, number)
                result.entries[candidate] += compared
                if difference is not None:
                    result.differences[candidate] = difference
            if on_round is not None:
                on_round(number)
        result.digests = {
            candidate: side.simulation.state_digest() for candidate, side in sides.items()
        }
        result.trace = Trace(job, here, traced)
    finally:
        source.close()
        for side in sides.values():
            side.simulation.close()
    return result


_Key = tuple[str, int | str | None]
_Observed = dict[_Key, Any]


class _Side:
    """A simulation whose phases are observed."""

    def __init__(
        self,
        workload: str | Workload,
        algorithm: str | Algorithm | None,
        candidate: Candidate,
        seed: int,
    ) -> None:
        self._seen: _Observed = {}
        self.simulation = Simulation(
            workload,
            algorithm=algorithm,
            executor=candidate.backend,
            workers=candidate.workers,
            seed=seed,
            reproducibility="L1",
            vectorized=False,  # clients that are trained at once promise no equal bits
            observer=self._observe,
            around_client=_jitter if candidate.delays else None,
        )

    def _observe(self, phase: str, client: int | str | None, state: Any) -> None:
        self._seen[phase, client] = state

    def run_round(self) -> _Observed:
        """Run a round and return what was seen of it."""
        self._seen = {}
        self.simulation.run_round(evaluate=True)
        self._seen["model", None] = self.simulation.model_state()
        return self._seen


def _jitter(client: Client) -> None:
    """Sleep for a random moment; draws from the operating system, not from any stream."""
    time.sleep(random.SystemRandom().uniform(0.0, 0.01))


def _observed_rounds(side: _Side) -> Generator[_Observed, None, None]:
    try:
        while True:
            yield side.run_round()
    finally:
        side.simulation.close()


def _loop_rounds(loop: Loop) -> Generator[_Observed, None, None]:
    for state in loop():
        # A copy: the loop may go on in the same tensors.
        yield {("model", None): {name: tensor.detach().clone() for name, tensor in state.items()}}
    raise ValueError(
        "the hand-written loop ended before the last round. It must yield the server's state "
        "after each of the rounds that are verified."
    )


def _compare(expected: _Observed, seen: _Observed, number: int) -> tuple[int, Difference | None]:
    """Return how many states were compared, and the first difference in phase order."""
    compared = 0
    for (phase, client), state in expected.items():
        if (phase, client) not in seen:
            what = "only the reference has this state"
            return compared, Difference(number, phase, client, "(all)", what, 1, 1, None)
        compared += 1
        found = seen[phase, client]
        if isinstance(state, EntryDigests):
            found = entry_digests(found)
        difference = first_difference(state, found, round_index=number, phase=phase, client=client)
        if difference is not None:
            return compared, difference
    return compared, None


def _default_candidates() -> list[Candidate]:
    return [
        Candidate(backend, workers, delays=True)
        for backend in EXECUTORS
        for workers in ((None,) if backend == "sequential" else (1, 2))
    ]


def _source(
    reference: Candidate | Loop | Trace,
    workload: str | Workload,
    algorithm: str | Algorithm | None,
    seed: int,
) -> Generator[_Observed, None, None]:
    if isinstance(reference, Candidate):
        return _observed_rounds(_Side(workload, algorithm, reference, seed))
    if isinstance(reference, Trace):
        return reference.observed_rounds()
    return _loop_rounds(seeded_loop(reference, seed))


def seeded_loop(loop: Loop, seed: int) -> Callable[[], Iterator[Mapping[str, Tensor]]]:
    """Return a hand-written loop with the seed of the simulations that it is compared with.

    Raises
    ------
    ValueError
        If it takes no `seed` and `seed` is not 0: it cannot follow the simulations then.
    TypeError
        If it needs other arguments.
    """
    parameters = inspect.signature(loop).parameters.values()
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    by_keyword = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    takes_seed = any(
        p.kind is p.VAR_KEYWORD or (p.name == "seed" and p.kind in by_keyword) for p in parameters
    )
    needed = [
        p.name
        for p in parameters
        if p.default is p.empty and p.kind not in variadic and not (takes_seed and p.name == "seed")
    ]
    if needed:
        raise TypeError(
            f"reference must be a generator function without arguments, or of seed alone, got "
            f"{_name_of(loop)!r}, which needs {', '.join(needed)}. Give them defaults, or wrap it "
            f"in a function without them."
        )
    if takes_seed:
        return functools.partial(loop, seed=seed)
    if seed != 0:
        raise ValueError(
            f"seed must be 0 with a hand-written loop that takes no seed, got {seed} with "
            f"{_name_of(loop)!r}. Give the function a parameter seed=0, and derive its random "
            f"numbers from it."
        )
    return loop


def _name_of(reference: Candidate | Loop | Trace) -> str:
    if isinstance(reference, Candidate):
        return str(reference)
    if isinstance(reference, Trace):
        return "trace"
    module = getattr(reference, "__module__", "")
    return f"{module}:{getattr(reference, '__qualname__', repr(reference))}"


def _job(simulation: Simulation) -> dict[str, Any]:
    settings = ("loss", "local_epochs", "batch_size", "lr", "momentum", "weight_decay", "nesterov")
    return {
        "workload": simulation.workload.name,
        "algorithm": repr(simulation.algorithm),
        "seed": simulation.seed,
        "cohort_size": simulation.cohort_size,
        **{name: getattr(simulation.workload, name) for name in settings},
        "options": simulation.options.changed(),
    }


def _check_job(theirs: Mapping[str, Any], mine: Mapping[str, Any]) -> None:
    for name, value in mine.items():
        if theirs.get(name) != value:
            raise TraceError(
                f"the trace is of another job: its {name} is {theirs.get(name)!r}, got {value!r}. "
                f"Verify with the arguments that the trace was made with."
            )
