"""Every error that fedbench raises for a state rather than for an argument.

Wrong arguments raise ``ValueError`` or ``TypeError`` that name the argument, what was given and
what was expected. Everything else derives from :class:`FedbenchError`, and names the section of
``docs/guide/troubleshooting.md`` that is about it::

    FedbenchError
    ├── UnknownNameError (ValueError)      a registry key that does not exist
    ├── MissingExtraError (ImportError)    an optional package that is missing or broken
    ├── UnsupportedPlatformError           the platform lacks what was asked for
    ├── OutputError                        a file or folder that cannot be written
    ├── RecordFormatError (ValueError)     a file that is not a report of this release
    ├── LayoutError (ValueError)           a state that does not fit its layout
    ├── DataFormatError (ValueError)       a data file that is not what its format says
    ├── ConfigurationError (ValueError)    a configuration that is not what its schema says
    ├── CheckpointError (ValueError)       a checkpoint that is missing, damaged or foreign
    ├── TraceError (ValueError)            a file that is no trace of a verified run
    ├── VectorizationError (ValueError)    clients that cannot be trained stacked
    ├── NonFiniteError (ValueError)        NaN or infinity where it was refused
    ├── EnclosureError                     a client task broke its enclosure (invariant I1)
    │   └── BroadcastModifiedError         ... by writing to the read-only broadcast
    └── ExecutorError                      anything about running client tasks
        ├── ClientTaskError                a client task raised
        ├── WorkerDiedError                a worker ended in the middle of a task
        ├── TaskTimeoutError               a task ran longer than ``timeout``
        ├── ExecutorClosedError (RuntimeError)   used after ``close()`` or before ``start()``
        ├── NestedExecutorError (RuntimeError)   used inside a client task
        └── ResourceError (RuntimeError)   the machine or cluster lacks what was asked for
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = [
    "BroadcastModifiedError",
    "CheckpointError",
    "ClientTaskError",
    "ConfigurationError",
    "DataFormatError",
    "EnclosureError",
    "ExecutorClosedError",
    "ExecutorError",
    "FedbenchError",
    "LayoutError",
    "MissingExtraError",
    "NestedExecutorError",
    "NonFiniteError",
    "OutputError",
    "RecordFormatError",
    "ResourceError",
    "TaskTimeoutError",
    "TraceError",
    "UnknownNameError",
    "UnsupportedPlatformError",
    "VectorizationError",
    "WorkerDiedError",
]


TROUBLESHOOTING = "docs/guide/troubleshooting.md"
"""Page of the checkout's documentation with a section for each class of this module."""


class FedbenchError(Exception):
    """Base of all errors of this package.

    A traceback ends with the section of the documentation about the error, which is also in
    ``__notes__``; ``str(error)`` is the message alone.
    """

    def __init__(self, *args: object, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self.add_note(self.help)

    @property
    def help(self) -> str:
        """Where the documentation says more: ``"Help: PAGE#SECTION"``."""
        documented = next(kind for kind in type(self).__mro__ if kind.__module__ == __name__)
        return f"Help: {TROUBLESHOOTING}#{documented.__name__.lower()}"


class UnknownNameError(FedbenchError, ValueError):
    """A name that no registry entry has; the message lists the known names."""


class MissingExtraError(FedbenchError, ImportError):
    """An optional package is needed and not installed; the message says how to install it."""


class UnsupportedPlatformError(FedbenchError):
    """The operating system or interpreter lacks something that was asked for."""


class LayoutError(FedbenchError, ValueError):
    """A state dict or buffer does not have the names, shapes or dtypes of its layout."""


class OutputError(FedbenchError):
    """A file or folder cannot be written; what was there before is as it was."""


class RecordFormatError(FedbenchError, ValueError):
    """A file is not a report, or is of a version that this release cannot read."""


class DataFormatError(FedbenchError, ValueError):
    """A data file is damaged or not in its format; the message names file, record and field."""


class ConfigurationError(FedbenchError, ValueError):
    """A configuration has an unknown key or a wrong value; the message says where."""


class CheckpointError(FedbenchError, ValueError):
    """A checkpoint is missing, damaged, or belongs to another simulation."""


class TraceError(FedbenchError, ValueError):
    """A file is no trace of a verified run, or one of another schema."""


class VectorizationError(FedbenchError, ValueError):
    """The clients of a simulation cannot be trained stacked; the message is the reason."""


class NonFiniteError(FedbenchError, ValueError):
    """An update holds NaN or infinity and ``nonfinite="raise"`` is in force."""


class EnclosureError(FedbenchError):
    """A client task touched something that is not its own (invariant I1)."""


class BroadcastModifiedError(EnclosureError):
    """A client task wrote to an entry of the broadcast, which every task of the round reads."""


class ExecutorError(FedbenchError):
    """Base of the errors about running client tasks."""


class ClientTaskError(ExecutorError):
    """A client task raised; the original exception is ``__cause__``.

    Attributes
    ----------
    index : int
        Position of the task's item in ``items``.
    item : object
        The item's ``client_id`` when it has one, the item itself otherwise.
    worker_traceback : str
        The traceback as text, as it was where the task ran.
    other_failures : tuple of int
        Indices of further tasks that had failed by the time this error was raised.
    """

    def __init__(
        self,
        message: str,
        *,
        index: int,
        item: Any = None,
        worker_traceback: str = "",
        other_failures: Sequence[int] = (),
    ) -> None:
        super().__init__(message)
        self.index = index
        self.item = item
        self.worker_traceback = worker_traceback
        self.other_failures = tuple(other_failures)

    @property
    def help(self) -> str:
        """Where the documentation says more about what the task raised, if that is known."""
        cause = self.__cause__
        return cause.help if isinstance(cause, FedbenchError) else super().help


class WorkerDiedError(ExecutorError):
    """A worker ended in the middle of a task.

    Attributes
    ----------
    index : int
        Position in ``items`` of the task that the worker was running.
    item : object
        The item's ``client_id`` when it has one, the item itself otherwise.
    pid : int or None
        Process id of the worker, where there is one.
    exitcode : int or None
        Exit code of the worker, negative for a signal; None where that is not known.
    """

    def __init__(
        self,
        message: str,
        *,
        index: int,
        item: Any = None,
        pid: int | None = None,
        exitcode: int | None = None,
    ) -> None:
        super().__init__(message)
        self.index = index
        self.item = item
        self.pid = pid
        self.exitcode = exitcode


class TaskTimeoutError(ExecutorError):
    """A task ran longer than ``timeout``, or its worker did not come to it, and was ended.

    Attributes
    ----------
    index : int
        Position of the task's item in ``items``.
    item : object
        The item's ``client_id`` when it has one, the item itself otherwise.
    """

    def __init__(self, message: str, *, index: int, item: Any = None) -> None:
        super().__init__(message)
        self.index = index
        self.item = item


class ExecutorClosedError(ExecutorError, RuntimeError):
    """The executor is closed (or was never started) and refuses work."""


class NestedExecutorError(ExecutorError, RuntimeError):
    """An executor was used inside a client task or while it was already mapping."""


class ResourceError(ExecutorError, RuntimeError):
    """The machine or cluster cannot provide what was asked for; the message gives both."""
