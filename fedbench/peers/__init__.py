"""The same job in other frameworks, each in a process of its own.

One file and one line of :data:`PEERS` for each peer: a function ``run(job) -> Outcome``. Public
names are imported when they are first used: a peer's process must hold its own memory only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedbench.peers.workloads import PEER_WORKLOADS
from fedbench.registry import Entry, Registry, lazy_exports

if TYPE_CHECKING:
    from fedbench.peers.job import Job as Job
    from fedbench.peers.job import Outcome as Outcome
    from fedbench.peers.job import Peer as Peer
    from fedbench.peers.measure import PeerRow as PeerRow
    from fedbench.peers.measure import PeerSettings as PeerSettings
    from fedbench.peers.measure import Timed as Timed
    from fedbench.peers.measure import measure_peers as measure_peers
    from fedbench.peers.table import peers_text as peers_text
    from fedbench.peers.table import peers_to_frame as peers_to_frame

PEERS: Registry[Peer] = Registry(
    "peer",
    {
        "fedbench-sequential": Entry(
            "fedbench.peers.own:sequential", "this package, one client after the other"
        ),
        "fedbench-threads": Entry("fedbench.peers.own:threads", "this package on threads"),
        "fedbench-processes": Entry("fedbench.peers.own:processes", "this package on processes"),
        "fedbench-vectorized": Entry(
            "fedbench.peers.own:vectorized", "this package on processes, clients stacked"
        ),
        "plain": Entry("fedbench.peers.plain:run", "the usual hand-written PyTorch loop"),
        "pfl": Entry("fedbench.peers.pfl:run", "pfl-research in one process", extra="pfl"),
        "pfl-processes": Entry(
            "fedbench.peers.pfl:run_processes", "pfl-research, one process a worker", extra="pfl"
        ),
        "flower": Entry(
            "fedbench.peers.flower:run", "Flower's simulation, one Ray actor a worker", "flower"
        ),
    },
)
"""Functions ``(Job) -> Outcome``."""

_EXPORTS = {
    "Job": "job",
    "Outcome": "job",
    "Peer": "job",
    "PeerRow": "measure",
    "PeerSettings": "measure",
    "Timed": "measure",
    "measure_peers": "measure",
    "peers_text": "table",
    "peers_to_frame": "table",
}

__all__ = [
    "PEERS",
    "PEER_WORKLOADS",
    "Job",
    "Outcome",
    "Peer",
    "PeerRow",
    "PeerSettings",
    "Timed",
    "measure_peers",
    "peers_text",
    "peers_to_frame",
]


__getattr__ = lazy_exports(__name__, _EXPORTS)


def __dir__() -> list[str]:
    return sorted(__all__)
