"""Worker processes as the caller sees them: each alone, and all that an executor has."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
from typing import Any

import psutil

from fedbench.errors import ResourceError
from fedbench.executors.processes.control import ControlPage
from fedbench.executors.processes.memory import Arena
from fedbench.executors.processes.protocol import Inbox, Kind, Outbox, frame
from fedbench.executors.processes.slots import SlotReader
from fedbench.executors.processes.worker import COMMAND
from fedbench.executors.resources import available_cpus, memory_limit
from fedbench.executors.runner import Ticket

__all__ = [
    "EXIT_S",
    "Crew",
    "WorkerHandle",
    "cannot_start",
    "describe_exit",
    "kill_all",
    "search_path",
]

_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)
_KEPT_BYTES = 2**30
"""Free memory that a worker's allocator keeps at most."""
EXIT_S = 2.0
"""How long a worker that was told to end may take."""


def search_path() -> list[str]:
    """Return the caller's module search path, independent of the current folder."""
    return [os.path.abspath(entry) for entry in sys.path]


class WorkerHandle:
    """A worker process, its message channel and what it has been given.

    Parameters
    ----------
    down : Arena
        The caller's arena.
    intraop_threads : int
        Torch's threads inside one task.

    Raises
    ------
    ResourceError
        If the system does not provide a process, descriptors or memory.
    """

    def __init__(self, down: Arena, intraop_threads: int) -> None:
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
        self.polled_for = select.POLLIN
        with contextlib.ExitStack() as undo:
            try:
                self._start(down, intraop_threads, undo)
            except OSError as error:
                raise cannot_start(error) from error
            undo.pop_all()

    def _start(self, down: Arena, intraop_threads: int, undo: contextlib.ExitStack) -> None:
        ours, theirs = socket.socketpair()
        undo.callback(ours.close)
        self._up = Arena()
        undo.callback(self._up.close)
        self.control = ControlPage(self._up, create=True)
        fds = (theirs.fileno(), down.fd, self._up.fd)
        numbers = (*fds, os.getpid(), intraop_threads)
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and code
                [
                    sys.executable,
                    *subprocess._args_from_interpreter_flags(),  # type: ignore[attr-defined]
                    "-c",
                    COMMAND,
                    repr(search_path()),
                    *map(str, numbers),
                ],
                stdin=subprocess.DEVNULL,
                env=_environment(intraop_threads),
                pass_fds=fds,
                # Its own group: a Ctrl-C at the terminal reaches the caller alone, and what a
                # task started ends with its worker.
                process_group=0,
            )
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
        return self._process.poll() is not None

    def send(self, head: tuple[Any, ...], buffers: list[memoryview] | None = None) -> None:
        """Send a message, now or as soon as the worker reads."""
        self.outbox.send(frame(head, buffers or []))

    def end(self, wait_s: float = 0.0) -> int:
        """End the worker and everything that its tasks started; return its exit code.

        Parameters
        ----------
        wait_s : float
            How long it may take to end by itself.
        """
        if self._process.returncode is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                if wait_s:
                    self._process.wait(wait_s)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        code = self._process.wait()
        self._socket.close()
        self._up.close()
        return code


def _environment(intraop_threads: int) -> dict[str, str]:
    """Return the environment of a worker: thread caps, and an allocator that keeps its pages.

    glibc gives large blocks back to the system on every free, so each training step would have
    its activations and gradients zeroed and mapped anew: a quarter of the time of a small CNN.
    """
    total = min(psutil.virtual_memory().total, memory_limit())
    kept = int(min(_KEPT_BYTES, total / (8 * available_cpus())))
    allocator = {
        "MALLOC_MMAP_MAX_": "0",
        "MALLOC_TRIM_THRESHOLD_": str(kept),
        "MALLOC_TOP_PAD_": str(kept // 16),
    }
    caps = dict.fromkeys(_THREAD_VARIABLES, str(intraop_threads))
    return allocator | dict(os.environ) | caps


def cannot_start(error: OSError) -> ResourceError:
    """Return the error for a machine that does not provide what a worker needs."""
    return ResourceError(
        f"a worker process could not be started: {error}. Check the limits on processes, open "
        "files and memory (ulimit -u, ulimit -n, ulimit -v)."
    )


def describe_exit(code: int) -> str:
    """Return words for an exit code of a worker."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"was killed by {name}"


class Crew:
    """The workers of one executor, and waiting for their messages."""

    def __init__(self) -> None:
        self.workers: list[WorkerHandle] = []
        self._poller = select.poll()
        self._by_fd: dict[int, WorkerHandle] = {}

    def add(self, down: Arena, intraop_threads: int) -> WorkerHandle:
        """Start one more worker, without waiting until it is ready."""
        worker = WorkerHandle(down, intraop_threads)
        self.workers.append(worker)
        self._by_fd[worker.fd] = worker
        self._poller.register(worker.fd, select.POLLIN)
        return worker

    def remove(self, worker: WorkerHandle, wait_s: float = 0.0) -> int:
        """End a worker, kindly if there is time; return its exit code."""
        self._poller.unregister(worker.fd)
        del self._by_fd[worker.fd]
        if wait_s and not worker.gone:
            worker.send((Kind.EXIT,))
        code = worker.end(wait_s)
        self.workers.remove(worker)
        return code

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
            if events & select.POLLOUT:
                worker.outbox.flush()
            if events & ~select.POLLOUT:
                messages += [(worker, head, blob) for head, blob in worker.inbox.messages()]
        return messages

    def stop(self) -> None:
        """End all workers: those that rest kindly, those that work at once."""
        for worker in self.workers:
            if not worker.gone:
                worker.send((Kind.EXIT,))
        while self.workers:
            worker = self.workers[-1]
            resting = not (worker.gone or worker.outstanding or worker.outbox)
            self.remove(worker, EXIT_S if resting else 0.0)


def kill_all(workers: list[WorkerHandle], owner_pid: int) -> None:
    """End every worker at once; does nothing in a process forked from the owner."""
    if os.getpid() != owner_pid:
        return
    while workers:
        workers.pop().end()
