"""Where the command line says that a client task failed."""

import sysconfig
from pathlib import Path

import pytest

import fedbench
from fedbench.cli.failures import where
from fedbench.errors import ClientTaskError

OURS = Path(fedbench.__file__).parent / "training" / "local_sgd.py"
TORCH = f"{sysconfig.get_paths()['purelib']}/torch/nn/functional.py"
USER = "/home/somebody/my model.py"


def error(*files):
    frames = "".join(
        f'  File "{file}", line {number}, in f{number}\n    code()\n'
        for number, file in enumerate(files, 1)
    )
    text = f"Traceback (most recent call last):\n{frames}ValueError: odd\n" if files else ""
    return ClientTaskError("it failed", index=0, worker_traceback=text)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ([OURS, USER, TORCH], f" ({USER}:2, in f2)"),
        ([USER, OURS, USER, OURS, TORCH], f" ({USER}:3, in f3)"),
        ([OURS, TORCH], f" ({TORCH}:2, in f2)"),
        ([OURS, "<stdin>"], " (<stdin>:2, in f2)"),
        ([], ""),
    ],
)
def test_the_innermost_line_of_the_users_own_code_is_named(files, expected):
    assert where(error(*files)) == expected
