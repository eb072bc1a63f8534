"""Runs small programs in fresh interpreters, for what cannot be tested inside pytest."""

import os
import signal
import subprocess
import sys
import time

import psutil

GUARD_S = 120
"""Deadlock guard: ten times and more what any of the programs takes."""


class Program:
    """A program that runs in its own process group, with its output captured.

    Parameters
    ----------
    code : str
        The program.
    folder : Path
        Where it is written and runs.
    """

    def __init__(
        self, code, folder, *arguments, stdin_code=False, env=None, interpreter_options=()
    ):
        command = [sys.executable, *interpreter_options]
        if stdin_code:
            command += ["-"]
        else:
            (folder / "program.py").write_text(code)
            command += [str(folder / "program.py")]
        self.process = subprocess.Popen(
            [*command, *arguments],
            cwd=folder,
            stdin=subprocess.PIPE if stdin_code else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
            env=os.environ | (env or {}),
        )
        self.code = code if stdin_code else None
        self.descendants = []

    def wait_for_line(self, line):
        """Read standard output up to a line."""
        while (found := self.process.stdout.readline()) and found.strip() != line:
            pass
        assert found, self.process.stderr.read()
        self.descendants = psutil.Process(self.process.pid).children(recursive=True)

    def finish(self, within_s=GUARD_S):
        """Wait for the end; return exit code, standard output and standard error."""
        try:
            out, err = self.process.communicate(self.code, timeout=within_s)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            out, err = self.process.communicate()
            raise AssertionError(f"the program hangs\n{out}\n{err}") from None
        return self.process.returncode, out, err

    def assert_no_descendants(self, within_s=50):
        """Check that the processes seen at `wait_for_line` are gone."""
        _, alive = psutil.wait_procs(self.descendants, timeout=within_s)
        assert not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


def run(code, folder, *arguments, **options):
    """Run a program to its end and return its standard output; fail on an error or a warning."""
    code, out, err = Program(code, folder, *arguments, **options).finish()
    assert code == 0, f"exit code {code}\n{out}\n{err}"
    assert not err, err
    return out


def wait_until(condition, within_s=50):
    """Wait until `condition()` is true."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


def suspend(pid):
    """Stop a process, and wait until it stands still."""
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED)
