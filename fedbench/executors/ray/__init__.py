"""The ``ray`` backend: one actor per worker, on a local or a remote cluster.

::

    calling process                                   actor (one of `workers`, any node)
    ───────────────                                   ──────────────────────────────────
    _begin   task, broadcast ── put once per map ─►   private aligned copy, checked for writes
             residents ──────── put once ─────────►   read where they lie in the store
    _submit  calls of one or more tasks ──────────►   run in this order
    _completed  result = view of the store  ◄──────   one object per call
    _partials   one partial reducer per worker  ◄──

A worker holds at most two calls, so that it need not wait for the caller between them. Each call
carries as many tasks as make it worth Ray's price of about half a millisecond.

============  ==================================================================
executor.py   the hooks: which worker gets which task, and what a lost one means
cluster.py    the connection to a cluster, and what is reserved on it
crew.py       the caller's record of the workers and of resident constants
worker.py     what runs in a worker
memory.py     how the memory of tensors goes through the object store
board.py      which task runs, since when; "skip this map"
============  ==================================================================
"""
