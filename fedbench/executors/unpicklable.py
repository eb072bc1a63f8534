"""Errors about what cannot be pickled: which part it is, why, and what to do."""

from __future__ import annotations

import collections
import functools
import pickle
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import cloudpickle

from fedbench.executors.packing import pack
from fedbench.executors.resident import Resident
from fedbench.executors.runner import Failure
from fedbench.executors.structure import ATOMS, attributes

__all__ = ["cannot_be_sent", "sending"]

_ADVICE = (
    "Leave open files, locks, generators, sockets and the like out and make them in the task, or "
    "use the backend 'threads'."
)
_SHOWN = 160
"""Letters of a path that are shown."""


@contextmanager
def sending(what: str, value: Any) -> Iterator[None]:
    """Turn any error of pickling into one that says what could not be sent.

    Parameters
    ----------
    what : str
        What `value` is called.
    value : object
        What the block pickles.

    Raises
    ------
    pickle.PicklingError
        With the original error as ``__cause__``.
    """
    try:
        yield
    except Exception as error:
        culprit, advice = _explain(error, value)
        raise pickle.PicklingError(
            f"{what} must be picklable to reach the workers, got {culprit}: "
            f"{type(error).__name__}: {str(error).rstrip('.')}. {advice}"
        ) from error


def cannot_be_sent(error: BaseException, what: str, value: Any) -> Failure:
    """Return the failure of a task whose item or result, called `what`, was refused by pickling."""
    culprit, advice = _explain(error, value)
    failure = Failure.of(error, f"has {what} that cannot be sent, because of {culprit},")
    failure.advice = advice
    return failure


def _explain(error: BaseException, value: Any) -> tuple[str, str]:
    """Return in words what part of `value` pickling refused, and what to do."""
    if any(isinstance(one, RecursionError) for one in (error, error.__cause__, error.__context__)):
        return "a chain of objects that is too long", "Send a list of them."
    return _culprit(value), _ADVICE


def _culprit(value: Any) -> str:
    """Return in words what part of `value` cannot be pickled though all that it holds can be."""
    path, part = _find(value)
    kind = part.__name__ if isinstance(part, type) else type(part).__name__
    if len(path) > _SHOWN:
        path = f"{path[: _SHOWN // 2]} ... {path[-_SHOWN // 2 :]}"
    return f"{path} of type {kind}" if path else f"its type {kind}"


def _find(value: Any) -> tuple[str, Any]:
    waiting = [("", value)]
    seen: dict[int, Any] = {}
    while waiting:
        path, part = waiting.pop()
        if id(part) in seen:
            continue
        seen[id(part)] = part
        if _refuses(part):
            return path.strip(), part
        refused = [
            (path + step, child)
            for step, child in _parts(part)
            if type(child) not in ATOMS and not _is_picklable(child)
        ]
        if not refused:
            return path.strip(), part
        waiting.extend(reversed(refused))
    return "", value


def _refuses(value: Any) -> bool:
    """Return whether a value's own code for pickling raises, whatever it holds."""
    if isinstance(value, type) or type(value) in cloudpickle.Pickler.dispatch_table:
        return False
    if isinstance(value, (types.FunctionType, types.ModuleType)):
        return False
    try:
        value.__reduce_ex__(5)
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 - which is the answer; even sys.exit() means no
        return True
    return False


def _is_picklable(value: Any) -> bool:
    try:
        pack(value)
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 - user code runs in pickling; even sys.exit() means no
        return False
    return True


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what pickling meets in a value, each with its part of the path."""
    if isinstance(value, types.FunctionType):
        yield from _parts_of_function(value)
    elif isinstance(value, type):
        for name, child in vars(value).items():
            yield f".{name}", child
    elif isinstance(value, types.MethodType):
        yield ".__self__", value.__self__
        yield ".__func__", value.__func__
    elif isinstance(value, functools.partial):
        yield ".func", value.func
        yield ".args", value.args
        yield ".keywords", value.keywords
    elif isinstance(value, Resident):
        yield ".value", value.value
    else:
        if isinstance(value, dict):
            for key, child in value.items():
                yield f"[{key!r}]", child
        elif isinstance(value, (list, tuple, collections.deque)):
            for position, child in enumerate(value):
                yield f"[{position}]", child
        elif isinstance(value, (set, frozenset)):
            for child in value:
                yield "{...}", child
        for name, child in attributes(value).items():
            yield f".{name}", child
        yield f" class {type(value).__name__}", type(value)


def _parts_of_function(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        if cell != types.CellType():  # a variable without a value yet
            yield f" variable {name!r}", cell.cell_contents
    for name in code.co_names:
        if name in function.__globals__:
            yield f" global {name!r}", function.__globals__[name]
    yield " its defaults", (function.__defaults__, function.__kwdefaults__)
