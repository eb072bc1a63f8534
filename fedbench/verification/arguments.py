"""What may be compared with what: candidates, references, and hand-written loops with a seed."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor

from fedbench.executors import EXECUTORS
from fedbench.registry import did_you_mean
from fedbench.verification.trace import Trace

__all__ = [
    "Candidate",
    "Loop",
    "check_reference",
    "checked_candidates",
    "default_candidates",
    "name_of",
    "seeded_loop",
]

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


def default_candidates() -> list[Candidate]:
    """Return every registered backend with one and two workers, delayed."""
    return [
        Candidate(backend, workers, delays=True)
        for backend in EXECUTORS
        for workers in ((None,) if backend == "sequential" else (1, 2))
    ]


def checked_candidates(candidates: object) -> list[Candidate]:
    """Return the candidates as a list; refuse anything else, and none."""
    if isinstance(candidates, str | Candidate) or not isinstance(candidates, Iterable):
        raise TypeError(
            f"candidates must be a list of Candidate, got {candidates!r}. {_in_a_list(candidates)}"
        )
    chosen = list(candidates)
    for candidate in chosen:
        if not isinstance(candidate, Candidate):
            raise TypeError(
                f"candidates must be a list of Candidate, got {candidate!r} in it. "
                f"{_in_a_list(candidate)}"
            )
    if not chosen:
        raise ValueError(
            "candidates must have at least one Candidate, got none. Leave it out to compare every "
            "backend."
        )
    return chosen


def _in_a_list(given: object) -> str:
    """Return what to pass in the place of something that is no list of candidates."""
    if isinstance(given, Candidate):
        return "Put it into a list."
    backend = given if isinstance(given, str) else "threads"
    return (
        f"Pass [Candidate({backend!r})], with Candidate from fedbench.verification."
        f"{'' if backend in EXECUTORS else did_you_mean(backend, EXECUTORS)}"
    )


def check_reference(reference: object, seed: int) -> None:
    """Refuse what cannot be a reference before anything is started."""
    if reference is None or isinstance(reference, Candidate | Trace):
        return
    if not callable(reference):
        raise TypeError(
            f"reference must be a Candidate, a Trace or a generator function, got {reference!r}. "
            f"For a backend pass Candidate('sequential'), from fedbench.verification."
        )
    seeded_loop(reference, seed)


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
            f"{name_of(loop)!r}, which needs {', '.join(needed)}. Give them defaults, or wrap it "
            f"in a function without them."
        )
    if takes_seed:
        return functools.partial(loop, seed=seed)
    if seed != 0:
        raise ValueError(
            f"seed must be 0 with a hand-written loop that takes no seed, got {seed} with "
            f"{name_of(loop)!r}. Give the function a parameter seed=0, and derive its random "
            f"numbers from it."
        )
    return loop


def name_of(reference: Candidate | Loop | Trace) -> str:
    """Return what a reference is called."""
    if isinstance(reference, Candidate):
        return str(reference)
    if isinstance(reference, Trace):
        return "trace"
    module = getattr(reference, "__module__", "")
    return f"{module}:{getattr(reference, '__qualname__', repr(reference))}"
