"""A contender in a process of its own, driven step by step over a pipe.

Each configuration gets a fresh process, so that none inherits another's threads, caches, memory
or Ray cluster, and so that one that crashes or hangs is a row of the table and not the end of it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

import psutil

from fedbench.errors import FedbenchError
from fedbench.report.processes import PeakMemory, family

__all__ = ["ContenderError", "Host"]

_LOOK_S = 0.05
_WATCH_SHARE = 10
_CLOSE_S = 30.0
_LOG_LINES = 20


class ContenderError(FedbenchError):
    """A configuration cannot be measured; the message is one line, `details` has the rest."""

    def __init__(self, message: str, details: str = "") -> None:
        super().__init__(message)
        self.details = details


class Host:
    """The parent's end: starts the process and passes calls on.

    Parameters
    ----------
    contender : object
        Picklable; its methods are the steps, and it has ``close()``.
    timeout_s : float
        Longest time for one step; a process that needs more is killed.
    """

    def __init__(self, contender: object, *, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        self._pipe, theirs = Pipe()
        # Not multiprocessing's spawn: that would run the caller's main module again.
        code = (
            f"import sys; sys.path[:] = {sys.path!r}; "
            f"from fedbench.report.host import serve; serve({theirs.fileno()})"
        )
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and code
            [sys.executable, "-c", code],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            # Ctrl-C is the parent's to handle: it closes its hosts.
            start_new_session=True,
        )
        theirs.close()
        self._pipe.send(contender)
        self._memory = PeakMemory(lambda: family(self._process.pid))

    @property
    def pid(self) -> int:
        """Process id, the root of everything that belongs to the configuration."""
        return self._process.pid

    @property
    def peak_memory_bytes(self) -> int | None:
        """Largest memory of the process tree during calls with ``watch_memory``."""
        return self._memory.peak_bytes

    def begin(self, step: str) -> None:
        """Ask for `step` without waiting for its end."""
        try:
            self._pipe.send(step)
        except OSError:
            raise self._death(step) from None

    def finish(self, step: str, *, watch_memory: bool = False) -> Any:
        """Wait for the end of `step` and return its result.

        Raises
        ------
        ContenderError
            If the step fails, the process ends or the time is up.
        """
        deadline = time.monotonic() + self._timeout_s
        pause = _LOOK_S
        while not self._pipe.poll(pause):
            if watch_memory:
                before = time.monotonic()
                self._memory.observe()
                # Reading the maps of many processes takes a while: leave the cores to them.
                pause = max(_LOOK_S, _WATCH_SHARE * (time.monotonic() - before))
            if time.monotonic() > deadline:
                self._kill()
                raise ContenderError(
                    f"{step} took longer than {self._timeout_s:g} s and was stopped",
                    self._log_tail(),
                )
        try:
            failed, value = self._pipe.recv()
        except (EOFError, OSError):
            raise self._death(step) from None
        if watch_memory:
            self._memory.observe()
        if failed:
            raise ContenderError(*value)
        return value

    def call(self, step: str, *, watch_memory: bool = False) -> Any:
        """Run the contender's method `step` and return its result; see :meth:`finish`."""
        self.begin(step)
        return self.finish(step, watch_memory=watch_memory)

    def dismiss(self) -> None:
        """Let the process end after what it is doing, without waiting for that."""
        with contextlib.suppress(OSError):  # it has ended, or the pipe is closed
            self._pipe.send(None)

    def close(self, *, at_once: bool = False) -> None:
        """End the process and all that it started; never hangs, safe to call again.

        Parameters
        ----------
        at_once : bool
            Kill it instead of letting it finish what it is doing.
        """
        members = family(self._process.pid)
        try:
            if not at_once:
                self.dismiss()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(_CLOSE_S)
        finally:
            self._kill(members)
            self._pipe.close()
            self._log.close()

    def _kill(self, members: list[psutil.Process] | None = None) -> None:
        # Ray's daemons have sessions of their own: a process group would miss them.
        for process in family(self._process.pid) if members is None else members:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()

    def _death(self, step: str) -> ContenderError:
        self._kill()
        code = self._process.returncode
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return ContenderError(f"the process ended in {step} with {how}", self._log_tail())

    def _log_tail(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode("utf-8", "replace").splitlines()
        return "\n".join(lines[-_LOG_LINES:])


def serve(descriptor: int) -> None:
    """Run the steps that the parent asks for, until it says None or is gone."""
    pipe = Connection(descriptor)
    contender = pipe.recv()
    try:
        while (step := pipe.recv()) is not None:
            try:
                answer = (False, getattr(contender, step)())
            # Whatever went wrong is the row's reason, and the parent's to report.
            except Exception as error:  # noqa: BLE001
                answer = (True, (_one_line(error), traceback.format_exc()))
            pipe.send(answer)
    except (EOFError, OSError):
        pass  # the parent is gone; there is nobody to tell
    finally:
        contender.close()
        sys.stdout.flush()
        os.close(descriptor)


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, FedbenchError) and text else f"{type(error).__name__}: {text}"
