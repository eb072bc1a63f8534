"""A persistent pool of processes with shared-memory transport.

::

    calling process                                      worker process (one of `workers`)
    ───────────────                                      ─────────────────────────────────
    _begin   broadcast tensors ──► down arena ─ ─ ─ ─ ─ ► private view (copy-on-write)
             task, other values ─┐
    _submit  items ──────────────┴─► socket ───────────► unpack, run, check the broadcast
    _completed                ◄────── socket ◄────────── small results, slot numbers
             result = view of a slot ◄ ─ ─ up arena ◄ ── large tensors of results
             last reference goes ───► socket ──────────► the slot is free again

    control page (first of the up arena): which task runs, since when; "skip this map"

Solid lines copy, dashed lines are the same memory. A worker is never a fork of the caller: it is
forked from the executor's template, a fresh interpreter that has done nothing but import, and not
``__main__``. It ends when its socket or the template does, so when the caller is killed too. All
work of the calling process happens in the thread that calls ``map``; there is no helper thread,
and no send of a message ever blocks.

============  ==================================================================
executor.py   the backend: options, start and end
maps.py       its hooks: which worker gets which task, and what a lost one means
dispatch.py   how many tasks a worker is given at a time
broadcast.py  the caller's side of the down arena: broadcast and residents
pool.py       the workers as the caller sees them, and waiting for them
launch.py     starting and ending processes
template.py   what runs in the template
worker.py     what runs in a worker
protocol.py   messages and their framing
slots.py      result slots, both sides
control.py    the control page
memory.py     anonymous shared memory
results.py    answers turned into results and errors
============  ==================================================================
"""

import sys

from fedbench.errors import UnsupportedPlatformError

if not sys.platform.startswith("linux"):
    # Here, because the modules of this package need what only Linux has.
    raise UnsupportedPlatformError(
        f"the backend 'processes' needs Linux, got {sys.platform!r}. Use the backend 'threads'."
    )
