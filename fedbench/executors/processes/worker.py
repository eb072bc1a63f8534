"""The worker process: receives tasks, runs them, sends results; ends when its caller does."""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from fedbench.executors.allocator import keep_freed_memory
from fedbench.executors.ambient import Ambient, set_intraop_threads
from fedbench.executors.guard import Guarded
from fedbench.executors.lending import lend_memory
from fedbench.executors.nesting import mark_worker_process
from fedbench.executors.packing import pack, portable_failure, unpack
from fedbench.executors.processes.control import ControlPage
from fedbench.executors.processes.dispatch import BATCH_S
from fedbench.executors.processes.memory import Arena, Extent, Mapping
from fedbench.executors.processes.protocol import (
    ATOMS,
    Kind,
    Parcel,
    frame,
    open_parcel,
    receive,
    split,
    split_among,
)
from fedbench.executors.processes.slots import SLOT_THRESHOLD, SlotWriter
from fedbench.executors.processes.system import die_with_parent, end_group_with, kill_group
from fedbench.executors.resident import Resident
from fedbench.executors.runner import Failure, Outcome, TaskRunner
from fedbench.executors.unpicklable import cannot_be_sent

__all__ = ["load_resident", "main"]

_FLUSH_S = 2 * BATCH_S
"""Results of a batch that took longer than this so far are not held back for the rest."""

_down: Arena
_residents: dict[int, Resident[Any]] = {}


def main(
    socket_fd: int,
    down_fd: int,
    up_fd: int,
    lifeline_fd: int,
    parent_pid: int,
    intraop_threads: int,
) -> None:
    """Serve the caller until it says EXIT or is gone.

    Parameters
    ----------
    socket_fd, down_fd, up_fd : int
        Descriptors of the message socket, of the arena that the caller fills (broadcast and
        resident constants) and of the one that this worker fills (results).
    lifeline_fd : int
        Descriptor of a pipe that hangs up when the template ends.
    parent_pid : int
        Process id of the template, which ends when the caller does.
    intraop_threads : int
        Torch's threads inside one task.
    """
    global _down
    # Both: a task may have this process leave its group, and start others in it.
    die_with_parent(parent_pid)
    end_group_with(lifeline_fd)
    # A Ctrl-C is for the caller, which decides what becomes of the tasks.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable()
    if hasattr(sys.stdout, "reconfigure"):
        # Lines of several workers may mix, parts of lines may not, not even under python -u.
        sys.stdout.reconfigure(line_buffering=True, write_through=False)
    mark_worker_process()
    keep_freed_memory()
    set_intraop_threads(intraop_threads)
    channel = socket.socket(fileno=socket_fd)
    _down = Arena(down_fd)
    watcher = _Watcher(channel, parent_pid)
    try:
        Worker(channel, Arena(up_fd), intraop_threads).serve()
        watcher.expect_the_end()
        atexit._run_exitfuncs()
    except (EOFError, ConnectionError):  # the caller is gone, and whoever reads our output
        os._exit(1)
    # Tearing the interpreter and torch down takes longer than all of the above.
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(0)


def load_resident(key: int, extent: Extent | None, payload: bytes, sizes: list[int]) -> Any:
    """Return a resident constant, building it on top of the caller's memory the first time."""
    if key not in _residents:
        memory = memoryview(b"") if extent is None else _down.map_private(extent).view()
        resident = Resident(unpack(payload, split(memory, sizes)))
        resident.key = key
        _residents[key] = resident
    return _residents[key]


class _Watcher:
    """Ends this process and its children when the caller is gone, whatever the task does."""

    def __init__(self, channel: socket.socket, parent_pid: int) -> None:
        self._channel = channel
        self._parent_pid = parent_pid
        self._expected = False
        threading.Thread(target=self._watch, name="fedbench-watcher", daemon=True).start()

    def expect_the_end(self) -> None:
        """Leave the end to the main thread."""
        self._expected = True

    def _watch(self) -> None:
        poller = select.poll()
        poller.register(self._channel.fileno(), 0)  # hang-up is always reported
        # The parent's id is looked at too, because a process that the caller forked would keep
        # the other end of the socket open.
        while not poller.poll(1000) and os.getppid() == self._parent_pid:
            pass
        if not self._expected:
            # This worker leads its process group: data loaders of its task go with it.
            kill_group(os.getpid())


class Worker:
    """What a worker remembers between messages.

    Parameters
    ----------
    channel : socket
        To the caller.
    arena : Arena
        For results.
    intraop_threads : int
        Torch's threads inside one task.
    """

    def __init__(self, channel: socket.socket, arena: Arena, intraop_threads: int) -> None:
        self._channel = channel
        self._intraop_threads = intraop_threads
        self._slots = SlotWriter(arena)
        self._control = ControlPage(arena)
        self._view = BroadcastView(_down)
        self._task: Callable[..., Any] = _no_task
        self._runner = TaskRunner(_no_task)
        self._reducer: Any = None
        self._error: BaseException | None = None
        """Why the tasks of this map cannot run."""

    def serve(self) -> None:
        """Handle messages until EXIT."""
        lend_memory(self._slots.lend)
        self._send((Kind.HELLO,))
        while True:
            head, blob = receive(self._channel)
            kind = head[0]
            content = head[1:]
            if kind == Kind.TASKS:
                self._run_tasks(blob, *content)
            elif kind == Kind.TASK:
                self._take_task(blob, *content)
            elif kind == Kind.MAP:
                self._begin(blob, *content)
            elif kind == Kind.COLLECT:
                self._collect(*content)
            elif kind == Kind.FORGET:
                for key in content[0]:
                    _residents.pop(key, None)
            else:
                return
            del head, content, blob  # nothing of a message is kept while waiting

    def _take_task(self, blob: memoryview, parcel: Parcel) -> None:
        self._control.prepare()
        try:
            self._task = open_parcel(parcel, split(blob, parcel.sizes))
        except BaseException as error:  # noqa: BLE001 - the failure of every task that calls it
            self._task = _Broken(error)
        self._control.rest()

    def _begin(
        self,
        blob: memoryview,
        number: int,
        path: list[str],
        ambient: Ambient,
        broadcast: Parcel | None,
        reducer: Parcel | None,
    ) -> None:
        """Get ready for a map."""
        self._control.prepare()
        self._slots.begin_map()
        self._runner = TaskRunner(_no_task)
        self._reducer = self._error = None
        sys.path[:] = path
        try:
            if isinstance(self._task, _Broken):
                raise self._task.error
            ambient.apply()
            set_intraop_threads(self._intraop_threads)  # a task of the last map may have changed it
            parcels = [parcel for parcel in (broadcast, reducer) if parcel is not None]
            buffers = split_among(parcels, blob)
            guarded = None
            if broadcast is not None:
                inline = next(buffers)
                guarded = Guarded(open_parcel(broadcast, self._view.buffers(broadcast) or inline))
            if reducer is not None:
                self._reducer = open_parcel(reducer, next(buffers))
            partial = None if reducer is None else self._reducer.empty()
            self._runner = TaskRunner(self._task, guarded, partial)
        except BaseException as error:  # noqa: BLE001 - the failure of every task of the map
            self._error = error
        self._control.rest()

    def _run_tasks(
        self, blob: memoryview, number: int, entries: list[tuple[int, Parcel]], freed: list[int]
    ) -> None:
        self._slots.free(freed)
        answer = _Answer(number, self._slots)
        inline = split_among([parcel for _, parcel in entries], blob)
        for (index, parcel), buffers in zip(entries, inline, strict=True):
            if self._control.stopped(number):
                answer.skip(index)
                continue
            self._control.begin(number, index)
            answer.add(self._run_task(index, parcel, buffers))
            if answer.is_due():
                self._send(*answer.take())
        if answer:
            self._send(*answer.take())
        # Not before the results are out: if they are lost, the task is to blame.
        self._control.rest()

    def _run_task(self, index: int, parcel: Parcel, buffers: list[memoryview]) -> Outcome:
        try:
            if self._error is not None:
                raise self._error
            return self._runner.run(index, open_parcel(parcel, buffers))
        except BaseException as error:  # noqa: BLE001 - reported as the task's failure
            return Outcome(index, failure=Failure.of(error))

    def _collect(self, number: int) -> None:
        """Send what was folded and start anew."""
        answer = _Answer(number, self._slots)
        answer.add(Outcome(0, self._runner.partial))
        self._runner.partial = self._reducer.empty()
        ((_, ok, parcel),), buffers = answer.entries, answer.buffers
        self._send((Kind.PARTIAL, number, ok, parcel), buffers)

    def _send(self, head: tuple[Any, ...], buffers: Sequence[memoryview] = ()) -> None:
        parts = frame(head, buffers)
        if len(parts) > 1 and sum(part.nbytes for part in parts) < SLOT_THRESHOLD:
            parts = [memoryview(b"".join(parts))]
        for part in parts:
            self._channel.sendall(part)


class BroadcastView:
    """A private view of the broadcast in the caller's memory.

    The view is kept from map to map, because making one costs more than a small round.

    Parameters
    ----------
    arena : Arena
        That the caller fills.
    """

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._mapping: Mapping | None = None

    def buffers(self, parcel: Parcel) -> list[memoryview]:
        """Return the buffers of a broadcast in shared memory, as the caller wrote them."""
        if parcel.slot is None:
            return []
        extent = Extent(parcel.slot.offset, parcel.slot.length)
        if self._mapping is None or self._mapping.extent != extent:
            self._mapping = self._arena.map_private(extent)
        else:
            # Pages that an earlier map's task wrote to would hide what the caller wrote since.
            self._mapping.drop_private_writes()
        return split(self._mapping.view(), parcel.sizes)


class _Answer:
    """Results on their way to the caller."""

    def __init__(self, number: int, slots: SlotWriter) -> None:
        self._number = number
        self._slots = slots
        self._began = time.perf_counter()
        self._large = False
        self.entries: list[tuple[int, bool, Parcel | None]] = []
        self.buffers: list[memoryview] = []

    def __bool__(self) -> bool:
        return bool(self.entries)

    def skip(self, index: int) -> None:
        """Answer for a task that was not run."""
        self.entries.append((index, True, None))

    def add(self, outcome: Outcome) -> None:
        """Pack the outcome of a task, and empty it; one that cannot be packed becomes a failure."""
        failure = outcome.failure
        if failure is None and type(outcome.value) in ATOMS:
            self.entries.append((outcome.index, True, Parcel(outcome.value)))
            return
        if failure is None:
            try:
                parcel = self._pack(outcome)
            except BaseException as error:  # noqa: BLE001 - user code runs in pickling
                what = f"a result of type {type(outcome.value).__name__}"
                failure = cannot_be_sent(error, what, outcome.value)
        if failure is not None:
            parcel = self._pack(Outcome(outcome.index, portable_failure(failure)))
        self.entries.append((outcome.index, failure is None, parcel))

    def is_due(self) -> bool:
        """Return whether this should be sent before the next task."""
        return self._large or time.perf_counter() - self._began > _FLUSH_S

    def take(self) -> tuple[tuple[Any, ...], list[memoryview]]:
        """Return the message and its buffers, and start anew."""
        seconds = time.perf_counter() - self._began
        discarded, self._slots.discarded = self._slots.discarded, []
        refusal, self._slots.refusal = self._slots.refusal, ""
        buffers, slot = self.buffers, None
        if sum(buffer.nbytes for buffer in buffers) >= SLOT_THRESHOLD:
            # More than a socket takes at once: caller and worker would wake each other in turns.
            slot = self._slots.place(buffers)
            self._slots.refusal = ""  # through the socket is a usual way for small results
            buffers = buffers if slot is None else []
        head = (Kind.DONE, self._number, self.entries, seconds, discarded, refusal, slot)
        self._began = time.perf_counter()
        self._large = False
        self.entries, self.buffers = [], []
        return head, buffers

    def _pack(self, outcome: Outcome) -> Parcel:
        payload, buffers = pack(outcome.value)
        # The buffers are to be all that is left of it, so that a slot can be handed over.
        outcome.value = None
        sizes = [buffer.nbytes for buffer in buffers]
        if sum(sizes) < SLOT_THRESHOLD:
            # A later task may write to memory that this result shows.
            self.buffers += [memoryview(bytes(buffer)) for buffer in buffers]
            return Parcel(None, payload, sizes)
        self._large = True
        slot = self._slots.place(buffers)
        if slot is None:
            self.buffers += buffers
        return Parcel(None, payload, sizes, slot)


class _Broken:
    """Stands for a task that could not be unpacked."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __call__(self, *args: Any) -> Any:
        raise self.error


def _no_task(*args: Any) -> Any:
    raise RuntimeError("the worker was given no task")
