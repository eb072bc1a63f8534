"""The words about tasks whose worker died or was ended because it was late, on every backend."""

from __future__ import annotations

from fedbench.errors import TaskTimeoutError
from fedbench.executors.runner import Ticket, client_of, name_task

__all__ = ["not_begun", "not_sent", "ran_too_long", "tried"]


def tried(ticket: Ticket, retries: int) -> str:
    """Return how often a task has been run whose worker died, and what to do."""
    times = ticket.attempts + 1
    if times == 1:
        return "It was tried once. With retries=1 a lost task is run again, with the same result."
    return (
        f"It was tried {times} times ({retries=}) and lost its worker each time, so the task "
        "itself is the likely cause, or too little memory: run it with workers=1."
    )


def ran_too_long(ticket: Ticket, limit_s: float, worker: str) -> TaskTimeoutError:
    """Return the error for a task that ran longer than the time-out."""
    return TaskTimeoutError(
        f"{_name(ticket)} ran longer than the timeout of {limit_s:g} s; {_ended(worker)} Raise "
        "timeout=, or run it on 'sequential' to see what it waits for. A late task is not run "
        "again, whatever retries= is.",
        index=ticket.index,
        item=client_of(ticket.item),
    )


def not_begun(ticket: Ticket, limit_s: float, worker: str) -> TaskTimeoutError:
    """Return the error for the next task of a worker that has nothing else to do."""
    return TaskTimeoutError(
        f"{_name(ticket)} was not begun within {limit_s:g} s; {_ended(worker)} {_STOPPED}",
        index=ticket.index,
        item=client_of(ticket.item),
    )


def not_sent(ticket: Ticket, limit_s: float, worker: str) -> TaskTimeoutError:
    """Return the error for a task whose contribution is lost with the worker that folded it."""
    return TaskTimeoutError(
        f"{_name(ticket)} was folded into a partial reducer not sent within {limit_s:g} s; "
        f"{_ended(worker)} {_STOPPED}",
        index=ticket.index,
        item=client_of(ticket.item),
    )


_STOPPED = (
    "Something stopped the worker's process, or the machine is overloaded: raise timeout=, or use "
    "fewer workers."
)


def _name(ticket: Ticket) -> str:
    return name_task(ticket.index, ticket.item)


def _ended(worker: str) -> str:
    return f"its worker ({worker}) was ended."
