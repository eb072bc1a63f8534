"""Every output of `fedbench peers`, byte for byte, from fixed rows.

After a wanted change run ``python tests/peers/test_golden.py`` and read the diff.
"""

import sys
from pathlib import Path

import pytest

import fedbench.peers.table
from fedbench.peers import Job, peers_text, peers_to_frame
from fedbench.peers.measure import PeerRow, Timed
from fedbench.report import FRAME_FORMATS

GOLDEN = Path(__file__).parent / "golden"
DATE = "2024-02-29T12:00:00+00:00"


def row(workload, peer, first, rounds, peak, *, digests=("ab", "ab"), difference=0.0):
    timed = [Timed(first, tuple(rounds), first + sum(rounds) + 0.5)]
    return PeerRow(
        Job(workload, 4, 2),
        peer,
        DATE,
        timed=timed,
        peak_memory_bytes=peak,
        digests=list(digests),
        max_abs_diff=difference,
        identical=digests[-1] == "ab",
        version="1.2",
    )


ROWS = [
    row("logreg", "fedbench-sequential", 3.0, [0.2, 0.21, 0.19], 300_000_000),
    row("logreg", "fedbench-threads", 3.1, [0.1, 0.12, 0.11], 310_000_000),
    row(
        "logreg",
        "plain",
        3.2,
        [0.5, 0.52, 0.54],
        305_000_000,
        digests=("cd", "cd"),
        difference=7e-9,
    ),
    row(
        "logreg",
        "flower",
        15.0,
        [1.0, 1.1, 1.2],
        1_500_000_000,
        digests=("e", "f"),
        difference=3e-8,
    ),
    PeerRow(Job("logreg", 4, 2), "pfl", DATE, "peer 'pfl' needs the package 'pfl', \"say\" =how"),
    row("resnet18-step", "plain", 5.0, [2.0, 2.0, 2.0], 700_000_000, digests=("12", "12")),
]
RENDERERS = {
    f"peers-{width}.txt": lambda width=width: peers_text(ROWS, width).encode()
    for width in (80, 120)
} | {
    f"peers{suffix}": lambda render=render: render(peers_to_frame(ROWS))
    for suffix, render in FRAME_FORMATS.items()
    if suffix != ".parquet"
}


@pytest.fixture(autouse=True)
def same_machine(monkeypatch):
    """Let the files name the same machine and software everywhere."""
    monkeypatch.setattr(fedbench.peers.table, "cpu_model", lambda: "Test CPU")
    monkeypatch.setattr(fedbench.peers.table, "package_version", lambda name: "2.13.0")


@pytest.mark.parametrize("name", RENDERERS)
def test_output_is_the_golden_file_byte_for_byte(name):
    assert RENDERERS[name]().decode() == (GOLDEN / name).read_bytes().decode()


def test_no_golden_file_is_left_over():
    assert {path.name for path in GOLDEN.iterdir()} == set(RENDERERS)


if __name__ == "__main__":
    fedbench.peers.table.cpu_model = lambda: "Test CPU"
    fedbench.peers.table.package_version = lambda name: "2.13.0"
    for file_name, render_file in RENDERERS.items():
        (GOLDEN / file_name).write_bytes(render_file())
        sys.stdout.write(f"wrote {file_name}\n")
