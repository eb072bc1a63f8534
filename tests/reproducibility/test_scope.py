"""Module-level randomness of a task comes from the task's generators, in threads too."""

import copy
import functools
import pickle
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils import checkpoint

from fedbench.reproducibility import generator_scope, redirect_global_generators, stream_key
from fedbench.reproducibility.streams import (
    fill_torch_generator,
    numpy_random_state,
    python_random_of,
)

X = torch.ones(4, 6)
QUERY = torch.ones(1, 2, 8, 4)
SEQUENCE = torch.linspace(-1, 2, 72).reshape(3, 4, 6)
KEY = stream_key(0, "task", "client", 3)


def torch_state_of(key):
    generator = torch.Generator()
    fill_torch_generator(generator, key)
    return generator.get_state()


def layer(kind, *arguments, **options):
    """Return a draw by a module with constant parameters."""

    def draw():
        with torch.random.fork_rng():
            module = kind(*arguments, **options)
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.fill_(0.1)
            if kind is nn.MultiheadAttention:
                return module(SEQUENCE, SEQUENCE, SEQUENCE)[0]
            output = module(SEQUENCE)
            return output[0] if isinstance(output, tuple) else output

    return draw


TORCH_DRAWS = {
    "rand": lambda: torch.rand(5),
    "rand double": lambda: torch.rand(5, dtype=torch.float64),
    "rand_like": lambda: torch.rand_like(X),
    "randn": lambda: torch.randn(3),
    "randn of even size": lambda: torch.randn(64),
    "randn bfloat16": lambda: torch.randn(20, dtype=torch.bfloat16),
    "randn complex": lambda: torch.randn(20, dtype=torch.complex64),
    "randn_like": lambda: torch.randn_like(X),
    "randint": lambda: torch.randint(2**40, (9,)),
    "randint low": lambda: torch.randint(3, 9, (9,)),
    "randint_like": lambda: torch.randint_like(X, 50),
    "randperm": lambda: torch.randperm(20),
    "randperm out": lambda: torch.randperm(20, out=torch.empty(20, dtype=torch.int64)),
    "normal": lambda: torch.normal(0.0, 1.0, (3, 5)),
    "normal of tensors": lambda: torch.normal(X, X),
    "normal of tensor and number": lambda: torch.normal(X, 2.0),
    "normal of number and tensor": lambda: torch.normal(1.0, X),
    "bernoulli": lambda: torch.bernoulli(X / 2),
    "bernoulli out": lambda: torch.bernoulli(X / 2, out=torch.empty(4, 6)),
    "multinomial": lambda: torch.multinomial(torch.arange(1.0, 30), 9),
    "multinomial with replacement": lambda: torch.multinomial(X, 9, replacement=True),
    "poisson": lambda: torch.poisson(X * 5),
    "binomial": lambda: torch.binomial(X * 9, X / 2),
    "normal_": lambda: torch.empty(3, 3).normal_(1, 2),
    "uniform_": lambda: torch.empty(3, 3).uniform_(1, 2),
    "random_": lambda: torch.empty(9, dtype=torch.int64).random_(),
    "random_ to": lambda: torch.empty(9, dtype=torch.int64).random_(77),
    "random_ from": lambda: torch.empty(9, dtype=torch.int64).random_(-7, 77),
    "bernoulli_": lambda: torch.empty(3, 3).bernoulli_(0.3),
    "bernoulli_ of tensor": lambda: torch.empty(4, 6).bernoulli_(X / 3),
    "cauchy_": lambda: torch.empty(3, 3).cauchy_(),
    "exponential_": lambda: torch.empty(3, 3).exponential_(),
    "geometric_": lambda: torch.empty(3, 3).geometric_(0.3),
    "log_normal_": lambda: torch.empty(3, 3).log_normal_(),
    "dropout": lambda: F.dropout(X),
    "dropout in place": lambda: F.dropout(X.clone(), inplace=True),
    "dropout1d": lambda: F.dropout1d(SEQUENCE),
    "dropout2d": lambda: F.dropout2d(QUERY),
    "dropout3d": lambda: F.dropout3d(QUERY[None]),
    "alpha_dropout": lambda: F.alpha_dropout(X, training=True),
    "feature_alpha_dropout": lambda: F.feature_alpha_dropout(X, training=True),
    "rrelu": lambda: F.rrelu(-X, training=True),
    "rrelu in place": lambda: F.rrelu(-X, training=True, inplace=True),
    "gumbel_softmax": lambda: F.gumbel_softmax(X),
    "fractional_max_pool2d": lambda: F.fractional_max_pool2d(
        torch.arange(256.0).reshape(1, 1, 16, 16), 2, output_size=5
    ),
    "xavier_uniform_": lambda: nn.init.xavier_uniform_(torch.empty(4, 5)),
    "kaiming_normal_": lambda: nn.init.kaiming_normal_(torch.empty(4, 5)),
    "trunc_normal_": lambda: nn.init.trunc_normal_(torch.empty(4, 5)),
    "orthogonal_": lambda: nn.init.orthogonal_(torch.empty(4, 5)),
    "a new layer": lambda: nn.Linear(3, 4).weight.detach(),
    "attention": lambda: F.scaled_dot_product_attention(QUERY, QUERY, QUERY, dropout_p=0.3),
    "Dropout": layer(nn.Dropout, 0.4),
    "RReLU": layer(nn.RReLU),
    "LSTM": layer(nn.LSTM, 6, 5, 3, dropout=0.5),
    "GRU": layer(nn.GRU, 6, 5, 3, dropout=0.5, bidirectional=True),
    "RNN": layer(nn.RNN, 6, 5, 3, dropout=0.5),
    "MultiheadAttention": layer(nn.MultiheadAttention, 6, 2, dropout=0.4),
    "TransformerEncoderLayer": layer(nn.TransformerEncoderLayer, 6, 2, 8, dropout=0.4),
    "distributions": lambda: torch.distributions.Dirichlet(X).rsample(),
    "Gamma": lambda: torch.distributions.Gamma(X, X).sample(),
    "random_split": lambda: torch.tensor(
        torch.utils.data.random_split(range(10), [5, 5])[0].indices
    ),
    "explicit default_generator": lambda: torch.rand(4, generator=torch.default_generator),
    "DataLoader": lambda: torch.cat(
        list(torch.utils.data.DataLoader(torch.arange(20), 3, shuffle=True))
    ),
    "vmap": lambda: torch.func.vmap(F.dropout, randomness="different")(X),
    "manual_seed": lambda: [torch.manual_seed(7), torch.rand(3)][1],
    "initial_seed": lambda: torch.tensor(torch.initial_seed() % 2**62),
    "get_rng_state": lambda: [torch.rand(3), torch.get_rng_state()][1],
    "set_rng_state": lambda: [torch.set_rng_state(torch_state_of(b"k" * 32)), torch.rand(3)][1],
}


def _global_states():
    return (
        torch.default_generator.get_state().tolist(),
        [np.asarray(part).tolist() for part in np.random.get_state()],
        random.getstate(),
    )


@pytest.fixture
def globals_untouched():
    before = _global_states()
    yield
    assert _global_states() == before


@pytest.mark.parametrize("name", TORCH_DRAWS)
def test_draws_of_torch_are_those_of_a_default_generator_in_the_task_s_state(name):
    draw = TORCH_DRAWS[name]
    state_before = torch.get_rng_state()
    try:
        torch.set_rng_state(torch_state_of(KEY))
        expected = draw()
        expected_state = torch.get_rng_state()
    finally:
        torch.set_rng_state(state_before)
    before = _global_states()
    with generator_scope(0, "client", 3, check=True) as generators:
        drawn = draw()
        assert torch.equal(generators.torch.get_state(), expected_state)
    assert torch.equal(drawn, expected)
    assert _global_states() == before
    if name != "initial_seed":  # the case draws at all
        assert not torch.equal(expected_state, torch_state_of(KEY))


def test_every_random_operator_of_torch_is_among_the_draws():
    """The cases above reach every kernel that is redirected, so none is bound wrongly."""
    redirected = torch.utils._python_dispatch.TorchDispatchMode
    seen = set()

    class Recorder(redirected):
        def __torch_dispatch__(self, function, types, arguments=(), options=None):
            seen.add(str(function))
            return function(*arguments, **(options or {}))

    from fedbench.reproducibility import redirect_torch

    expected = {str(operator) for operator in redirect_torch._random_operators()}
    with generator_scope(0, "client", 3), Recorder():
        for name, draw in TORCH_DRAWS.items():
            if name != "vmap":
                draw()
    # Called by other overloads of themselves alone, below the recorder.
    assert expected - seen <= {
        "aten.randperm.generator_out",
        "aten.multinomial.out",
        "aten.rrelu_with_noise.out",
        "aten.normal.Tensor_Tensor_out",
        "aten.normal.Tensor_float_out",
        "aten.normal.float_Tensor_out",
    }


def _numpy_draws():
    return {
        "rand": lambda: np.random.rand(3),
        "randn": lambda: np.random.randn(3),  # leaves half of a pair behind
        "randint": lambda: np.random.randint(0, 99, 5),
        "random": lambda: np.random.random(3),
        "ranf": lambda: np.random.ranf(3),
        "sample": lambda: np.random.sample(3),
        "choice": lambda: np.random.choice(50, 5, replace=False),
        "permutation": lambda: np.random.permutation(9),
        "shuffle": lambda: _shuffled(np.random.shuffle),
        "normal": lambda: np.random.normal(2, 3, 5),
        "dirichlet": lambda: np.random.dirichlet([1, 2, 3]),
        "bytes": lambda: np.random.bytes(9),
        "multivariate_normal": lambda: np.random.multivariate_normal([0, 0], np.eye(2)),
        "seed": lambda: (np.random.seed(5), np.random.rand(3))[1],
        "get_state": lambda: np.random.get_state()[1],
        "set_state": lambda: (
            np.random.set_state(numpy_random_state(b"k" * 32).get_state()),
            np.random.rand(3),
        )[1],
        "the object behind": lambda: np.random.mtrand._rand.rand(3),
        "get_bit_generator": lambda: np.random.get_bit_generator().random_raw(3),
    }


def _python_draws():
    return {
        "random": random.random,
        "getrandbits": lambda: random.getrandbits(99),
        "randint": lambda: random.randint(0, 10**9),
        "randrange": lambda: random.randrange(0, 10**9, 7),
        "randbytes": lambda: random.randbytes(7),
        "choice": lambda: random.choice(range(10**6)),
        "choices": lambda: random.choices(range(10**6), k=3),
        "sample": lambda: random.sample(range(10**6), 3),
        "shuffle": lambda: _shuffled(random.shuffle),
        "uniform": lambda: random.uniform(1, 2),
        "gauss": lambda: random.gauss(1, 2),  # leaves half of a pair behind
        "gauss, the other half": lambda: (
            random.gauss(1, 2),
            random.gauss(1, 2),
            random.gauss(1, 2),
        ),
        "normalvariate": lambda: random.normalvariate(1, 2),
        "seed": lambda: (random.seed("x"), random.random()),
        "getstate": random.getstate,
        "setstate": lambda: (
            random.setstate(python_random_of(b"k" * 32).getstate()),
            random.random(),
        ),
    }


def _shuffled(shuffle):
    items = list(range(20))
    shuffle(items)
    return items


@pytest.mark.parametrize("name", _numpy_draws())
def test_draws_of_numpy_are_those_of_the_global_generator_in_the_task_s_state(name):
    draw = _numpy_draws()[name]
    before = np.random.get_state()
    try:
        np.random.set_state(numpy_random_state(KEY).get_state())
        expected = draw(), draw()
    finally:
        np.random.set_state(before)
    states = _global_states()
    with generator_scope(0, "client", 3, check=True):
        np.testing.assert_equal((draw(), draw()), expected)
    assert _global_states() == states


@pytest.mark.parametrize("name", _python_draws())
def test_draws_of_python_are_those_of_the_global_generator_in_the_task_s_state(name):
    draw = _python_draws()[name]
    before = random.getstate()
    try:
        random.setstate(python_random_of(KEY).getstate())
        expected = draw(), draw()
    finally:
        random.setstate(before)
    states = _global_states()
    with generator_scope(0, "client", 3, check=True):
        assert (draw(), draw()) == expected
    assert _global_states() == states


def test_every_function_of_numpy_random_and_random_is_redirected():
    redirect_global_generators()
    stand_in = np.random.mtrand._rand
    for name in dir(np.random.RandomState):
        if not name.startswith("_") and name not in ("tomaxint", "seed"):
            assert getattr(np.random, name).__self__ is stand_in, name
    for name in ("random", "getrandbits", "seed", "getstate", "setstate"):
        assert getattr(random, name).__func__ is getattr(type(random._inst), name)


@pytest.mark.usefixtures("globals_untouched")
def test_unseeded_generators_of_numpy_are_keyed_by_the_task():
    def draw():
        with generator_scope(0, "client", 3):
            return np.random.default_rng().random(), np.random.default_rng().random()

    first = draw()
    assert first == draw()
    assert first[0] != first[1]
    with generator_scope(0, "client", 3):
        assert np.random.default_rng(5).random() == np.random.Generator(np.random.PCG64(5)).random()
    assert np.random.default_rng().random() != np.random.default_rng().random()


@pytest.mark.usefixtures("globals_untouched")
def test_a_bit_generator_set_in_a_task_is_the_task_s():
    with generator_scope(0, "client"):
        np.random.set_bit_generator(np.random.PCG64(3))
        assert np.random.rand() == np.random.RandomState(np.random.PCG64(3)).rand()


def test_a_bit_generator_set_elsewhere_is_the_process_s():
    redirect_global_generators()
    own = np.random.get_bit_generator()
    try:
        np.random.set_bit_generator(np.random.PCG64(3))
        assert np.random.rand() == np.random.RandomState(np.random.PCG64(3)).rand()
    finally:
        np.random.set_bit_generator(own)
    assert np.random.get_bit_generator() is own


def _client_task(client):
    """Draw in every way that a client's code may, with pauses that let other threads in."""
    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 2))
    recurrent = nn.LSTM(6, 5, 2, dropout=0.5)
    optimizer = torch.optim.SGD([*model.parameters(), *recurrent.parameters()], lr=0.1)
    noise = []
    for _ in range(3):
        optimizer.zero_grad()
        batch = torch.randn(7, 6) + float(np.random.normal()) + random.gauss(0, 1)
        loss = model(batch).square().sum() + recurrent(batch)[0].square().sum()
        time.sleep(random.random() / 500)
        loss.backward()
        optimizer.step()
        noise.append((np.random.rand(3).tolist(), random.randint(0, 10**6)))
    return [p.detach().clone() for p in model.parameters()], loss.item(), noise


def _scoped_task(client, round_number=0):
    with generator_scope(7, client, round_number, check=True):
        return _client_task(client)


def _is_equal(a, b):
    return all(map(torch.equal, a[0], b[0])) and a[1:] == b[1:]


@pytest.mark.usefixtures("globals_untouched")
def test_threads_draw_what_the_sequential_loop_draws():
    clients = list(range(12))
    one_by_one = [_scoped_task(client) for client in clients]
    backwards = [_scoped_task(client) for client in reversed(clients)][::-1]
    with ThreadPoolExecutor(5) as pool:
        together = list(pool.map(_scoped_task, clients))
    for a, b, c in zip(one_by_one, backwards, together, strict=True):
        assert _is_equal(a, b)
        assert _is_equal(a, c)
    assert not _is_equal(one_by_one[0], one_by_one[1])
    assert not _is_equal(one_by_one[0], _scoped_task(0, round_number=1))


@pytest.mark.usefixtures("globals_untouched")
def test_checkpointed_gradients_are_right_in_threads():
    """torch.utils.checkpoint sets the generator back to repeat the dropout of the forward pass."""

    def gradients(client, use_checkpoint=True, use_reentrant=False):
        with generator_scope(7, client, check=True):
            first, second = nn.Linear(6, 32), nn.Linear(32, 2)
            block = nn.Sequential(first, nn.Dropout(0.5), nn.ReLU())
            batch = torch.randn(16, 6, requires_grad=True)
            if use_checkpoint:
                hidden = checkpoint.checkpoint(block, batch, use_reentrant=use_reentrant)
            else:
                hidden = block(batch)
            between = torch.rand(3)  # moves the generator on between forward and backward
            second(hidden).square().sum().backward()
            return first.weight.grad, batch.grad, between, torch.rand(3)

    clients = range(8)
    plain = [gradients(client, use_checkpoint=False) for client in clients]
    for use_reentrant in (False, True):
        with ThreadPoolExecutor(4) as pool:
            repeated = list(
                pool.map(functools.partial(gradients, use_reentrant=use_reentrant), clients)
            )
        for a, b in zip(plain, repeated, strict=True):
            assert all(map(torch.equal, a, b))


@pytest.mark.usefixtures("globals_untouched")
def test_fork_rng_puts_the_task_s_generator_back():
    with generator_scope(0, "client"):
        expected = torch.rand(2), torch.rand(2)
    with generator_scope(0, "client"):
        first = torch.rand(2)
        with torch.random.fork_rng():
            torch.manual_seed(1)
            torch.rand(99)
        assert torch.equal(first, expected[0])
        assert torch.equal(torch.rand(2), expected[1])


@pytest.mark.usefixtures("globals_untouched")
def test_seed_acts_on_the_task_s_generator():
    with generator_scope(0, "client") as generators:
        seed = torch.seed()
        assert generators.torch.initial_seed() == seed == torch.initial_seed()


@pytest.mark.usefixtures("globals_untouched")
def test_nested_scopes_resume_the_outer_one():
    with generator_scope(0, "outer"):
        expected = torch.rand(2), torch.rand(2), np.random.rand(), random.random()
    with generator_scope(0, "outer", check=True):
        first = torch.rand(2)
        with generator_scope(0, "inner", check=True):
            inner = torch.rand(2), np.random.rand(), random.random()
        drawn = first, torch.rand(2), np.random.rand(), random.random()
    assert all(map(torch.equal, drawn[:2], expected[:2]))
    assert drawn[2:] == expected[2:]
    assert inner[1:] != expected[2:]


@pytest.mark.usefixtures("globals_untouched")
def test_a_scope_ends_with_an_exception():
    with pytest.raises(KeyError), generator_scope(0, "client", check=True):
        raise KeyError(torch.rand(3))
    before = torch.get_rng_state()
    assert torch.equal(before, torch.default_generator.get_state())


@pytest.mark.usefixtures("globals_untouched")
def test_a_scope_entered_again_starts_anew():
    scope = generator_scope(0, "client")
    with scope:
        first = torch.rand(2)
        with scope:
            inner = torch.rand(2)
        following = torch.rand(2)
    with scope:
        again = torch.rand(4)
    assert torch.equal(first, inner)
    assert torch.equal(again[:2], first)
    assert torch.equal(again[2:], following)


@pytest.mark.parametrize("arguments", [("seed", 1), (0, 1.5), (0, None)])
def test_bad_names_are_refused(arguments):
    with pytest.raises(TypeError), generator_scope(*arguments):
        pass


def test_outside_of_scopes_nothing_changes():
    """The redirected functions draw from the global generators as before, threads included."""
    redirect_global_generators()
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    try:
        torch.manual_seed(3)
        own = torch.Generator().manual_seed(3)
        assert torch.equal(torch.rand(4), torch.rand(4, generator=own))
        assert torch.equal(torch.randperm(9), torch.randperm(9, generator=own))
        assert torch.equal(
            torch.rand(4, generator=torch.random.default_generator), torch.rand(4, generator=own)
        )
        np.random.seed(3)
        reference = np.random.RandomState(3)
        assert np.random.randn() == reference.randn()
        assert np.random.randint(99) == reference.randint(99)
        random.seed(3)
        python_reference = random.Random(3)
        assert random.gauss(0, 1) == python_reference.gauss(0, 1)
        assert random.sample(range(99), 9) == python_reference.sample(range(99), 9)
    finally:
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])


@pytest.mark.usefixtures("globals_untouched")
def test_explicit_generators_are_left_alone():
    with generator_scope(0, "client") as generators:
        own = torch.Generator().manual_seed(3)
        drawn = torch.rand(4, generator=own), torch.randperm(5, generator=own)
        F.dropout(X, training=False)
        untouched = torch.equal(generators.torch.get_state(), generator_scope_state(0, "client"))
    own.manual_seed(3)
    assert torch.equal(drawn[0], torch.rand(4, generator=own))
    assert torch.equal(drawn[1], torch.randperm(5, generator=own))
    assert untouched


def generator_scope_state(seed, *key):
    return torch_state_of(stream_key(seed, "task", *key))


@pytest.mark.usefixtures("globals_untouched")
def test_meta_tensors_draw_nothing():
    with generator_scope(0, "client") as generators:
        assert torch.rand(3, device="meta").device.type == "meta"
        nn.Linear(3, 4, device="meta")
        assert torch.equal(generators.torch.get_state(), generator_scope_state(0, "client"))


def test_compiled_functions_draw_from_the_task():
    compiled = torch.compile(lambda x: F.dropout(x) + torch.rand(4, 6), backend="aot_eager")
    with generator_scope(0, "client", check=True):
        expected = F.dropout(X) + torch.rand(4, 6)
    with generator_scope(0, "client", check=True):
        assert torch.equal(compiled(X), expected)


def test_draws_let_other_threads_run():
    """The kernels release the interpreter's lock while they draw."""
    ticks = 0
    stop = threading.Event()

    def tick():
        nonlocal ticks
        while not stop.wait(0.001):
            ticks += 1

    big = torch.empty(20_000_000)
    thread = threading.Thread(target=tick)
    thread.start()
    try:
        with generator_scope(0, "client"):
            big.normal_()  # one call that takes a tenth of a second
        during = ticks
    finally:
        stop.set()
        thread.join()
    assert during >= 3  # none if the lock were held


def test_stand_ins_are_pickled_by_reference_and_copied_by_value():
    redirect_global_generators()
    assert pickle.loads(pickle.dumps(np.random.mtrand._rand)) is np.random.mtrand._rand
    assert pickle.loads(pickle.dumps(random._inst)) is random._inst
    assert pickle.loads(pickle.dumps(np.random.rand)) == np.random.rand
    states = np.random.get_state(), random.getstate()
    try:
        shared, separate = copy.copy(np.random.mtrand._rand), copy.deepcopy(np.random.mtrand._rand)
        assert separate.rand() == np.random.rand()
        assert separate.rand() == shared.rand()  # a shallow copy has the same bit generator
        assert separate.rand() == np.random.rand()
        for copied in (copy.copy, copy.deepcopy):
            python_copy = copied(random._inst)
            assert python_copy.random() == random.random()
            python_copy.seed(1)
    finally:
        np.random.set_state(states[0])
        random.setstate(states[1])
