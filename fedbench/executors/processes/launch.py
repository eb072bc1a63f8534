"""How the caller gets worker processes: it asks the executor's template for each.

Nothing here imports torch, so that an executor can start its template first and import torch
while the template does the same on another core.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from typing import Final

from fedbench._native import core
from fedbench.errors import ExecutorError, ResourceError
from fedbench.executors.processes.system import above_standard_streams, kill_group, start_time
from fedbench.executors.resources import cpus_per_worker

__all__ = [
    "MESSAGE",
    "START_S",
    "Launcher",
    "Message",
    "WorkerProcess",
    "cannot_get_ready",
    "cannot_start",
    "describe_exit",
    "search_path",
    "socket_pair",
]

MESSAGE = struct.Struct("<Bqq")
"""What the template tells: kind, process id, and exit code or error number."""
START_S = 120.0
"""How long a process may take to import what it needs."""

_COMMAND = (
    "import sys; sys.path[:] = eval(sys.argv[1]); "
    "from fedbench.executors.processes.template import main; main(*map(int, sys.argv[2:]))"
)
"""What the interpreter of a template runs; the caller's search path comes first."""
_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)
_ATTEMPTS = 2
"""New templates that are started for one worker."""
_HUNG_UP_S = 2.0
"""How long a template that has hung up may take to end."""
_KILLED_S = 10.0
"""How long the news of a killed process may take."""


class Message:
    """Kinds of what the template tells the caller."""

    STARTED: Final = 1
    REFUSED: Final = 2
    ENDED: Final = 3


class Launcher:
    """Starts worker processes through a template process, which it replaces if that ends.

    Parameters
    ----------
    workers : int
        How many of them share the processors.
    intraop_threads : int
        Torch's threads inside one task.

    Raises
    ------
    ResourceError
        If the system does not provide a process or descriptors.
    """

    def __init__(self, workers: int, intraop_threads: int) -> None:
        self._intraop_threads = intraop_threads
        self._owner_pid = os.getpid()
        # Later templates get these too, whatever the caller has changed since.
        try:
            self._environment = _environment(workers, intraop_threads)
        except OSError as error:  # it asks the system about its memory
            raise cannot_start(error) from error
        self._folder = _current_folder()
        self._template = self._start_template()

    @property
    def shares_imports(self) -> bool:
        """Whether workers share what the template imported, see its module."""
        return self._intraop_threads == 1

    def start_worker(self, fds: tuple[int, int, int]) -> WorkerProcess:
        """Start a worker; waits until the template has imported what workers need.

        Parameters
        ----------
        fds : tuple of int
            Descriptors of its message socket and of the arenas down and up.

        Raises
        ------
        ResourceError
            If the system does not provide a process, or the template does not get ready.
        ExecutorError
            If the template ends before it has started the worker, and so do two new ones.
        """
        template = self._template
        pid = None if template.gone else template.start_worker(fds)
        attempts = 0
        while pid is None:  # that one was killed; a broken one will break again
            code = template.kill()
            if attempts == _ATTEMPTS:
                raise ExecutorError(
                    f"a worker process {describe_exit(code)} while it started; "
                    "its own messages are on stderr."
                )
            attempts += 1
            self._template = template = self._start_template()
            pid = template.start_worker(fds)
        return WorkerProcess(template, pid)

    def _start_template(self) -> _Template:
        return _Template(self._intraop_threads, self._environment, self._folder)

    def close(self) -> None:
        """End the template, and with it every worker; nothing in a process forked from ours."""
        if os.getpid() == self._owner_pid:
            self._template.kill()


class WorkerProcess:
    """A worker that a template started.

    Parameters
    ----------
    template : _Template
        Its parent.
    pid : int
        Its process id, and that of the process group of what its tasks start.
    """

    def __init__(self, template: _Template, pid: int) -> None:
        self._template = template
        self.pid = pid
        self._began = start_time(pid)

    def has_ended(self, wait_s: float = 0.0) -> bool:
        """Look whether the process has ended in time, or will because its template has."""
        return self._template.wait(self.pid, wait_s)

    def kill(self) -> None:
        """Kill the process and all that its tasks started, but never one that got its id later."""
        template = self._template
        template.wait(self.pid, 0.0)  # what it told is known only after a look
        if self.pid not in template.codes and start_time(self.pid) in (None, self._began):
            kill_group(self.pid)

    def end(self, wait_s: float) -> int | None:
        """End the process and all that its tasks started, at once unless it does so in time.

        Returns
        -------
        int or None
            Exit code, negative for a signal; None where the template ended before it told.
        """
        template = self._template
        try:
            template.wait(self.pid, wait_s)
        finally:  # also after an interrupt
            self.kill()
        template.wait(self.pid, _KILLED_S)
        return template.codes.pop(self.pid, None)


class _Template:
    """A template process, see :mod:`fedbench.executors.processes.template`.

    Parameters
    ----------
    intraop_threads : int
        Torch's threads inside one task.
    environment : dict of str to str
        Its environment.
    folder : str or None
        Where it runs, if that still exists.
    """

    def __init__(
        self, intraop_threads: int, environment: dict[str, str], folder: str | None
    ) -> None:
        self.codes: dict[int, int] = {}
        """Exit codes of workers that ended, by process id."""
        self._answers: list[int] = []
        self._hung_up = False
        path = search_path()
        with contextlib.ExitStack() as undo:
            try:
                ours, theirs = socket_pair(socket.SOCK_SEQPACKET)
                self._socket = undo.enter_context(ours)
                with theirs:
                    self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and code
                        [
                            sys.executable,
                            *subprocess._args_from_interpreter_flags(),  # type: ignore[attr-defined]
                            "-c",
                            _COMMAND,
                            repr(path),
                            *map(str, (theirs.fileno(), os.getpid(), intraop_threads)),
                        ],
                        stdin=subprocess.DEVNULL,
                        stdout=_stream(1),
                        stderr=_stream(2),
                        env=environment,
                        # Libraries of torch do not load where the folder was removed.
                        cwd=folder if folder and os.path.isdir(folder) else "/",
                        pass_fds=[theirs.fileno()],
                        # Its own group: a Ctrl-C at the terminal reaches the caller alone.
                        process_group=0,
                    )
            except OSError as error:
                raise cannot_start(error) from error
            undo.pop_all()

    @property
    def gone(self) -> bool:
        """Whether the template has ended, and its workers end too."""
        return self._hung_up or self._process.poll() is not None

    def start_worker(self, fds: tuple[int, int, int]) -> int | None:
        """Return the process id of a new worker, or None if the template ended."""
        try:
            with contextlib.suppress(ConnectionError):
                socket.send_fds(self._socket, [b"+"], fds)
            deadline = time.monotonic() + START_S
            while not self._answers:
                left = deadline - time.monotonic()
                if left < 0:
                    raise cannot_get_ready()
                if not self._receive(left):
                    return None
        except BaseException:
            self.kill()  # the answer may still come, and would be taken for that of the next
            raise
        answer = self._answers.pop()
        if answer < 0:
            raise cannot_start(OSError(-answer, os.strerror(-answer)))
        return answer

    def wait(self, pid: int, wait_s: float) -> bool:
        """Return whether a worker has ended within this time, or the template has."""
        deadline = time.monotonic() + wait_s
        while pid not in self.codes:
            if not self._receive(max(0.0, deadline - time.monotonic())):
                return True
            if pid not in self.codes and time.monotonic() >= deadline:
                return False
        return True

    def kill(self) -> int:
        """End the template; its workers notice. Return its exit code."""
        if self._hung_up:  # it ends by itself: how is worth knowing
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_HUNG_UP_S)
        self._process.kill()
        code = self._process.wait()
        self._hung_up = True
        self._socket.close()
        return code

    def _receive(self, timeout_s: float) -> bool:
        """Wait for news and take all that has come; return False if the template is gone."""
        if self._hung_up:
            return False
        poller = select.poll()
        poller.register(self._socket.fileno(), select.POLLIN)
        while poller.poll(timeout_s * 1000):
            timeout_s = 0.0
            try:
                data = self._socket.recv(MESSAGE.size)
            except ConnectionError:
                data = b""
            if not data:
                self._hung_up = True
                return False
            kind, pid, number = MESSAGE.unpack(data)
            if kind == Message.ENDED:
                self.codes[pid] = number
            else:
                self.codes.pop(pid, None)  # of an earlier worker with this id
                self._answers.append(pid if kind == Message.STARTED else -number)
        return True


def socket_pair(kind: socket.SocketKind) -> tuple[socket.socket, socket.socket]:
    """Return two connected sockets, neither with the number of a standard stream."""
    with contextlib.ExitStack() as undo:
        pair = []
        for one in socket.socketpair(socket.AF_UNIX, kind):
            fd = above_standard_streams(one.detach())
            pair.append(undo.enter_context(socket.socket(fileno=fd)))
        undo.pop_all()
    return pair[0], pair[1]


def search_path() -> list[str]:
    """Return the caller's module search path, independent of the current folder."""
    folder = _current_folder()
    return [
        os.path.normpath(os.path.join(folder or "", entry))
        for entry in sys.path
        # Imports do not look at other entries either.
        if isinstance(entry, str) and (folder or os.path.isabs(entry))
    ]


def cannot_start(error: OSError) -> ResourceError:
    """Return the error for a machine that does not provide what a worker needs."""
    return ResourceError(
        f"a worker process could not be started: {error}. Check the limits on processes, open "
        "files and memory (ulimit -u, ulimit -n, ulimit -v)."
    )


def cannot_get_ready() -> ResourceError:
    """Return the error for a process that takes too long to import what it needs."""
    return ResourceError(
        f"a worker process must be ready within {START_S:.0f} s, got one that is not. The machine "
        "is overloaded, or an import in the workers waits for something."
    )


def describe_exit(code: int | None) -> str:
    """Return words for the exit code of a worker."""
    if code is None:
        return "ended because the process that workers are forked from ended"
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"was killed by {name}"


def _current_folder() -> str | None:
    """Return the current folder, or None if it was removed."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None


def _stream(fd: int) -> int | None:
    """Return what a worker gets as a standard stream: nothing but a closed one is replaced."""
    stream = sys.__stdout__ if fd == 1 else sys.__stderr__
    try:
        os.fstat(fd)
    except OSError:
        return subprocess.DEVNULL
    # Where the interpreter started without one, something else has its number by now.
    return subprocess.DEVNULL if stream is None else None


def _environment(workers: int, intraop_threads: int) -> dict[str, str]:
    """Return the environment of a worker, with its thread caps."""
    caps = dict.fromkeys(_THREAD_VARIABLES, str(intraop_threads))
    # Our own kernels have the same bits on any number of threads, so they may use a worker's share.
    caps["FEDBENCH_NUM_THREADS"] = str(min(core.num_threads(), cpus_per_worker(workers)))
    return {**os.environ, **caps}
