"""The contract of all executors, on every backend: failures."""

import os
import re
import sys
import threading
import time

import pytest

from fedbench.errors import ClientTaskError, LayoutError
from fedbench.executors import make_executor

from .tasks import Order, TwoArgumentError, fail_at_three, square


def test_a_failing_task_is_named_with_its_traceback(executor):
    with pytest.raises(ClientTaskError, match=r"client task 3 failed.*ZeroDivisionError") as caught:
        executor.map(fail_at_three, range(8))
    error = caught.value
    assert error.index == 3
    assert error.item == 3
    assert isinstance(error.__cause__, ZeroDivisionError)
    assert "fail_at_three" in error.worker_traceback
    assert executor.map(square, range(3)) == [0, 1, 4]


def test_a_failing_task_is_named_by_its_client_id(executor):
    def fail(item):
        raise ValueError("bad data")

    with pytest.raises(ClientTaskError, match=r"client task 0 \(client_id 17\)") as caught:
        executor.map(fail, [Order(17)])
    assert caught.value.item == 17


def test_the_help_of_the_cause_stays_with_the_cause(executor):
    def fail(item):
        raise LayoutError("another model.")

    with pytest.raises(ClientTaskError) as caught:
        executor.map(fail, [0])
    assert str(caught.value).endswith("fedbench.errors.LayoutError: another model.")
    assert caught.value.__cause__.__notes__ == [caught.value.__cause__.help]


def leave_as_a_child(how):
    """Fork, and leave the task in the child too; return the child's exit code."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if how == "raise":
        raise ValueError("in the child")
    if how == "exit":
        sys.exit(3)
    if how == "interrupt":
        raise KeyboardInterrupt
    return "of the child"


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_what_a_task_forked_does_not_leave_the_task(executor):
    ways = ["return", "raise", "exit", "interrupt"]
    assert executor.map(leave_as_a_child, ways) == [1, 1, 3, 1]
    assert executor.map(square, [3]) == [9]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_that_leaves_its_task_is_told_so(capfd):
    with make_executor("sequential") as executor:
        executor.map(leave_as_a_child, ["raise", "return", "exit"])
    told = capfd.readouterr().err
    assert told.count("ValueError: in the child") == 1
    words = r"client task {} forked \(pid \d+\) must not leave the task, and was ended\."
    assert [len(re.findall(words.format(index), told)) for index in range(3)] == [1, 1, 0]


def test_imap_raises_the_failure(executor):
    iterator = executor.imap(fail_at_three, range(8))
    with pytest.raises(ClientTaskError) as caught:
        list(iterator)
    assert caught.value.index == 3
    assert executor.map(square, [3]) == [9]


def test_the_lowest_failed_index_is_raised_and_the_others_are_listed(new_executor):
    executor = new_executor()

    def fail(item):
        time.sleep(0.3 if item == 0 else 0.25)
        raise ValueError(f"item {item}")

    with pytest.raises(ClientTaskError) as caught:
        executor.map(fail, range(6))
    failed = [caught.value.index, *caught.value.other_failures]
    assert failed == sorted(failed)
    assert caught.value.index == 0
    assert str(caught.value.__cause__) == "item 0"


def test_no_more_tasks_start_after_a_failure(executor):
    pulled = []

    def items():
        for item in range(10_000):
            pulled.append(item)
            yield item

    with pytest.raises(ClientTaskError):
        executor.map(fail_at_three, items())
    assert len(pulled) < 200


def test_every_task_failing_is_an_error(executor):
    with pytest.raises(ClientTaskError):
        executor.map(lambda item: 1 / 0, range(8))


@pytest.mark.parametrize(
    "make_error",
    [
        lambda: TwoArgumentError("this", "that"),
        lambda: SystemExit(3),
        lambda: GeneratorExit(),
        lambda: StopIteration("early"),
        lambda: OSError(2, "No such file", "data.npz"),
        lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
    ],
    ids=["two-arguments", "SystemExit", "GeneratorExit", "StopIteration", "OSError", "Unicode"],
)
def test_exceptions_of_any_kind_arrive(executor, make_error):
    expected = make_error()

    def fail(item):
        raise make_error()

    with pytest.raises(ClientTaskError) as caught:
        executor.map(fail, range(2))
    cause = caught.value.__cause__
    assert type(cause) is type(expected)
    assert cause.args == expected.args
    assert executor.map(square, [3]) == [9]


def test_an_exception_with_an_attribute_that_cannot_be_pickled_arrives(executor):
    def fail(item):
        error = TwoArgumentError("this", "that")
        error.lock = threading.Lock()
        raise error

    with pytest.raises(ClientTaskError, match="TwoArgumentError: this and that") as caught:
        executor.map(fail, range(2))
    assert type(caught.value.__cause__) is TwoArgumentError
    assert caught.value.__cause__.left == "this"
    assert executor.map(square, [3]) == [9]


def test_an_exception_of_a_class_made_in_the_task_arrives(executor):
    def fail(item):
        class OnlyThereError(Exception):
            pass

        raise OnlyThereError("made in the task")

    with pytest.raises(ClientTaskError, match="OnlyThereError: made in the task") as caught:
        executor.map(fail, range(2))
    assert type(caught.value.__cause__).__name__ in {"OnlyThereError", "RemoteError"}


def test_an_exception_that_exits_when_it_is_unpickled_arrives(executor):
    class ExitingError(Exception):
        def __reduce__(self):
            return sys.exit, (7,)

    def fail(item):
        raise ExitingError("leaves nothing behind")

    with pytest.raises(ClientTaskError, match="ExitingError: leaves nothing behind"):
        executor.map(fail, range(2))
    assert executor.map(square, [3]) == [9]


def test_a_generator_that_raises_ends_the_map_with_its_error(executor):
    def items():
        yield from range(5)
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        executor.map(square, items())
    with pytest.raises(OSError, match="the disk is gone"):
        list(executor.imap(square, items()))
    assert executor.map(square, [3]) == [9]


def test_a_chain_of_objects_that_is_too_long_fails_its_task(executor):
    class Node:
        def __init__(self, following):
            self.following = following

    chain = None
    for _ in range(5000):
        chain = Node(chain)
    with pytest.raises(ClientTaskError, match=r"client task 1 .*recursion"):
        executor.map(lambda item: 1, [Node(None), chain])
    while chain is not None:  # freeing it at once would go as deep
        chain = chain.following
    assert executor.map(square, [3]) == [9]
