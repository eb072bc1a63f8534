"""Read-only constants that task objects hold and that travel to each worker once."""

from __future__ import annotations

import itertools
from typing import Any, Generic, TypeVar

__all__ = ["Resident"]

T = TypeVar("T")

_ids = itertools.count()


class Resident(Generic[T]):
    """A read-only constant, such as the data set, that a task object may hold.

    A task object is sent to the workers anew whenever it changes; a resident inside it is sent
    to each worker once and kept there until the resident itself is collected. ``processes`` puts
    its tensors in shared memory, ``ray`` in the object store, ``sequential`` and ``threads`` use
    it as it is.

    Parameters
    ----------
    value : object
        The constant. Tasks must not write to it; nor may its owner once a task has read it.

    Attributes
    ----------
    value : object
        The constant, or the worker's read-only copy.

    Examples
    --------
    >>> data = Resident([1, 2, 3])
    >>> data.value
    [1, 2, 3]
    """

    __slots__ = ("__weakref__", "key", "value")

    def __init__(self, value: T) -> None:
        self.value = value
        self.key = next(_ids)
        """Identifies the constant within the process that made it."""

    def __repr__(self) -> str:
        return f"Resident({type(self.value).__qualname__})"

    def __reduce__(self) -> tuple[Any, ...]:
        # Outside of an executor's own transport a resident is pickled like any other object.
        return Resident, (self.value,)
