"""Runs a reference and candidates side by side and compares them after every phase.

The runs go in step, a round at a time, so that a difference is found in the round in which it
arises, with the values of both sides at hand.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fedbench.algorithms import Algorithm, Client
from fedbench.errors import TROUBLESHOOTING, TraceError
from fedbench.reproducibility import incomparable, pinned
from fedbench.simulation import Simulation
from fedbench.verification.arguments import (
    Candidate,
    Loop,
    check_reference,
    checked_candidates,
    default_candidates,
    name_of,
    seeded_loop,
)
from fedbench.verification.compare import Difference, first_difference
from fedbench.verification.trace import EntryDigests, Trace, entry_digests
from fedbench.workloads import Workload

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Loop", "Verification", "seeded_loop", "verify"]


_CAUSES = {
    False: (
        "Two runs of {} differ as well: it is not the backend. Look for numbers drawn "
        "from a generator without a seed, or one that lives in a module or an object; for "
        "module-level variables that tasks write to, which the next run finds; for the time, "
        "threads or the order of a set. See 'Different bits' in " + TROUBLESHOOTING + "."
    ),
    True: (
        "Two runs of {} agree, so the results depend on where tasks run. Look for what tasks of "
        "one worker share: module-level variables and generators, attributes of the algorithm, "
        "of the data or of the model that tasks write to. See 'Different bits' in "
        + TROUBLESHOOTING
        + "."
    ),
}


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
    repeats : bool or None
        Whether two further runs of the reference had the same bits, up to the round of the first
        difference. None where there is no difference, or the reference is no candidate.
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
    repeats: bool | None = None

    @property
    def identical(self) -> bool:
        """Whether every candidate was bitwise equal to the reference in every entry."""
        return not self.differences and not self.incomparable

    @property
    def hint(self) -> str:
        """What a difference most likely comes from; empty if there is none, or no way to tell."""
        return "" if self.repeats is None else _CAUSES[self.repeats].format(self.reference)

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
        frame = pd.DataFrame(rows)
        # Whole numbers stay whole where one is missing.
        whole = ["workers", "round", "num_different", "max_ulps"]
        return frame.astype(dict.fromkeys(whole, "Int64"))


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
        If there are no candidates, or a hand-written loop ends before the last round, or takes no
        `seed` and `seed` is not 0.
    TypeError
        If `candidates` or `reference` is of another type, or a hand-written loop needs other
        arguments.

    Examples
    --------
    >>> from fedbench.verification import Candidate, verify
    >>> result = verify("digits-logreg", candidates=[Candidate("threads", 2)], rounds=2)
    >>> result.identical
    True
    """
    check_reference(reference, seed)
    chosen = default_candidates() if candidates is None else checked_candidates(candidates)
    sides = {candidate: _Side(workload, algorithm, candidate, seed) for candidate in chosen}
    first = Candidate("sequential") if reference is None else reference
    result = Verification(reference=name_of(first), rounds=rounds)
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
    if result.differences and isinstance(first, Candidate):
        until = min(difference.round for difference in result.differences.values())
        result.repeats = _repeats(first, workload, algorithm, seed, until)
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


def _repeats(
    candidate: Candidate,
    workload: str | Workload,
    algorithm: str | Algorithm | None,
    seed: int,
    rounds: int,
) -> bool:
    """Return whether two runs of a candidate have the same bits for so many rounds."""
    runs = [_observed_rounds(_Side(workload, algorithm, candidate, seed)) for _ in range(2)]
    try:
        pairs = zip(*runs, strict=False)
        return all(
            _compare(one, other, number)[1] is None
            for number, (one, other) in zip(range(1, rounds + 1), pairs, strict=False)
        )
    finally:
        for run in runs:
            run.close()


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
