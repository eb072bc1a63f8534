"""The round loop: a workload, an algorithm and an executor become a history."""

from fedbench.simulation.checkpoint import has_checkpoint
from fedbench.simulation.compression import COMPRESSIONS, Compression, Quantized, TopK
from fedbench.simulation.faults import STRAGGLERS, Lognormal, Stragglers
from fedbench.simulation.history import History, RoundRecord
from fedbench.simulation.options import SimulationOptions
from fedbench.simulation.participation import (
    PARTICIPATIONS,
    Participation,
    Trace,
    Uniform,
    Weighted,
)
from fedbench.simulation.simulation import Simulation

__all__ = [
    "COMPRESSIONS",
    "PARTICIPATIONS",
    "STRAGGLERS",
    "Compression",
    "History",
    "Lognormal",
    "Participation",
    "Quantized",
    "RoundRecord",
    "Simulation",
    "SimulationOptions",
    "Stragglers",
    "TopK",
    "Trace",
    "Uniform",
    "Weighted",
    "has_checkpoint",
]
