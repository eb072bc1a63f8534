"""Runs of a matrix in processes of their own, several at once.

The processes are not those of an executor: a task of an executor may not use another executor,
and a simulation does. Each process takes one run after another, on one core; what it computes is
what the calling process would. A process that dies costs the run that it had and no other.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, Pipe, wait

from fedbench.configuration.plan import PlannedRun
from fedbench.configuration.running import Listener, Progress, RunResult, attempt, failure
from fedbench.errors import WorkerDiedError

__all__ = ["run_in_processes", "serve"]

_COMMAND = (
    "import sys; sys.path[:] = eval(sys.argv[1])\n"
    "from fedbench.configuration.parallel import serve\n"
    "serve(int(sys.argv[2]))"
)
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_EXIT_S = 5.0


def run_in_processes(
    runs: Sequence[PlannedRun],
    processes: int,
    on_progress: Listener,
    on_result: Callable[[int, RunResult], None],
) -> list[RunResult]:
    """Run `runs` on `processes` processes at once; return the results in the order of `runs`."""
    waiting = deque(enumerate(runs))
    results: dict[int, RunResult] = {}
    threads = max(run.configuration.intraop_threads for run in runs)
    crew = [_Worker(threads) for _ in range(processes)]
    try:
        for worker in crew:
            worker.give(waiting.popleft())
        while len(results) < len(runs):
            busy = [worker for worker in crew if worker.index is not None]
            ready = wait([worker.channel for worker in busy])
            for worker in [worker for worker in busy if worker.channel in ready]:
                message = worker.receive()
                if isinstance(message, Progress):
                    on_progress(message)
                    continue
                index = worker.take()
                if isinstance(message, WorkerDiedError):
                    results[index] = failure(runs[index], message)
                    crew.remove(worker)
                    worker.end()
                    if waiting:
                        crew.append(worker := _Worker(threads))
                else:
                    results[index] = message
                on_result(index, results[index])
                if waiting:
                    worker.give(waiting.popleft())
    finally:
        for worker in crew:
            worker.end()
    return [results[index] for index in range(len(runs))]


class _Worker:
    """A process that runs simulations, and the channel to it."""

    def __init__(self, threads: int) -> None:
        self.index: int | None = None
        """Position of the run that it has, if it has one."""
        self.channel, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and code
                [
                    sys.executable,
                    "-c",
                    _COMMAND,
                    repr([os.path.abspath(entry) for entry in sys.path]),
                    str(theirs.fileno()),
                ],
                stdin=subprocess.DEVNULL,
                stdout=sys.__stderr__.fileno() if sys.__stderr__ else subprocess.DEVNULL,
                env={**os.environ, **dict.fromkeys(_THREAD_VARIABLES, str(threads))},
                pass_fds=(theirs.fileno(),),
                # Its own group: a Ctrl-C at the terminal reaches the caller, who ends it.
                process_group=0,
            )

    def give(self, numbered: tuple[int, PlannedRun]) -> None:
        """Send a run; a process that has died by now says so when it is read."""
        self.index = numbered[0]
        try:
            self.channel.send(numbered)
        except OSError:
            return

    def take(self) -> int:
        """Return the position of the run that the process had, and count it as ended."""
        if self.index is None:
            raise RuntimeError("the process has no run.")
        index, self.index = self.index, None
        return index

    def receive(self) -> Progress | RunResult | WorkerDiedError:
        """Return the next message, or the error that tells how the process ended."""
        try:
            message: Progress | RunResult = self.channel.recv()
        except (EOFError, OSError):
            code = self._process.wait()
            how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            return WorkerDiedError(
                f"the process of this run (pid {self._process.pid}) ended with {how}. "
                "Signal SIGKILL is usually the kernel, out of memory: run fewer at once.",
                index=self.index or 0,
                pid=self._process.pid,
                exitcode=code,
            )
        return message

    def end(self) -> None:
        """End the process: at once if it still has a run, else when it has seen the end."""
        self.channel.close()
        if self.index is not None:
            self._process.kill()
        try:
            self._process.wait(_EXIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def serve(descriptor: int) -> None:
    """Run what comes through a channel until it is closed; the main function of a process."""
    with Connection(descriptor) as channel:
        while True:
            try:
                index, run = channel.recv()
            except EOFError:
                return

            def listener(progress: Progress, index: int = index) -> None:
                channel.send(Progress(index, progress.done, progress.total, progress.metrics))

            result = attempt(run, listener)
            try:
                message = pickle.dumps(result)
            except Exception as error:  # noqa: BLE001 - reported as the run's failure
                message = pickle.dumps(failure(run, error))
            try:
                channel.send_bytes(message)
            except BrokenPipeError:  # the caller is gone
                return
