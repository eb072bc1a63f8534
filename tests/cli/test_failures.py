"""Where the command line says that a client task failed."""

import sysconfig
from pathlib import Path

import pytest

import fedbench
from fedbench.cli import main
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


def test_the_help_is_that_of_the_cause(capsys, tmp_path, monkeypatch):
    (tmp_path / "own_layout_error.py").write_text(
        "from fedbench.algorithms.fedavg import FedAvg\n"
        "from fedbench.errors import LayoutError\n"
        "class Failing(FedAvg):\n"
        "    def train(self, client, down):\n"
        "        raise LayoutError('another model.')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    arguments = ["run", "--workload", "digits-logreg", "--algorithm", "own_layout_error:Failing"]
    with pytest.raises(SystemExit):
        main([*arguments, "--backend", "sequential", "--rounds", "1"])
    printed = capsys.readouterr().err
    assert printed.count("Help:") == 1
    assert "LayoutError: another model." in printed
    assert printed.endswith("Help: docs/guide/troubleshooting.md#layouterror\n")
