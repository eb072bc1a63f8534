"""What cannot be redirected is noticed: changes of the global generators behind the scope."""

import random
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from fedbench.errors import EnclosureError
from fedbench.reproducibility import generator_scope, redirect_global_generators
from fedbench.reproducibility.ledger import Ledger

# Functions that were imported by name before anything is redirected, as user code has them. In
# this process it is too late for that, so they are fetched where the redirection has not been.
_global_numpy = np.random.mtrand._rand
if type(_global_numpy) is not np.random.RandomState:
    from fedbench.reproducibility.redirect_host import _global_state as _global_numpy
early_numpy_rand = _global_numpy.rand
early_random = random.Random.random.__get__(random._inst)


@pytest.fixture(autouse=True)
def _restore_global_generators():
    redirect_global_generators()
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    yield
    torch.set_rng_state(states[0])
    np.random.set_state(states[1])
    random.setstate(states[2])


FAULTS = {
    "numpy's global generator": early_numpy_rand,
    "the global generator of random": early_random,
    "torch's default generator": lambda: torch.default_generator.manual_seed(3),
}


@pytest.mark.parametrize("source", FAULTS)
def test_a_change_behind_the_scope_is_named(source):
    with pytest.raises(EnclosureError) as info, generator_scope(0, "client-7", 3, check=True):
        FAULTS[source]()
    message = str(info.value)
    assert f"got a change of {source} while the client task ('client-7', 3) ran" in message
    assert "from numpy.random import rand" in message
    assert "write torch.manual_seed" in message


@pytest.mark.parametrize("source", FAULTS)
def test_it_is_not_looked_for_without_check(source):
    with generator_scope(0, "client-7", 3):
        FAULTS[source]()


@pytest.mark.parametrize("source", FAULTS)
def test_the_next_task_is_not_blamed(source):
    with pytest.raises(EnclosureError), generator_scope(0, "guilty", check=True):
        FAULTS[source]()
    FAULTS[source]()
    with generator_scope(0, "innocent", check=True):
        torch.rand(3)
        np.random.rand(3)
        random.random()


def test_a_thread_that_the_task_starts_is_outside():
    def draw():
        thread = threading.Thread(target=torch.rand, args=(3,))
        thread.start()
        thread.join()

    # Its draws are the global generator's, and accounted for: nothing tells them from another
    # thread's. So they are no error here, which the guide says.
    before = torch.get_rng_state()
    with generator_scope(0, "client", check=True):
        draw()
    assert not torch.equal(torch.get_rng_state(), before)


def test_the_task_s_own_error_comes_first():
    with pytest.raises(KeyError), generator_scope(0, "client", check=True):
        raise KeyError(early_random())
    with generator_scope(0, "client", check=True):
        pass


def test_all_tasks_that_ran_are_suspects():
    both_run = threading.Barrier(2)
    has_drawn = threading.Event()
    errors = {}

    def task(client):
        try:
            with generator_scope(0, client, check=True):
                both_run.wait(30)
                if client == "guilty":
                    early_numpy_rand()
                    has_drawn.set()
                assert has_drawn.wait(30)
        except EnclosureError as error:
            errors[client] = str(error)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(task, ["guilty", "other"]))
    (message,) = errors.values()
    assert "one of ('guilty'), ('other')" in message or "one of ('other'), ('guilty')" in message


def test_draws_of_other_threads_are_no_false_alarm():
    """The main thread may draw and seed while tasks run; only redirected names are needed."""
    stop = threading.Event()

    def task(client):
        with generator_scope(0, client, check=True):
            return [
                (torch.rand(2).tolist(), np.random.rand(), random.gauss(0, 1)) for _ in range(20)
            ]

    def tasks(worker):
        rounds = 0
        results = []
        while not stop.is_set() or rounds < 3:
            results.append(task(worker))
            rounds += 1
        assert all(result == results[0] for result in results)
        return rounds

    expected_torch = torch.Generator()
    expected_torch.set_state(torch.get_rng_state())
    expected_numpy = np.random.RandomState()
    expected_numpy.set_state(np.random.get_state())
    expected_python = random.Random()
    expected_python.setstate(random.getstate())
    with ThreadPoolExecutor(3) as pool:
        futures = [pool.submit(tasks, worker) for worker in range(3)]
        try:
            for _ in range(300):
                assert torch.equal(torch.rand(2), torch.rand(2, generator=expected_torch))
                assert np.random.randn() == expected_numpy.randn()
                assert random.gauss(0, 1) == expected_python.gauss(0, 1)
                assert random.randint(0, 99) == expected_python.randint(0, 99)
            for seed in range(100):
                torch.manual_seed(seed)
                np.random.seed(seed)
                random.seed(seed)
                assert torch.equal(
                    torch.rand(2), torch.rand(2, generator=torch.Generator().manual_seed(seed))
                )
                assert np.random.randn() == np.random.RandomState(seed).randn()
                assert random.gauss(0, 1) == random.Random(seed).gauss(0, 1)
                np.random.set_state(expected_numpy.get_state())
                random.setstate(expected_python.getstate())
        finally:
            stop.set()
        assert all(future.result() >= 3 for future in futures)


def test_early_imports_in_a_program_of_its_own():
    """Whole story: names imported first, then fedbench; what is redirected and what is noticed."""
    program = textwrap.dedent(
        """
        from numpy.random import rand, seed as numpy_seed
        from random import gauss, random, shuffle
        from torch import manual_seed, randn
        from torch.nn.functional import dropout
        import torch
        from fedbench.errors import EnclosureError
        from fedbench.reproducibility import generator_scope

        def draws():
            manual_seed(5)
            numpy_seed(5)
            items = list(range(30))
            shuffle(items)
            return randn(3).tolist(), dropout(torch.ones(9)).tolist(), items, gauss(0, 1)

        with generator_scope(0, "a", check=True):
            first = draws()
        with generator_scope(0, "a", check=True):
            assert draws() == first
        for name, draw in {"numpy": rand, "random": random}.items():
            try:
                with generator_scope(0, name, check=True):
                    draw()
            except EnclosureError as error:
                print(name, error)
        """
    )
    output = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert output.returncode == 0, output.stderr
    numpy_line, random_line = output.stdout.splitlines()
    assert "got a change of numpy's global generator" in numpy_line
    assert "got a change of the global generator of random" in random_line


def test_draws_within_draws_do_not_lock_up():
    """numpy.random.shuffle calls back into the code of what it shuffles."""

    class Items(list):
        def __setitem__(self, index, value):
            with generator_scope(0, "inner", check=True):
                random.random()
            super().__setitem__(index, value)

    np.random.shuffle(Items(range(9)))
    with generator_scope(0, "outer", check=True):
        np.random.shuffle(Items(range(9)))


def test_ledger_waits_for_draws_that_have_begun():
    """A draw that starts before the watch and ends within it is nobody's fault."""
    ledger = Ledger()
    state = [0]
    ledger.register("source", lambda: state[0])
    begun, go_on = threading.Event(), threading.Event()

    def slow_draw():
        begun.set()
        assert go_on.wait(30)
        state[0] += 1

    with ThreadPoolExecutor(2) as pool:
        drawing = pool.submit(ledger.outside, "source", slow_draw)
        assert begun.wait(30)
        watching = pool.submit(ledger.watch, ("task",))
        go_on.set()
        drawing.result(30)
        watching.result(30)
    assert ledger.end_watch(("task",)) == {}


def test_ledger_tells_accounted_from_other_changes():
    ledger = Ledger()
    state = [0]
    ledger.register("source", lambda: state[0])

    def draw():
        state[0] += 1
        return state[0]

    ledger.watch(("first",))
    assert ledger.outside("source", draw) == 1
    ledger.watch(("second",))
    assert ledger.outside("source", draw) == 2
    assert ledger.end_watch(("first",)) == {}
    draw()
    ledger.outside("source", draw)
    assert ledger.end_watch(("second",)) == {"source": (("second",),)}
    draw()
    ledger.watch(("third",))
    assert ledger.end_watch(("third",)) == {}
