"""Executors in a Jupyter kernel, where ``__main__`` has no file and Ctrl-C is a message."""

import nbformat
import pytest
from nbclient import NotebookClient

from .scripts import GUARD_S

DEFINITIONS = """
from fedbench.executors import make_executor

OFFSET = 10

class Update:
    def __init__(self, value):
        self.value = value

def task(update):
    return Update(update.value + OFFSET)
"""

MAP = """
with make_executor("{backend}", 2) as executor:
    results = executor.map(task, [Update(1), Update(2)])
    print([type(result) is Update and result.value for result in results])
"""

REDEFINITION = """
OFFSET = 20
"""

INTERRUPT = """
import os, signal, threading, time
import psutil

def slow(seconds):
    time.sleep(seconds)
    return seconds

executor = make_executor("{backend}", 2)
executor.start()
threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
begin = time.monotonic()
try:
    executor.map(slow, [1.5] * 100)
except KeyboardInterrupt:
    print("interrupted", time.monotonic() - begin < 60)
"""

GO_ON = """
print(executor.map(slow, [0.0, 0.1]))
executor.close()
print(psutil.Process().children(recursive=True))
"""


@pytest.fixture(scope="module", params=["threads", "processes"])
def outputs(request):
    """What each cell printed, run one after another in a fresh kernel."""
    run = MAP.format(backend=request.param)
    sources = [DEFINITIONS, run, REDEFINITION, run, INTERRUPT.format(backend=request.param), GO_ON]
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    notebook = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(notebook, timeout=GUARD_S, kernel_name="python3").execute()
    return [
        "".join(output.get("text", "") for output in cell.outputs if output.name == "stdout")
        for cell in notebook.cells
    ]


def test_functions_and_classes_of_cells_work_and_may_be_redefined(outputs):
    assert outputs[:4] == ["", "[11, 12]\n", "", "[21, 22]\n"]


def test_an_interrupted_cell_leaves_a_kernel_and_an_executor_that_work(outputs):
    assert outputs[4:] == ["interrupted True\n", "[0.0, 0.1]\n[]\n"]
