"""Random streams, the reproducibility ladder, digests and the generator scope of a client task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from fedbench.reproducibility.scope import generator_scope, redirect_global_generators

__all__ = [
    "KeyedSeedSequence",
    "Level",
    "check_level",
    "digest",
    "generator_scope",
    "numpy_generator",
    "python_random",
    "redirect_global_generators",
    "seed_torch_generator",
    "stream_key",
    "torch_generator",
]


def __getattr__(name: str) -> Any:
    # The scope imports torch; streams and digests of numpy arrays do without.
    if name in ("generator_scope", "redirect_global_generators"):
        from fedbench.reproducibility import scope

        return getattr(scope, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
