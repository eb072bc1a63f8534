"""What the caller makes of a worker's answers, and of a worker that ended."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator

from fedbench.errors import WorkerDiedError
from fedbench.executors.losses import tried
from fedbench.executors.processes.launch import describe_exit
from fedbench.executors.processes.pool import WorkerHandle
from fedbench.executors.processes.protocol import Parcel, Slot, open_parcel, split, split_among
from fedbench.executors.runner import Failure, Outcome, Ticket, client_of, name_task

__all__ = ["fill_in", "open_answers"]

_HINTS: dict[int | None, str] = {
    -signal.SIGKILL: " SIGKILL is often the system's answer to too little memory."
}


def open_answers(
    worker: WorkerHandle,
    entries: Iterable[tuple[int, bool, Parcel | None]],
    blob: memoryview,
    slot: Slot | None = None,
) -> Iterator[Outcome]:
    """Yield the outcome of each task that was run, in order; one that cannot be built has failed.

    Parameters
    ----------
    worker : WorkerHandle
        Who sent the message.
    entries : iterable of (int, bool, Parcel or None)
        Index, whether the task went well, and its result or :class:`Failure`.
    blob : memoryview
        Of the message.
    slot : Slot, optional
        Where the blob is if it did not come with the message.
    """
    answered = [(index, ok, parcel) for index, ok, parcel in entries if parcel is not None]
    if slot is not None:
        try:
            blob = worker.slots.view(slot)
        except OSError as error:
            for index, _, _ in answered:
                yield Outcome(index, failure=Failure.of(error, "has a result that cannot be read"))
            return
    inline = split_among([parcel for _, _, parcel in answered], blob)
    for (index, ok, parcel), own in zip(answered, inline, strict=True):
        try:
            own = split(worker.slots.view(parcel.slot), parcel.sizes) if parcel.slot else own
            value = open_parcel(parcel, own)
        except Exception as error:  # noqa: BLE001 - user code runs in unpickling
            failure = Failure.of(error, "has a result that cannot be unpacked")
            yield Outcome(index, failure=failure)
        else:
            yield Outcome(index, value) if ok else Outcome(index, failure=value)


def fill_in(
    error: WorkerDiedError,
    ticket: Ticket,
    worker: WorkerHandle,
    exitcode: int | None,
    retries: int,
) -> None:
    """Complete the error about a worker that ended while it ran a task."""
    error.item, error.pid, error.exitcode = client_of(ticket.item), worker.pid, exitcode
    error.args = (
        f"the worker (pid {worker.pid}) {describe_exit(exitcode)} while it ran "
        f"{name_task(ticket.index, ticket.item)}.{_HINTS.get(exitcode, '')} "
        f"{tried(ticket, retries)}",
    )
