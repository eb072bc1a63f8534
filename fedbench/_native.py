"""The only door to the C++ extension."""

from __future__ import annotations

try:
    from fedbench import _core as core  # noqa: TID251
except ImportError as error:  # pragma: no cover - needs a broken build
    error.add_note(
        "The C++ extension of fedbench is not built for this interpreter. "
        "From a checkout run: pip install -c constraints.txt -e ."
    )
    raise

__all__ = ["POOLED_BYTES", "core"]

POOLED_BYTES = 2 * 2**20
"""A huge page: from here on ``core.allocate``, which keeps them, is faster than the libraries."""

# A wrong FEDBENCH_ISA or FEDBENCH_NUM_THREADS is told at import, not from inside a kernel.
core.isa_level()
core.num_threads()
