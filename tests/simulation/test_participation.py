import collections
import functools
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedbench
from fedbench.errors import CheckpointError
from fedbench.simulation import Participation, Trace, Uniform, Weighted
from tests.simulation.helpers import tiny_dataset, tiny_workload


@functools.cache
def dataset():
    return tiny_dataset()


def cohorts(participation, rounds, cohort_size=2):
    sample = participation.sampler(dataset(), cohort_size)
    return [sample(index, random.Random(1000 + index)) for index in range(rounds)]


def test_uniform_is_what_a_simulation_does_by_default():
    found = []
    for options in ({}, {"participation": "uniform"}, {"participation": Uniform()}):
        with fedbench.Simulation(tiny_workload(), **options) as simulation:
            found.append([record.cohort for record in simulation.run(4, evaluate_every=0)])
    assert found[0] == found[1] == found[2]


@given(
    weights=st.lists(st.floats(0, 100), min_size=6, max_size=6),
    cohort_size=st.integers(1, 6),
    seed=st.integers(0, 2**32),
)
def test_weighted_cohorts_are_different_clients_with_weight(weights, cohort_size, seed):
    participation = Weighted(weights)
    if sum(weight > 0 for weight in weights) < cohort_size:
        with pytest.raises(ValueError, match="weights must be positive"):
            participation.sampler(dataset(), cohort_size)
        return
    cohort = participation.sampler(dataset(), cohort_size)(0, random.Random(seed))
    assert len(set(cohort)) == len(cohort) == cohort_size
    assert all(weights[position] > 0 for position in cohort)


def successive(weights, size):
    """Return the exact chance of every cohort, drawn one after another without replacement."""
    chances = {(): 1.0}
    for _ in range(size):
        longer = collections.Counter()
        for drawn, chance in chances.items():
            total = sum(w for position, w in enumerate(weights) if position not in drawn)
            for position, weight in enumerate(weights):
                if position not in drawn and weight:
                    longer[*drawn, position] += chance * weight / total
        chances = longer
    return chances


@pytest.mark.parametrize("weights", [(1, 2, 3, 0, 0, 4), (1, 1, 1000, 0, 1, 1)])
def test_weighted_cohorts_have_their_exact_chances(weights):
    # The second weights are so uneven that the draws run out and the rest is weighed anew.
    count = 5_000
    sample = Weighted(weights).sampler(dataset(), 3)
    rng = random.Random(7)
    found = collections.Counter(sample(0, rng) for _ in range(count))
    expected = successive(weights, 3)
    assert found.keys() <= expected.keys()
    # Chi-squared; 0.001 for this many degrees of freedom lies below twice their number plus 30.
    distance = sum(
        (found[cohort] - count * chance) ** 2 / (count * chance)
        for cohort, chance in expected.items()
    )
    assert distance < 2 * len(expected) + 30


@pytest.mark.parametrize("factor", [2.0**1022, 2.0**-1074])
def test_weights_of_any_size_have_the_cohorts_of_their_proportions(factor):
    weights = np.float64([1, 1, 2, 1, 0, 1]) * factor
    ordinary = Weighted([1, 1, 2, 1, 0, 1])
    assert cohorts(Weighted(weights), 50, 3) == cohorts(ordinary, 50, 3)


def test_weights_beside_which_others_vanish_leave_them_their_chances():
    sample = Weighted([1e308, 1e308, 1e-300, 1e-300, 1e-300, 0.0]).sampler(dataset(), 3)
    found = [sample(0, random.Random(seed)) for seed in range(60)]
    assert {frozenset(cohort[:2]) for cohort in found} == {frozenset({0, 1})}
    assert {cohort[2] for cohort in found} == {2, 3, 4}


def test_weights_may_be_an_array():
    array = np.float32([1, 2, 3, 4, 5, 6])
    assert Weighted(array) == Weighted([1, 2, 3, 4, 5, 6])
    with pytest.raises(TypeError, match="weights must be 'samples' or one number per client"):
        Weighted(3)


def test_weights_of_samples_are_the_sizes_of_the_clients():
    assert cohorts(Weighted(), 20) == cohorts(Weighted([4, 6, 8, 10, 12, 14]), 20)


TRACE = """client_id,first,last
client-0,1,2
client-1,2,4
client-1,4,4
client-5,2,2
client-5,6,6
"""


@pytest.mark.parametrize("period", [None, 6])
def test_a_trace_says_who_is_there(tmp_path, period):
    path = tmp_path / "trace.csv"
    path.write_text(TRACE)
    expected = [{0}, {0, 1, 5}, {1}, {1}, set(), {5}]
    found = cohorts(Trace(path, period=period), 9, cohort_size=6)
    again = expected[:3] if period else [set()] * 3
    assert [set(cohort) for cohort in found] == expected + again


def test_a_trace_is_sampled_down_to_the_cohort(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text(TRACE)
    seen = {cohorts(Trace(path), 2)[1] for _ in range(3)}
    assert len(seen) == 1
    sample = Trace(path).sampler(dataset(), 2)
    drawn = {sample(1, random.Random(seed)) for seed in range(40)}
    assert drawn == {(a, b) for a in (0, 1, 5) for b in (0, 1, 5) if a != b}


def test_a_function_is_asked_with_rounds_from_1_and_its_order_does_not_show():
    asked = []

    def there(order):
        def available(number):
            asked.append(number)
            return [f"client-{position}" for position in order]

        return available

    first = cohorts(Trace(there([4, 2, 0, 2])), 3)
    assert first == cohorts(Trace(there([0, 2, 4])), 3)
    assert asked == [1, 2, 3, 1, 2, 3]


def test_ids_that_are_numbers_are_found_by_their_digits(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("client_id,first,last\n7,1,1\n")
    with fedbench.Simulation("digits-logreg", participation=Trace(path)) as simulation:
        assert simulation.run_round().cohort == (7,)


def test_the_text_of_a_file_may_begin_with_a_mark(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text(TRACE, encoding="utf-8-sig")
    assert set(cohorts(Trace(path), 1)[0]) == {0}


def test_a_checkpoint_belongs_to_the_spans_of_a_trace(tmp_path):
    path, moved = tmp_path / "trace.csv", tmp_path / "moved.csv"
    header, *lines = TRACE.splitlines()
    path.write_text(TRACE)
    moved.write_text("\n".join([header, *reversed(lines)]))
    with fedbench.Simulation(tiny_workload(), participation=Trace(path)) as simulation:
        simulation.run(1, checkpoint_dir=tmp_path / "to")
    same = fedbench.Simulation(tiny_workload(), participation=Trace(str(moved)))
    assert same.load_checkpoint(tmp_path / "to") == 1
    path.write_text(TRACE.replace("client-5,6,6", "client-4,6,6"))
    other = fedbench.Simulation(tiny_workload(), participation=Trace(path))
    with pytest.raises(CheckpointError, match="belongs to another simulation"):
        other.load_checkpoint(tmp_path / "to")


@pytest.mark.parametrize("available", [None, 5, b"trace.csv"])
def test_a_trace_is_a_file_or_a_function(available):
    with pytest.raises(TypeError, match="available must be a CSV file or a function"):
        Trace(available)


@pytest.mark.parametrize("there", [None, 5, [["client-1"]]])
def test_a_function_must_return_client_ids(there):
    with pytest.raises(TypeError, match=r"must return a list of client ids, got .* for round 1"):
        cohorts(Trace(lambda number: there), 1)


def test_a_file_that_is_no_text_is_named(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_bytes(b"\xff\xfeclient_id")
    with pytest.raises(ValueError, match=r"a CSV file in UTF-8, got '.*trace.csv'"):
        Trace(path)


def test_a_round_without_anyone_changes_nothing():
    simulation = fedbench.Simulation(tiny_workload(), participation=Trace(lambda number: []))
    before = simulation.state_digest()
    with simulation:
        record = simulation.run_round(evaluate=True)
    assert record.cohort == ()
    assert record.uplink_bytes == 0
    assert record.metrics["train"] == {}
    assert "accuracy" in record.metrics["test"]
    assert simulation.state_digest() == before
    assert simulation.rounds_done == 1


@pytest.mark.parametrize("algorithm", ["scaffold", "apfl", "ifca", "fedadam"])
def test_algorithms_take_small_and_empty_cohorts(algorithm):
    options = {"participation": Trace(lambda number: ["client-3"][: number % 2])}
    with fedbench.Simulation(tiny_workload(), algorithm=algorithm, **options) as simulation:
        assert [len(record.cohort) for record in simulation.run(4)] == [1, 0, 1, 0]


class Last(Participation):
    """The last clients of the population, whatever the round."""

    def sampler(self, dataset, cohort_size):
        positions = tuple(range(dataset.num_clients - cohort_size, dataset.num_clients))
        return lambda round_index, rng: positions


def test_participation_may_be_written_by_the_user():
    with fedbench.Simulation(tiny_workload(), participation=Last()) as simulation:
        assert simulation.run_round().cohort == tuple(f"client-{i}" for i in (2, 3, 4, 5))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: Weighted("sample"), "weights must be 'samples'"),
        (lambda path: Weighted([1.0, -1.0]), "got -1.0"),
        (lambda path: Weighted([1.0, "much"]), "got 'much'"),
        (lambda path: Weighted([1.0, float("nan")]), "got nan"),
        (lambda path: Weighted([1, 10**400]), "weights must be finite numbers"),
        (lambda path: Weighted([1.0]).sampler(dataset(), 1), "one number per client, 6, got 1"),
        (lambda path: Trace(lambda n: [], period=0), "period must be an integer"),
        (lambda path: Trace(path / "none.csv"), "must be a readable file"),
        (lambda path: Trace(lambda n: ["client-9"]).sampler(dataset(), 1)(0, None), "'client-9'"),
    ],
)
def test_wrong_participation_is_refused(tmp_path, make, words):
    with pytest.raises(ValueError, match=words):
        make(tmp_path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "columns client_id, first, last, got none"),
        ("client,first,last\n", "got client, first, last"),
        ("client_id,first,last\nclient-0,2,1\n", "1 <= first <= last .* got '2' and '1' at .*:2"),
        ("client_id,first,last\nclient-0,0,1\n", "got '0' and '1'"),
        ("client_id,first,last\nclient-0,1\n", "got '1' and None"),
        ("client_id,first,last\nclient-0,one,1\n", "got 'one'"),
        ("client_id,first,last\nclient-0,1,2,3,4\n", "3 columns in every line, got 5 at .*:2"),
        ("client_id,first,last\nclient-9,1,1\n", "got 'client-9'. They are called 'client-0'"),
    ],
)
def test_wrong_files_are_refused(tmp_path, text, words):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=words):
        Trace(path).sampler(dataset(), 1)
