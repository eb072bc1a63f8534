"""FedProx: Li, Sahu, Zaheer, Sanjabi, Talwalkar and Smith, *Federated Optimization in Heterogeneous
Networks*, MLSys 2020, algorithm 2 (arXiv:1812.06127).
"""  # noqa: D205

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from fedbench.algorithms.base import hyperparameter
from fedbench.algorithms.fedavg import FedAvg

__all__ = ["FedProx"]


@dataclass(frozen=True)
class FedProx(FedAvg):
    r"""FedAvg whose clients are pulled towards the received model.

    Local steps descend along :math:`g_i(y) + \mu (y - x)`; with :math:`\mu = 0` the term is left
    out and the bits are those of FedAvg.

    Parameters
    ----------
    weighting : {"samples", "uniform"}
        ``"samples"`` for cohorts that are sampled uniformly; the paper samples clients in
        proportion to their number of samples and then averages with ``"uniform"`` weights.
    mu : float
        Strength of the pull, at least 0.
    """

    unsupported: ClassVar[frozenset[str]] = frozenset({"train"})

    mu: float = hyperparameter(0.01, low=0.0)

    def local_terms(self, down: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the proximal term, centred at the received model."""
        return {"proximal": self.mu, "anchor": down["model"].parameters}
