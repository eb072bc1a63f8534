"""What every peer is asked to do, and what it gives back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedbench.peers.workloads import PEER_WORKLOADS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedbench.workloads import Workload

__all__ = ["Job", "Outcome", "Peer"]


@dataclass(frozen=True)
class Job:
    """The work of one run of a peer.

    All clients take part in every round. Client `c` visits its samples in round `r` (from 0) in
    the order that ``torch_generator(seed, "shuffle", c, r, 0)`` gives, so that all peers take the
    same local steps on the same batches.

    Parameters
    ----------
    workload : str
        A name of ``fedbench.peers.PEER_WORKLOADS``.
    rounds : int
        Rounds to run.
    workers : int
        Processes, threads or actors, where the peer has them.
    seed : int
        Seed of the initial model and of the order of the samples.
    """

    workload: str
    rounds: int
    workers: int
    seed: int = 0

    def load(self) -> Workload:
        """Return data, model and local work."""
        return PEER_WORKLOADS.load(self.workload)()


@dataclass(frozen=True)
class Outcome:
    """What a run of a peer left.

    Parameters
    ----------
    ends : tuple of float
        ``time.perf_counter()`` at the end of each round, aggregation included.
    state : dict of str to numpy.ndarray
        The final model by name.
    version : str
        Version of the peer's package.
    """

    ends: tuple[float, ...]
    state: dict[str, NDArray[Any]]
    version: str


Peer = Callable[[Job], Outcome]
"""Runs a job in the present process, which is used for nothing else."""
