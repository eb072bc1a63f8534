"""The template process: imports once what all workers need, and forks a worker when asked.

A fork of a process is sound as long as that process has one thread, holds no state but modules
and has touched no device. The caller cannot promise this about itself, the template can: it is a
fresh interpreter that only imports. Where an import starts threads, and where workers get more
than one intra-op thread (numerical libraries start theirs as they are imported), it starts a
fresh interpreter for each worker instead.

It is the parent of the workers: it tells the caller how each ends, and ends them all when the
caller is gone.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import importlib
import os
import select
import signal
import socket
import sys
import traceback
from typing import NoReturn

from fedbench.executors.nesting import mark_worker_process
from fedbench.executors.processes.launch import MESSAGE, Message
from fedbench.executors.processes.system import die_with_parent, kill_group, outlive_parent

__all__ = ["main"]

_WORKER = "fedbench.executors.processes.worker"
_MODULES = (_WORKER, "fedbench.simulation")
"""What workers are likely to need. The last goes by its name: this layer knows nothing of
simulations, but hardly a worker will not be asked to run the clients of one."""
_COMMAND = (
    "import sys; sys.path[:] = eval(sys.argv[1]); "
    f"from {_WORKER} import main; main(*map(int, sys.argv[2:]))"
)
"""What the interpreter of a worker runs that is not forked."""
_LOOK_MS = 1000


def main(fd: int, caller_pid: int, intraop_threads: int) -> NoReturn:
    """Serve the caller until it is gone.

    Parameters
    ----------
    fd : int
        Descriptor of the socket to the caller.
    caller_pid : int
        Its process id.
    intraop_threads : int
        Torch's threads inside one task.
    """
    # A Ctrl-C is for the caller, which decides what becomes of the tasks.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The caller may have blocked it for its own threads.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    os.set_inheritable(fd, False)
    mark_worker_process()  # what is imported here may not make executors either
    search_path = list(sys.path)
    forks = intraop_threads == 1
    if forks:
        die_with_parent(caller_pid)  # an import may take long
        for name in _MODULES:
            importlib.import_module(name)
        outlive_parent()  # to end what the tasks have started
        # Objects of the imports stay as they are: a collection in a worker would touch, and so
        # copy, the pages that all share.
        gc.collect()
        gc.freeze()
    template = Template(socket.socket(fileno=fd), search_path, intraop_threads, forks=forks)
    with contextlib.suppress(EOFError, ConnectionError):
        template.serve(caller_pid)
    template.kill_all()
    os._exit(0)


class Template:
    """Starts workers and watches them.

    Parameters
    ----------
    channel : socket
        To the caller: each message is one packet.
    search_path : list of str
        Where a worker that is not forked finds its modules.
    intraop_threads : int
        Torch's threads inside one task.
    forks : bool
        Whether this process has imported what workers need.
    """

    def __init__(
        self, channel: socket.socket, search_path: list[str], intraop_threads: int, *, forks: bool
    ) -> None:
        self._channel = channel
        self._search_path = search_path
        self._intraop_threads = intraop_threads
        self._forks = forks
        self._workers: set[int] = set()
        # Who writes to it is this process alone, so it hangs up whatever ends this process.
        self._lifeline, self._held = os.pipe()
        # The end of a child wakes the poll.
        self._awake, self._wake = socket.socketpair()
        self._awake.setblocking(False)
        self._wake.setblocking(False)
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self, caller_pid: int) -> None:
        """Start a worker for each request, until the caller is gone."""
        poller = select.poll()
        poller.register(self._channel.fileno(), select.POLLIN)
        poller.register(self._awake.fileno(), select.POLLIN)
        # The parent's id is looked at too, because a process that the caller forked would keep
        # the other end of the socket open.
        while os.getppid() == caller_pid:
            for fd, _ in poller.poll(_LOOK_MS):
                if fd == self._channel.fileno():
                    self._take_request()
                else:
                    with contextlib.suppress(BlockingIOError):
                        self._awake.recv(4096)
            self._bury()

    def kill_all(self) -> None:
        """End all workers and what their tasks started."""
        for pid in self._workers:
            kill_group(pid)

    def _take_request(self) -> None:
        data, fds, _, _ = socket.recv_fds(self._channel, 1, 3, socket.MSG_CMSG_CLOEXEC)
        if not data:
            raise EOFError
        try:
            if len(fds) < 3:  # the rest was cut off: no descriptors left here
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            pid = self._fork(fds) if self._forks and _may_fork() else self._spawn(fds)
        except OSError as error:
            self._tell(Message.REFUSED, 0, error.errno or 0)
        else:
            self._workers.add(pid)
            self._tell(Message.STARTED, pid, 0)
        finally:
            for fd in fds:
                os.close(fd)

    def _fork(self, fds: list[int]) -> int:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()  # else what an import wrote would come once more from each worker
        parent_pid = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                self._become_worker(fds, parent_pid)
            except BaseException:  # noqa: BLE001 - a worker never gets back into this code
                traceback.print_exc()
            finally:
                os._exit(1)
        with contextlib.suppress(OSError):  # the worker does so too, whoever comes first
            os.setpgid(pid, pid)
        return pid

    def _become_worker(self, fds: list[int], parent_pid: int) -> None:
        # Its own group: what a task started ends with its worker.
        os.setpgid(0, 0)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for own in (self._channel, self._awake, self._wake):
            own.close()
        os.close(self._held)
        _reseed()
        from fedbench.executors.processes.worker import main as work

        channel, down, up = fds
        work(channel, down, up, self._lifeline, parent_pid, self._intraop_threads)

    def _spawn(self, fds: list[int]) -> int:
        fds = [*fds, self._lifeline]
        for fd in fds:
            os.set_inheritable(fd, True)
        numbers = (*fds, os.getpid(), self._intraop_threads)
        flags = sys.orig_argv[1 : sys.orig_argv.index("-c")]
        arguments = [repr(self._search_path), *map(str, numbers)]
        return os.posix_spawn(
            sys.executable,
            [sys.executable, *flags, "-c", _COMMAND, *arguments],
            os.environ,
            setpgroup=0,
        )

    def _bury(self) -> None:
        """Tell the caller which workers ended, and end what their tasks started."""
        while self._workers:
            # Looked at before it is reaped: until then no other process can get its id.
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None:
                return
            pid = ended.si_pid
            is_worker = pid in self._workers  # an import may have started something else
            if is_worker:
                kill_group(pid)
            _, status = os.waitpid(pid, 0)
            if is_worker:
                self._workers.remove(pid)
                self._tell(Message.ENDED, pid, os.waitstatus_to_exitcode(status))

    def _tell(self, kind: int, pid: int, number: int) -> None:
        self._channel.sendall(MESSAGE.pack(kind, pid, number))


def _may_fork() -> bool:
    """Return whether this process is in a state that a worker can go on from."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return False
    return len(os.listdir("/proc/self/task")) == 1


def _reseed() -> None:
    """Seed numpy's and torch's global generators anew, else all workers would draw the same.

    Python's own takes care of itself, and those of a GPU are made where the GPU is first used.
    """
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.seed()
