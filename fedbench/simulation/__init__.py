"""The round loop: a workload, an algorithm and an executor become a history."""

from fedbench.simulation.checkpoint import has_checkpoint
from fedbench.simulation.history import History, RoundRecord
from fedbench.simulation.simulation import Simulation

__all__ = ["History", "RoundRecord", "Simulation", "has_checkpoint"]
