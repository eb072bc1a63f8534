"""The contract of all executors, on every backend: arguments, life and misuse."""

import os
import sys
import threading

import pytest

from fedbench.errors import (
    ClientTaskError,
    ExecutorClosedError,
    ExecutorError,
    NestedExecutorError,
    UnsupportedPlatformError,
)
from fedbench.executors import make_executor

from .tasks import square


@pytest.mark.parametrize("workers", [0, -1, 1.5])
def test_bad_worker_counts_are_refused(backend, workers):
    with pytest.raises(ValueError, match="workers must be a positive integer"):
        make_executor(backend, workers)


@pytest.mark.parametrize("workers", ["2", True, [2]])
def test_worker_counts_of_a_wrong_type_are_refused(backend, workers):
    with pytest.raises(TypeError, match="workers must be a positive integer"):
        make_executor(backend, workers)


def test_unknown_options_are_refused_with_the_known_ones(backend):
    with pytest.raises(TypeError, match=r"among workers, intraop_threads, .*got 'thread'\.$"):
        make_executor(backend, thread=2)
    with pytest.raises(TypeError, match=r"got 'retry'\. Did you mean 'retries'\?$"):
        make_executor(backend, retry=2)
    with pytest.raises(TypeError, match=r"got 'max_workers'\. Did you mean 'workers'\?$"):
        make_executor(backend, max_workers=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"intraop_threads": 0}, "intraop_threads must be a positive integer"),
        ({"retries": -1}, "retries must be an integer that is not negative"),
    ],
)
def test_bad_options_are_refused(backend, options, message):
    with pytest.raises(ValueError, match=message):
        make_executor(backend, **options)


def test_wrong_arguments_of_map_are_refused(executor):
    with pytest.raises(TypeError, match="task must be callable, got int"):
        executor.map(3, [1])
    with pytest.raises(TypeError, match="items must be an iterable, got int"):
        executor.map(square, 3)
    with pytest.raises(TypeError, match="on_result must be callable"):
        executor.map(square, [1], on_result="print")
    with pytest.raises(ValueError, match="window must be a positive integer"):
        executor.imap(square, [1], window=0)
    assert executor.map(square, [3]) == [9]


def test_processes_say_that_they_need_linux(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("fedbench.executors.processes")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(UnsupportedPlatformError, match="needs Linux, got 'darwin'"):
        make_executor("processes")


def test_one_item_and_more_workers_than_items(backend, new_executor):
    executor = new_executor(None if backend == "sequential" else 3)
    assert executor.map(square, [3]) == [9]


def test_closing_twice_is_fine_and_a_closed_executor_refuses_work(new_executor):
    executor = new_executor()
    assert executor.map(square, [3]) == [9]
    executor.close()
    executor.close()
    for use in (
        lambda: executor.map(square, [1]),
        lambda: executor.imap(square, [1]),
        executor.start,
    ):
        with pytest.raises(ExecutorClosedError, match="is closed"):
            use()
    with pytest.raises(RuntimeError, match="is closed"), executor:
        pass


def test_an_executor_must_be_started(backend):
    executor = make_executor(backend)
    with pytest.raises(ExecutorClosedError, match="is not started"):
        executor.map(square, [1])
    executor.close()


def test_starting_twice_is_fine_and_startup_is_timed(new_executor):
    executor = new_executor()
    startup_s = executor.startup_s
    executor.start()
    assert executor.startup_s == startup_s >= 0


def test_an_exception_inside_the_with_block_passes_through(backend, no_leaks):
    executor = make_executor(backend)

    def use():
        with executor:
            executor.map(square, [1])
            raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        use()
    with pytest.raises(ExecutorClosedError):
        executor.map(square, [1])


def test_closing_in_a_callback_ends_the_map_with_an_error(new_executor):
    executor = new_executor()
    with pytest.raises(ExecutorError):
        executor.map(square, range(100), on_result=lambda *_: executor.close())


def test_items_that_close_the_executor_end_the_map_with_an_error(new_executor):
    executor = new_executor()

    def items():
        yield 1
        executor.close()
        yield 2

    with pytest.raises(ExecutorClosedError, match="was closed in the middle of a map"):
        executor.map(square, items())


def test_two_executors_are_alive_at_once(executor, new_executor):
    other = new_executor()
    assert executor.map(square, range(4)) == other.map(square, range(4)) == [0, 1, 4, 9]


def test_use_from_another_thread_is_refused(executor):
    errors = []

    def use():
        try:
            executor.map(square, [1])
        except ExecutorError as error:
            errors.append(error)

    thread = threading.Thread(target=use)
    thread.start()
    thread.join(60)
    assert "on the thread that entered it" in str(errors[0])
    assert executor.map(square, [3]) == [9]


def test_closing_from_another_thread_in_the_middle_of_a_map_is_refused(new_executor):
    executor = new_executor()
    errors = []

    def close():
        try:
            executor.close()
        except ExecutorError as error:
            errors.append(error)

    def on_result(index, result):
        if index == 0:
            thread = threading.Thread(target=close)
            thread.start()
            thread.join(60)

    assert executor.map(square, range(3), on_result=on_result) == [0, 1, 4]
    assert "on the thread that entered it" in str(errors[0])


def test_a_forked_copy_is_refused_and_harmless(executor):
    child = os.fork()
    if child == 0:
        code = 1
        try:
            executor.map(square, [1])
        except ExecutorError as error:
            code = 0 if "in a process forked from it" in str(error) else 2
        finally:
            executor.close()
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert executor.map(square, [3]) == [9]


def test_use_while_a_map_is_running_is_refused(executor):
    iterator = executor.imap(square, range(10))
    assert next(iterator) == 0
    with pytest.raises(NestedExecutorError, match="finish one map before the next"):
        executor.map(square, [1])
    assert list(iterator) == [item * item for item in range(1, 10)]
    assert executor.map(square, [3]) == [9]


def test_nested_use_is_refused(executor):
    with pytest.raises(ClientTaskError) as caught:
        executor.map(lambda item: executor.map(square, [item]), range(2))
    assert isinstance(caught.value.__cause__, NestedExecutorError)

    def open_another(item):
        with make_executor("sequential") as inner:
            return inner.map(square, [item])

    with pytest.raises(ClientTaskError) as caught:
        executor.map(open_another, range(2))
    assert isinstance(caught.value.__cause__, NestedExecutorError)
    assert executor.map(square, [3]) == [9]
