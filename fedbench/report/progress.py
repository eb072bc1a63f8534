"""How far a report run is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Counter", "Listener", "Progress"]


@dataclass(frozen=True)
class Progress:
    """How far a report run is.

    Parameters
    ----------
    done, total : int
        Steps; `total` is an estimate that shrinks when a configuration fails.
    message : str
        What is being done.
    block : str
        What this step belongs to, in words: the same for a round of all rows.
    """

    done: int
    total: int
    message: str
    block: str = ""


Listener = Callable[[Progress], None]


class Counter:
    """Counts steps and tells the listener."""

    def __init__(self, total: int, listener: Listener | None) -> None:
        self._done, self._total, self._listener = 0, total, listener

    def step(self, message: str, block: str) -> None:
        """Begin a step."""
        if self._listener is not None:
            self._listener(Progress(self._done, self._total, message, block))
        self._done += 1

    def skip(self, steps: int) -> None:
        """Expect that many steps less."""
        self._total -= steps
