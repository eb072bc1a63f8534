"""The generator scope: module-level randomness of a client task comes from its own generators."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from types import TracebackType

import numpy as np
import torch

from fedbench.errors import EnclosureError
from fedbench.reproducibility.active import TaskGenerators, active
from fedbench.reproducibility.ledger import ledger
from fedbench.reproducibility.redirect_host import install_numpy, install_python
from fedbench.reproducibility.redirect_torch import install_torch
from fedbench.reproducibility.streams import checked_name

__all__ = ["generator_scope", "redirect_global_generators", "seed_global_generators"]

_install_lock = threading.Lock()
_is_installed = False


def redirect_global_generators() -> None:
    """Prepare this process for generator scopes; the first scope does it otherwise.

    From now on the functions of ``torch``, ``numpy.random`` and ``random`` that draw from global
    generators look whether their thread is in a scope. Outside of scopes they draw the same
    numbers as before. This is not undone when a scope ends: code that meanwhile imported a
    function by name would keep the redirected one in any case, and other threads may be drawing.

    Raises
    ------
    UnsupportedPlatformError
        If this torch does not allow it.
    """
    global _is_installed
    if _is_installed:
        return
    with _install_lock:
        install_torch()
        install_numpy()
        install_python()
        _is_installed = True


def seed_global_generators(seed: int) -> None:
    """Seed the global generators of torch, numpy and ``random``, which L0 draws from."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - the global generator itself is meant
    random.seed(seed)


class generator_scope:  # noqa: N801 - to its users a function, as contextlib's managers are
    """Draw the module-level randomness of a client task from the task's own generators.

    Within the ``with`` block, in this thread, everything that draws from a global generator draws
    from generators that are filled from the stream ``(seed, "task", *key)`` instead:

    - torch on the CPU: every function and module without ``generator=``, be it dropout of any
      kind, ``torch.rand``, an initialiser, an LSTM's dropout or attention. ``torch.manual_seed``,
      ``seed``, ``initial_seed``, ``get_rng_state``, ``set_rng_state`` and ``fork_rng`` act on the
      task's generator as well, so ``torch.utils.checkpoint`` is right.
    - numpy: all functions of ``numpy.random``, and ``default_rng()`` without a seed.
    - Python: all functions of ``random``.

    The global generators are left alone. The numbers are those that the same code draws outside
    of a scope when the global generators are in the states that the stream gives. Scopes may be
    nested: the inner one draws from its own stream, then the outer one goes on where it was.

    ``with generator_scope(...) as generators`` gives the generators: ``.torch``, ``.numpy`` and
    ``.python``. Entering the same scope object again starts its stream anew.

    Threads that a task starts on its own are outside of its scope. Accelerators have generators
    of their own, which are not redirected.

    Parameters
    ----------
    seed : int
        Root seed of the run.
    *key : int or str
        What identifies the task, for example client id and round.
    check : bool, default False
        At the end, raise if the task changed a global generator all the same. See the guide for
        what can't be redirected.

    Raises
    ------
    TypeError
        If `seed` or a part of `key` has a wrong type.
    EnclosureError
        At the end of the block with `check`, if a global generator was changed in a way that
        cannot be redirected, unless the block is left by another exception.
    UnsupportedPlatformError
        On the first entry, if this torch does not allow to redirect its draws.

    Examples
    --------
    >>> import torch
    >>> from fedbench.reproducibility import generator_scope
    >>> with generator_scope(0, "client-7", 3):
    ...     first = torch.rand(2)
    >>> with generator_scope(0, "client-7", 3):
    ...     again = torch.nn.init.uniform_(torch.empty(2))
    >>> torch.equal(first, again)
    True
    """

    # A class: entering a generator function's manager costs twice as much.
    __slots__ = ("_check", "_name", "_task")

    def __init__(self, seed: int, *key: int | str, check: bool = False) -> None:
        self._name = checked_name(seed, "task", *key)
        self._check = check
        self._task = key

    def __enter__(self) -> TaskGenerators:
        if not _is_installed:
            redirect_global_generators()
        if self._check:
            ledger.watch(self._task)
        active.generators = generators = TaskGenerators(self._name, active.generators)
        return generators

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        generators = active.generators
        active.generators = None if generators is None else generators.outer
        if self._check:
            changed = ledger.end_watch(self._task)
            if changed and error is None:
                source, tasks = next(iter(changed.items()))
                raise EnclosureError(_unaccounted(source, tasks))


def _unaccounted(source: str, tasks: Sequence[tuple[int | str, ...]]) -> str:
    names = [f"({', '.join(map(repr, task))})" for task in tasks]
    who = f"the client task {names[0]}" if len(names) == 1 else f"one of {', '.join(names)}"
    return (
        f"client tasks must draw from their own generators, got a change of {source} while "
        f"{who} ran. It was made in a way that cannot be redirected: by a function that was "
        "imported by name before fedbench (as in 'from numpy.random import rand': write "
        "numpy.random.rand), or by the generator object itself "
        "(torch.default_generator.manual_seed: write torch.manual_seed)."
    )
