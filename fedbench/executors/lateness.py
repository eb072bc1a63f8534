"""The errors about tasks whose worker was ended because it was late, on every backend."""

from __future__ import annotations

from fedbench.errors import TaskTimeoutError
from fedbench.executors.runner import Ticket, client_of, name_task

__all__ = ["not_begun", "not_sent", "ran_too_long"]


def ran_too_long(ticket: Ticket, limit_s: float, worker: str) -> TaskTimeoutError:
    """Return the error for a task that ran longer than the time-out."""
    return TaskTimeoutError(
        f"{_name(ticket)} ran longer than the timeout of {limit_s:g} s; {_ended(worker)}",
        index=ticket.index,
        item=client_of(ticket.item),
    )


def not_begun(ticket: Ticket, limit_s: float, worker: str) -> TaskTimeoutError:
    """Return the error for the next task of a worker that has nothing else to do."""
    return TaskTimeoutError(
        f"{_name(ticket)} was not begun within {limit_s:g} s; {_ended(worker)}",
        index=ticket.index,
        item=client_of(ticket.item),
    )


def not_sent(ticket: Ticket, limit_s: float, worker: str) -> TaskTimeoutError:
    """Return the error for a task whose contribution is lost with the worker that folded it."""
    return TaskTimeoutError(
        f"{_name(ticket)} was folded into a partial reducer not sent within {limit_s:g} s; "
        f"{_ended(worker)}",
        index=ticket.index,
        item=client_of(ticket.item),
    )


def _name(ticket: Ticket) -> str:
    return name_task(ticket.index, ticket.item)


def _ended(worker: str) -> str:
    return f"its worker ({worker}) was ended."
