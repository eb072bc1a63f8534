"""Who changed a global generator: a ledger of the changes that are accounted for.

The global generators belong to the process, so a task that runs in a thread cannot simply compare
them before and after: the main thread may have drawn from them meanwhile, as it may. Every draw
that is made outside of tasks through a redirected name is therefore entered here. What remains,
a global generator that is not in the state that the last entry left, was changed behind the
redirection while the watched tasks ran.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

__all__ = ["Ledger", "ledger"]

T = TypeVar("T")
Task = tuple[int | str, ...]  # the key of its scope


class Ledger:
    """The states in which the global generators are expected, while tasks are watched."""

    def __init__(self) -> None:
        self._snapshots: dict[str, Callable[[], object]] = {}
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._lock = threading.RLock()
        self.tasks: list[Task] = []  # those that are watched now
        self._in_flight: list[int] = []  # threads within an unwatched draw
        self._is_drawing = False
        self._expected: dict[str, object] = {}
        self._changed: dict[str, tuple[Task, ...]] = {}

    def register(self, source: str, snapshot: Callable[[], object]) -> None:
        """Keep account of the global generator `source`, whose state `snapshot` returns."""
        self._snapshots[source] = snapshot

    def outside(self, source: str, draw: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        """Call `draw`, which may change the global generator `source`, on behalf of no task."""
        # Announced before looking whether tasks are watched, and `watch` does it the other way
        # round: a draw can't slip in between and look like a change that nobody accounts for.
        this_thread = threading.get_ident()
        if this_thread in self._in_flight:  # a draw within a draw
            return draw(*args, **kwargs)
        self._in_flight.append(this_thread)
        try:
            if not self.tasks:
                return draw(*args, **kwargs)
        finally:
            self._in_flight.remove(this_thread)
        with self._lock:
            if self._is_drawing:  # a draw within a draw, which has changed the state already
                return draw(*args, **kwargs)
            self._compare(source)
            self._is_drawing = True
            try:
                return draw(*args, **kwargs)
            finally:
                self._is_drawing = False
                self._expected[source] = self._snapshots[source]()

    def watch(self, task: Task) -> None:
        """Expect no change from `task`, which starts now."""
        with self._lock:
            self.tasks.append(task)
            if len(self.tasks) == 1:
                this_thread = threading.get_ident()
                while any(thread != this_thread for thread in tuple(self._in_flight)):
                    time.sleep(1e-4)
                self._expected = {
                    source: snapshot() for source, snapshot in self._snapshots.items()
                }

    def end_watch(self, task: Task) -> Mapping[str, tuple[Task, ...]]:
        """Return the generators that changed unaccounted, with the tasks that were running."""
        with self._lock:
            for source in self._expected:
                self._compare(source)
            self.tasks.remove(task)
            changed, self._changed = self._changed, {}
            return changed

    def _compare(self, source: str) -> None:
        state = self._snapshots[source]()
        if source in self._expected and state != self._expected[source]:
            self._changed.setdefault(source, tuple(self.tasks))
        self._expected[source] = state


ledger = Ledger()
