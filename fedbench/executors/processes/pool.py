"""Worker processes as the caller sees them: each alone, and all that an executor has."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from typing import Any

from fedbench.executors.processes.control import ControlPage
from fedbench.executors.processes.launch import Launcher, cannot_start, socket_pair
from fedbench.executors.processes.memory import Arena
from fedbench.executors.processes.protocol import Inbox, Kind, Outbox, frame
from fedbench.executors.processes.slots import SlotReader
from fedbench.executors.runner import Ticket

__all__ = ["EXIT_S", "Crew", "WorkerHandle", "kill_all"]

EXIT_S = 2.0
"""How long a worker that was told to end may take."""


class WorkerHandle:
    """A worker process, its message channel and what it has been given.

    Parameters
    ----------
    launcher : Launcher
        Starts the process.
    down : Arena
        The caller's arena.

    Raises
    ------
    ResourceError
        If the system does not provide a process, descriptors or memory.
    ExecutorError
        If no process can be started for another reason.
    """

    def __init__(self, launcher: Launcher, down: Arena) -> None:
        self.outstanding: dict[int, Ticket] = {}
        """Tasks that were sent and not answered, in order."""
        self.folded: list[Ticket] = []
        """Tasks whose contributions are in the worker's partial reducer."""
        self.task_number = 0
        """The last version of the task that was sent."""
        self.map_number = 0
        """The last map that was announced."""
        self.num_done = 0
        self.ready = False
        """Whether it has said that it can work."""
        self.active_at = 0.0
        """When something last came from the worker, or it got work while it had none."""
        self.polled_for = select.POLLIN
        with contextlib.ExitStack() as undo:
            try:
                self._start(launcher, down, undo)
            except OSError as error:
                raise cannot_start(error) from error
            undo.pop_all()

    def _start(self, launcher: Launcher, down: Arena, undo: contextlib.ExitStack) -> None:
        ours, theirs = socket_pair(socket.SOCK_STREAM)
        undo.callback(ours.close)
        self._up = Arena()
        undo.callback(self._up.close)
        self.control = ControlPage(self._up, create=True)
        with theirs:
            self._process = launcher.start_worker((theirs.fileno(), down.fd, self._up.fd))
        self.began = self.active_at = time.monotonic()
        ours.setblocking(False)
        self._socket = ours
        self.pid = self._process.pid
        self.inbox = Inbox(ours)
        self.outbox = Outbox(ours)
        self.slots = SlotReader(self._up)

    @property
    def fd(self) -> int:
        """Descriptor to poll."""
        return self._socket.fileno()

    @property
    def gone(self) -> bool:
        """Whether the worker is known to have ended."""
        return self.inbox.closed or self._socket.fileno() < 0

    def has_ended(self) -> bool:
        """Look whether the process has ended; finished results can still be read."""
        return self._process.has_ended()

    @property
    def rests(self) -> bool:
        """Whether the worker has nothing to do."""
        return not (self.gone or self.outstanding or self.outbox)

    def send(self, head: tuple[Any, ...], buffers: list[memoryview] | None = None) -> None:
        """Send a message, now or as soon as the worker reads."""
        self.outbox.send(frame(head, buffers or []))

    @property
    def stands_still_s(self) -> float:
        """Seconds since the worker last did something that the caller could see."""
        return time.monotonic() - max(self.active_at, self.control.changed_at)

    def end(self, wait_s: float = 0.0) -> int | None:
        """End the worker and everything that its tasks started; return its exit code, if known.

        Parameters
        ----------
        wait_s : float
            How long it may take to end by itself.
        """
        try:
            return self._process.end(wait_s)
        finally:
            self.close()

    def wait(self, wait_s: float) -> None:
        """Wait for the worker's end, but not longer than this."""
        self._process.has_ended(wait_s)

    def kill(self) -> None:
        """Kill the worker and everything that its tasks started, without waiting."""
        self._process.kill()

    def close(self) -> None:
        """Give back what the caller holds of the worker."""
        self._socket.close()
        self._up.close()


class Crew:
    """The workers of one executor, and waiting for their messages.

    Parameters
    ----------
    launcher : Launcher
        Starts the processes.
    """

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher
        self.workers: list[WorkerHandle] = []
        self._poller = select.poll()
        self._by_fd: dict[int, WorkerHandle] = {}

    def add(self, down: Arena) -> WorkerHandle:
        """Start one more worker, without waiting until it is ready."""
        worker = WorkerHandle(self._launcher, down)
        self.workers.append(worker)
        self._by_fd[worker.fd] = worker
        self._poller.register(worker.fd, select.POLLIN)
        return worker

    def remove(self, worker: WorkerHandle, wait_s: float = 0.0) -> int | None:
        """End a worker, kindly if there is time; return its exit code, if known."""
        self._forget(worker)
        if wait_s and not worker.gone:
            worker.send((Kind.EXIT,))
        return worker.end(wait_s)

    def dismiss(self, workers: list[WorkerHandle], *, kindly: bool = False) -> None:
        """End several workers at once, or kindly those that rest; all have the same time."""
        workers = list(workers)
        deadline = time.monotonic() + EXIT_S
        try:
            for worker in workers:
                if kindly and worker.rests:
                    worker.send((Kind.EXIT,))
                else:
                    worker.kill()
            for worker in workers:
                worker.wait(max(0.0, deadline - time.monotonic()))
        finally:  # also after an interrupt
            for worker in workers:
                self._forget(worker)
                worker.kill()
                worker.close()

    def _forget(self, worker: WorkerHandle) -> None:
        """Drop a worker; done before anything waits, as an interrupt may end that."""
        if worker in self.workers:
            with contextlib.suppress(KeyError):
                self._poller.unregister(worker.fd)
            self._by_fd.pop(worker.fd, None)
            self.workers.remove(worker)

    def poll(self, timeout_s: float) -> list[tuple[WorkerHandle, tuple[Any, ...], memoryview]]:
        """Wait for messages and send what was held back; return the messages.

        A worker that has ended is `gone` afterwards; its last messages are among those returned.
        """
        for worker in self.workers:
            wanted = select.POLLIN | (select.POLLOUT if worker.outbox else 0)
            if wanted != worker.polled_for:
                worker.polled_for = wanted
                self._poller.modify(worker.fd, wanted)
        messages = []
        for fd, events in self._poller.poll(timeout_s * 1000):
            worker = self._by_fd[fd]
            worker.active_at = time.monotonic()
            if events & select.POLLOUT:
                worker.outbox.flush()
            if events & ~select.POLLOUT:
                messages += [(worker, head, blob) for head, blob in worker.inbox.messages()]
        return messages

    def stop(self) -> None:
        """End all workers: those that rest kindly, those that work at once."""
        self.dismiss(self.workers, kindly=True)


def kill_all(workers: list[WorkerHandle], owner_pid: int) -> None:
    """End every worker at once; does nothing in a process forked from the owner."""
    if os.getpid() != owner_pid:
        return
    for worker in workers:
        worker.kill()
    while workers:
        workers.pop().close()
