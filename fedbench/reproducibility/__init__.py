"""Random streams, the reproducibility ladder, digests and the generator scope of a client task."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fedbench.reproducibility.digest import digest
from fedbench.reproducibility.level import Level, check_level, level_or_default
from fedbench.reproducibility.pinned import incomparable, pinned
from fedbench.reproducibility.streams import (
    KeyedSeedSequence,
    numpy_generator,
    python_random,
    seed_torch_generator,
    stream_key,
    torch_generator,
)

if TYPE_CHECKING:
    from fedbench.reproducibility.loader import make_loader
    from fedbench.reproducibility.scope import generator_scope, redirect_global_generators

__all__ = [
    "KeyedSeedSequence",
    "Level",
    "check_level",
    "digest",
    "generator_scope",
    "incomparable",
    "level_or_default",
    "make_loader",
    "numpy_generator",
    "pinned",
    "python_random",
    "redirect_global_generators",
    "seed_torch_generator",
    "stream_key",
    "torch_generator",
]


# These import torch; streams and digests of numpy arrays do without.
_WITH_TORCH = {
    "generator_scope": "fedbench.reproducibility.scope",
    "make_loader": "fedbench.reproducibility.loader",
    "redirect_global_generators": "fedbench.reproducibility.scope",
}


def __getattr__(name: str) -> Any:
    if name in _WITH_TORCH:
        return getattr(importlib.import_module(_WITH_TORCH[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
