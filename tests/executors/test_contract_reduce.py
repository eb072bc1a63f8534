"""The contract of all executors, on every backend: map_reduce."""

import pytest
import torch

from fedbench.errors import ClientTaskError

from .tasks import ExactSum, contribute, fail_at_three, square


def test_map_reduce_folds_every_contribution_once(executor):
    reports = {}
    reducer = ExactSum(total=5)
    folded = executor.map_reduce(contribute, range(100), reducer, on_result=reports.__setitem__)
    assert folded is reducer
    assert (folded.total, folded.count) == (5 + 2 * sum(range(100)), 100)
    assert reports == {item: f"report {item}" for item in range(100)}


def test_map_reduce_of_nothing(executor):
    assert executor.map_reduce(contribute, [], ExactSum(total=5)).total == 5


def test_map_reduce_with_a_broadcast_and_costs(executor):
    task = lambda broadcast, item: ((int(broadcast[item]),), None)  # noqa: E731
    folded = executor.map_reduce(
        task, iter(range(10)), ExactSum(), broadcast=torch.arange(10), costs=range(10)
    )
    assert folded.total == 45


def test_a_failed_map_reduce_leaves_the_reducer_as_it_was(executor):
    def task(item):
        return (fail_at_three(item),), None

    reducer = ExactSum(total=5)
    with pytest.raises(ClientTaskError):
        executor.map_reduce(task, range(8), reducer)
    assert (reducer.total, reducer.count) == (5, 0)
    assert executor.map_reduce(contribute, range(3), reducer).total == 5 + 2 * 3


@pytest.mark.parametrize("result", [3, (1, 2), ((1,),), [(1,), 2]], ids=str)
def test_a_map_reduce_task_must_return_a_contribution_and_a_report(executor, result):
    with pytest.raises(ClientTaskError, match=r"must be \(contribution, report\)"):
        executor.map_reduce(lambda item: result, range(2), ExactSum())
    assert executor.map(square, [3]) == [9]


def test_a_reducer_must_be_order_independent(executor):
    class Ordered(ExactSum):
        order_independent = False

    with pytest.raises(TypeError, match="order_independent"):
        executor.map_reduce(contribute, [1], Ordered())
    with pytest.raises(TypeError, match="empty, add and merge, got list without empty, add"):
        executor.map_reduce(contribute, [1], [])
