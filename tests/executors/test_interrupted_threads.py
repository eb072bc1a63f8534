"""Ctrl-C while threads are inside torch ends the program as Ctrl-C does, without an abort."""

import os
import signal
import subprocess
import sys

import pytest

SCRIPT = """
import sys
import fedbench, torch

def task(item):
    print("inside", flush=True)
    matrix = torch.randn(1200, 1200)
    for _ in range(200):
        matrix = (matrix @ matrix).tanh()
    return item

with fedbench.make_executor("threads", workers=2) as executor:
    executor.map(task, range(8))
"""


@pytest.mark.parametrize("to_group", [True, False])
def test_the_end_is_that_of_an_interrupt(to_group):
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout.readline().startswith("inside")
    (os.killpg if to_group else os.kill)(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT
    assert "KeyboardInterrupt" in errors
    assert "terminate called" not in errors


def test_a_program_that_goes_on_waits_for_the_task_at_its_end():
    caught = SCRIPT.replace(
        "    executor.map(task, range(8))",
        "    try:\n        executor.map(task, range(8))\n"
        "    except KeyboardInterrupt:\n        print('caught', flush=True)",
    ).replace("range(200)", "range(40)")
    process = subprocess.Popen(
        [sys.executable, "-c", caught], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline().startswith("inside")
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert "caught" in output
