import math

import pytest

import fedbench
from fedbench.simulation import Lognormal, Stragglers, Trace
from tests.simulation.helpers import NUM_CLIENTS, tiny_workload


def histories(seed=3, rounds=6, **options):
    workload = tiny_workload(cohort_size=options.pop("cohort_size", NUM_CLIENTS))
    with fedbench.Simulation(workload, seed=seed, **options) as simulation:
        simulation.run(rounds, evaluate_every=0)
    return simulation


def test_who_drops_depends_on_the_client_and_the_round_alone():
    everyone = histories(client_dropout=0.5).history
    some = histories(client_dropout=0.5, cohort_size=3).history
    for all_of_them, few in zip(everyone, some, strict=True):
        assert set(few.dropped) == set(all_of_them.dropped) & set(few.cohort)
    assert len({record.dropped for record in everyone}) > 2
    assert (
        histories(seed=4, client_dropout=0.5).history.records[0].dropped
        != everyone.records[0].dropped
    )


def test_the_share_of_dropped_clients_is_the_probability():
    frame = histories(client_dropout=0.3, rounds=100).history.rounds_frame()
    share = frame["dropped"].sum() / frame["cohort"].sum()
    # Five standard deviations of a binomial with 600 trials.
    assert abs(share - 0.3) < 5 * math.sqrt(0.3 * 0.7 / 600)


def test_a_dropped_client_has_no_state_no_update_and_no_metrics():
    simulation = histories(client_dropout=0.6, algorithm="scaffold", rounds=1)
    record = simulation.history.records[0]
    present = set(record.cohort) - set(record.dropped)
    assert record.dropped
    assert present
    assert set(simulation.client_states) == present
    assert set(record.clients["train"]["client"]) == present
    each = 2 * 4 * simulation.num_parameters  # SCAFFOLD sends two vectors
    assert record.uplink_bytes == len(present) * each


def test_the_server_moves_as_if_the_dropped_had_not_been_asked():
    dropping = histories(client_dropout=0.5, rounds=1)
    record = dropping.history.records[0]
    present = [client for client in record.cohort if client not in record.dropped]
    plain = histories(rounds=1, participation=Trace(lambda number: present))
    assert dropping.state_digest() == plain.state_digest()


def test_a_round_in_which_everyone_drops_changes_nothing():
    simulation = fedbench.Simulation(tiny_workload(cohort_size=1), client_dropout=0.95, seed=1)
    before = simulation.state_digest()
    with simulation:
        record = simulation.run_round()
    assert record.dropped == record.cohort
    assert simulation.state_digest() == before


def test_late_clients_are_those_beyond_the_deadline():
    stragglers = Lognormal(deadline=0.06, step_seconds=0.01, spread=0.5, jitter=0.3)
    simulation = histories(stragglers=stragglers, rounds=5)
    sizes = dict(
        zip(simulation.dataset.client_ids, simulation.dataset.client_sizes().tolist(), strict=True)
    )
    for index, record in enumerate(simulation.history):
        durations = {
            client: stragglers.duration(3, client, index, 2 * -(-sizes[client] // 4))
            for client in record.cohort
        }
        assert set(record.late) == {c for c, seconds in durations.items() if seconds > 0.06}
        expected = 0.06 if record.late else max(durations.values())
        assert record.simulated_s == expected
    counts = simulation.history.rounds_frame()["late"]
    assert counts.nunique() > 1
    assert 0 < counts.sum() < 5 * NUM_CLIENTS


def test_spread_belongs_to_the_device_and_jitter_to_the_round():
    steady = Lognormal(deadline=1.0, step_seconds=0.5, spread=1.0, jitter=0.0)
    assert steady.duration(0, "a", 0, 3) == steady.duration(0, "a", 9, 3)
    assert steady.duration(0, "a", 0, 6) == 2 * steady.duration(0, "a", 0, 3)
    assert steady.duration(0, "a", 0, 3) != steady.duration(0, "b", 0, 3)
    alike = Lognormal(deadline=1.0, step_seconds=0.5, spread=0.0, jitter=0.0)
    assert alike.duration(0, "a", 0, 3) == 1.5
    shaken = Lognormal(deadline=1.0, step_seconds=0.5, spread=0.0, jitter=0.5)
    assert shaken.duration(0, "a", 0, 3) != shaken.duration(0, "a", 1, 3)


def test_no_device_is_too_slow_to_count():
    wild = Lognormal(deadline=1.0, spread=1e6)
    durations = [wild.duration(0, client, 0, 1) for client in range(20)]
    assert all(math.isfinite(seconds) for seconds in durations)
    assert max(durations) > 1e200


class ByName(Stragglers):
    """Clients with an odd number are too slow."""

    deadline = 1.0

    def duration(self, seed, client_id, round_index, steps):
        return 2.0 if int(client_id[-1]) % 2 else 0.25


def test_stragglers_may_be_written_by_the_user():
    record = histories(stragglers=ByName(), rounds=1).history.records[0]
    assert record.late == ("client-1", "client-3", "client-5")
    assert record.simulated_s == 1.0


def test_without_stragglers_there_is_no_simulated_time():
    record = histories(rounds=1).history.records[0]
    assert record.simulated_s is None
    assert record.late == record.dropped == ()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"deadline": 0}, "deadline must be a finite number greater than 0"),
        ({"deadline": math.inf}, "deadline"),
        ({"deadline": 1.0, "step_seconds": 0}, "step_seconds"),
        ({"deadline": 1.0, "spread": -1}, "spread must be a finite number of at least 0"),
        ({"deadline": 1.0, "jitter": "much"}, "jitter"),
    ],
)
def test_wrong_stragglers_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        Lognormal(**options)
