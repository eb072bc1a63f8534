"""Feeds one map's tasks to a backend and decides what is raised when something fails."""

from __future__ import annotations

import enum
import heapq
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from typing import TYPE_CHECKING, Any, NoReturn

from fedbench.errors import ExecutorClosedError, WorkerDiedError
from fedbench.executors.runner import Failure, Outcome, Ticket, build_error

if TYPE_CHECKING:
    from fedbench.executors.base import Executor

__all__ = ["Ending", "Run", "Source"]


class Ending(enum.Enum):
    """Why a map ends, which decides what happens to the tasks that still run."""

    DONE = "every task has a result"
    FAILED = "a task failed, or the caller stopped early: drop what waits, let go of what runs"
    INTERRUPTED = "the caller was interrupted: do not wait for anything"


class Source:
    """The tickets of one map, in dispatch order, pulled from the items as late as allowed.

    Without costs the order is that of the items. With costs the most expensive task among those
    pulled goes first: among all when `items` has a length and the window allows, else among the
    look-ahead.

    Parameters
    ----------
    items : iterable
        Consumed on the calling thread.
    costs : iterable of float, optional
        One non-negative number per item.
    """

    def __init__(self, items: Iterable[Any], costs: Iterable[float] | None) -> None:
        self.total = _length(items)
        num_costs = _length(costs)
        if None not in (self.total, num_costs) and self.total != num_costs:
            raise _wrong_lengths(str(num_costs), str(self.total))
        self.pulled = 0
        self._items = iter(items)
        self._costs = None if costs is None else iter(costs)
        self._heap: list[tuple[float, int, Ticket]] = []
        self._returned: list[Ticket] = []
        self._exhausted = False

    @property
    def remaining(self) -> int | None:
        """How many tickets can still be taken, if `items` has a length."""
        if self.total is None:
            return None
        return self.total - self.pulled + len(self._heap) + len(self._returned)

    @property
    def has_returned(self) -> bool:
        """Whether tickets that were put back wait to be taken again."""
        return bool(self._returned)

    def put_back(self, tickets: Iterable[Ticket]) -> None:
        """Hand tickets out again, before all others and lowest index first."""
        self._returned.extend(tickets)
        self._returned.sort(key=lambda ticket: -ticket.index)

    def take(self, count: int, pull_limit: float) -> list[Ticket]:
        """Return up to `count` tickets without pulling more than `pull_limit` items in all."""
        taken: list[Ticket] = []
        while len(taken) < count:
            if self._returned:
                taken.append(self._returned.pop())
            elif self._costs is None:
                if self.pulled >= pull_limit or (ticket := self._pull()) is None:
                    break
                taken.append(ticket)
            else:
                while self.pulled < pull_limit and (ticket := self._pull()) is not None:
                    heapq.heappush(self._heap, (-ticket.cost, ticket.index, ticket))
                if not self._heap:
                    break
                taken.append(heapq.heappop(self._heap)[2])
        return taken

    def _pull(self) -> Ticket | None:
        if self._exhausted:
            return None
        try:
            item = next(self._items)
        except StopIteration:
            self._exhausted = True
            if self._costs is not None and next(self._costs, None) is not None:
                raise _wrong_lengths("more", str(self.pulled)) from None
            return None
        ticket = Ticket(self.pulled, item)
        if self._costs is not None:
            try:
                ticket.cost = _checked_cost(next(self._costs), self.pulled)
            except StopIteration:
                raise _wrong_lengths(str(self.pulled), "more") from None
        self.pulled += 1
        return ticket


class Run:
    """One map in progress.

    Parameters
    ----------
    executor : Executor
        Whose backend hooks are driven.
    source : Source
        The tasks.
    window : float
        How many items may be pulled beyond :attr:`released`.
    count_completed : bool
        Whether a task leaves the window by completing; if not, the owner of the run adds to
        :attr:`released`.
    """

    def __init__(
        self, executor: Executor, source: Source, window: float, *, count_completed: bool = True
    ) -> None:
        self._executor = executor
        self.source = source
        self.released = 0
        self._window = window
        self._count_completed = count_completed
        self.flying: dict[int, Ticket] = {}
        """Tickets handed to the backend whose outcome has not come back, by index."""
        self._ended = False

    def completed(self) -> Iterator[tuple[Ticket, Any]]:
        """Yield each task and its value as it completes; raise the error of the first failure."""
        executor, flying = self._executor, self.flying
        missing = Ticket(-1, None)
        while True:
            self._check_open()
            while (room := executor._room()) > 0:
                tickets = self.source.take(room, self.released + self._window)
                self._check_open()  # the items' own code may have closed the executor
                if not tickets:
                    break
                for ticket in tickets:
                    flying[ticket.index] = ticket
                executor._submit(tickets)
            if not flying and (room > 0 or not self._has_more()):
                return
            outcomes = executor._completed()
            self._raise_failures(outcomes)
            outcomes.reverse()
            while outcomes:
                outcome = outcomes.pop()
                ticket = flying.pop(outcome.index, missing)
                if ticket is missing or outcome.failure is not None:
                    continue  # its worker died, and it is on its way again
                self.released += self._count_completed
                if not ticket.reported:
                    ticket.reported = True
                    value = outcome.value
                    # Whoever takes the value owns it: a shared-memory slot is free again when
                    # the last reference goes, so none may stay behind here.
                    del outcome
                    yield ticket, value
                    del value
                    self._check_open()

    def _has_more(self) -> bool:
        """Return whether a task waits for room."""
        tickets = self.source.take(1, self.released + self._window)
        self.source.put_back(tickets)
        return bool(tickets)

    @property
    def unfinished(self) -> bool:
        """Whether tasks came back after all had completed, because their worker died."""
        return bool(self.flying) or self.source.has_returned

    def guard(self, ticket: Ticket, action: str, function: Callable[..., Any], *args: Any) -> Any:
        """Call server code on behalf of a task; an exception in it is a failure of the task."""
        try:
            return function(*args)
        except Exception as error:  # noqa: BLE001 - raised again as the map's failure
            self._fail([(ticket, Failure.of(error, action))])

    def requeue(self, tickets: Iterable[Ticket]) -> None:
        """Run these tasks again: their worker died, and they are not to blame."""
        tickets = list(tickets)
        for ticket in tickets:
            self.flying.pop(ticket.index, None)
        self.source.put_back(tickets)

    def end(self, ending: Ending) -> Sequence[Outcome]:
        """Tell the backend, once, that the map is over; return outcomes that still arrived."""
        if self._ended:
            return ()
        self._ended = True
        return self._executor._end(ending)

    def end_by(self, error: BaseException | None) -> None:
        """End the map because the code that drives it stopped, by `error` if there is one."""
        if isinstance(error, (KeyboardInterrupt, SystemExit)) or sys.is_finalizing():
            self.end(Ending.INTERRUPTED)
        else:
            self.end(Ending.FAILED)

    def _check_open(self) -> None:
        if self._ended:
            raise ExecutorClosedError(
                f"the {self._executor.backend!r} executor was closed in the middle of a map."
            )

    def _raise_failures(self, outcomes: Sequence[Outcome]) -> None:
        """Raise for failed tasks, except for those that may be run again."""
        failures = []
        for outcome in outcomes:
            if outcome.failure is None:
                continue
            ticket = self.flying[outcome.index]
            died = isinstance(outcome.failure.error, WorkerDiedError)
            if died and ticket.attempts < self._executor.retries:
                ticket.attempts += 1
                self.requeue([ticket])
            else:
                failures.append((ticket, outcome.failure))
        if failures:
            self._fail(failures)

    def _fail(self, failures: list[tuple[Ticket, Failure]]) -> NoReturn:
        """Stop the map and raise the error of the lowest index among all that failed."""
        failed = {ticket.index for ticket, _ in failures}
        failures += [
            (self.flying[late.index], late.failure)
            for late in self.end(Ending.FAILED)
            if late.failure is not None and late.index not in failed
        ]
        error, cause = build_error(failures, self._executor.backend)
        raise error from cause


def _length(values: object) -> int | None:
    return len(values) if isinstance(values, Sized) else None


def _wrong_lengths(num_costs: str, num_items: str) -> ValueError:
    return ValueError(
        f"costs must hold one number per item, got {num_costs} costs for {num_items} items."
    )


def _checked_cost(cost: Any, index: int) -> float:
    try:
        number = float(cost)
    except (TypeError, ValueError):
        number = math.nan
    if not (number >= 0 and math.isfinite(number)):
        raise ValueError(
            f"costs[{index}] must be a finite number that is not negative, got {cost!r}."
        )
    return number
