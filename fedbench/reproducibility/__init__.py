"""Random streams, the reproducibility ladder, digests and the generator scope of a client task."""

from __future__ import annotations

from fedbench.reproducibility.digest import digest
from fedbench.reproducibility.level import Level, check_level
from fedbench.reproducibility.streams import (
    KeyedSeedSequence,
    numpy_generator,
    python_random,
    seed_torch_generator,
    stream_key,
    torch_generator,
)

__all__ = [
    "KeyedSeedSequence",
    "Level",
    "check_level",
    "digest",
    "numpy_generator",
    "python_random",
    "seed_torch_generator",
    "stream_key",
    "torch_generator",
]
