"""Random streams are functions of their names, and their names are all different."""

import os
import random
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbench.errors import UnsupportedPlatformError
from fedbench.reproducibility import (
    numpy_generator,
    python_random,
    seed_torch_generator,
    stream_key,
    streams,
    torch_generator,
)

PARTS = st.one_of(st.integers(), st.text())


@given(
    first=st.tuples(st.integers(), st.text(), st.lists(PARTS)),
    second=st.tuples(st.integers(), st.text(), st.lists(PARTS)),
)
def test_different_names_give_different_keys(first, second):
    keys = [stream_key(seed, purpose, *key) for seed, purpose, key in (first, second)]
    assert (keys[0] == keys[1]) == (first == second)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((0, "a", 1), (0, "a", "1")),
        ((0, "a", "b", "c"), (0, "a", "bc")),
        ((0, "a", 1, 11), (0, "a", 11, 1)),
        ((0, "a"), (0, "a", "")),
        ((1, "a"), (-1, "a")),
        ((1, "a"), (1 + 2**64, "a")),
        ((0, "a", "i2:1"), (0, "a", "s2:1")),
    ],
)
def test_near_namesakes_are_apart(first, second):
    assert stream_key(*first) != stream_key(*second)


def test_numpy_integers_are_integers():
    assert stream_key(np.int64(3), "shuffle", np.uint8(7)) == stream_key(3, "shuffle", 7)


def test_seeds_and_parts_may_be_arbitrarily_large():
    huge = 10**5000
    assert stream_key(huge, "a", -huge) != stream_key(huge + 1, "a", -huge)
    torch_generator(huge, "a")
    numpy_generator(-huge, "a")
    python_random(huge, "a", huge)


def test_large_numbers_do_not_depend_on_python_s_limit_of_digits():
    names = [(2**1024, "a"), (2**1024 - 1, "a"), (0, "a", -(2**1024)), (0, "a", 1 - 2**1024)]
    keys = [stream_key(*name) for name in names]
    limit = sys.get_int_max_str_digits()
    try:
        sys.set_int_max_str_digits(640)
        assert [stream_key(*name) for name in names] == keys
    finally:
        sys.set_int_max_str_digits(limit)
    assert len(set(keys)) == len(keys)


def test_subclasses_of_text_are_text():
    class Name(str):
        def __repr__(self):
            return "Name"

    assert stream_key(0, "a", Name("client")) == stream_key(0, "a", "client")
    assert stream_key(0, Name("a"), np.str_("client")) == stream_key(0, "a", "client")


def test_text_of_any_kind_is_a_name():
    assert stream_key(0, "", "\ud800", "\0") != stream_key(0, "", "\0", "\ud800")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.5, "a"), "seed must be an int, got 0.5 of type float"),
        (("0", "a"), "seed must be an int, got the text '0'"),
        ((True, "a"), "seed must be an int, got True"),
        ((0, 3), "purpose must be a str, got 3 of type int"),
        ((0, "a", None), "a part of key must be an int or a str, got None"),
        ((0, "a", False), "a part of key must be an int or a str, got False"),
        ((0, "a", b"x"), "a part of key must be an int or a str, got b'x'"),
    ],
)
def test_bad_names_are_refused(arguments, message):
    with pytest.raises(TypeError, match=message):
        stream_key(*arguments)


def test_key_is_pinned():
    """Changing the encoding changes every result that users have stored: do it knowingly."""
    assert stream_key(0, "shuffle", 3, "client").hex() == (
        "fcd1afa95744110e4f06f0e2487c90e031b843f8c8e7076cde42aa4c5f633a28"
    )
    words = torch.empty(2, dtype=torch.int64).random_(generator=torch_generator(0, "shuffle", 3))
    assert words.tolist() == [6132284593904158403, 144729046293271434]
    assert numpy_generator(0, "shuffle", 3).integers(2**63, size=2).tolist() == [
        3128095462260495367,
        9184033773932503935,
    ]
    assert python_random(0, "shuffle", 3).getrandbits(64) == 556087660311465443


def test_streams_do_not_depend_on_the_hash_seed():
    code = (
        "import torch\n"
        "from fedbench.reproducibility import *\n"
        "print(stream_key(5, 'shuffle', 'client-a', 3).hex())\n"
        "print(torch.rand(3, generator=torch_generator(5, 'dropout', 'client-a', 3)).tolist())\n"
        "print(numpy_generator(5, 'x', 'y').random(), python_random(5, 'x', 'y').random())\n"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            check=True,
            capture_output=True,
            text=True,
            timeout=120,
        ).stdout
        for hash_seed in ("0", "1")
    }
    assert len(outputs) == 1
    assert stream_key(5, "shuffle", "client-a", 3).hex() in outputs.pop()


def _first_64_bits_of_torch_streams(seeds, rounds, clients, purposes):
    generator = torch.Generator()
    drawn = torch.empty(1, dtype=torch.int64)
    for seed in range(seeds):
        for purpose in purposes:
            for client in range(clients):
                for round_number in range(rounds):
                    seed_torch_generator(generator, seed, purpose, client, round_number)
                    yield drawn.random_(-(2**63), None, generator=generator).item()


def _assert_distinct(values):
    values = np.fromiter(values, np.int64)
    assert len(np.unique(values)) == len(values)


def test_no_two_streams_start_alike():
    """A sample; the full population has a slow test below."""
    _assert_distinct(_first_64_bits_of_torch_streams(10, 10, 50, ("shuffle", "dropout")))


def test_no_two_keys_start_alike():
    """64-bit prefixes of keys, over ten times the streams of the test above."""
    _assert_distinct(
        int.from_bytes(stream_key(seed, purpose, client, round_number)[:8], "little", signed=True)
        for seed in range(2)
        for purpose in ("shuffle", "dropout")
        for client in range(500)
        for round_number in range(50)
    )


@pytest.mark.slow
def test_no_two_of_two_million_streams_start_alike():
    _assert_distinct(_first_64_bits_of_torch_streams(10, 100, 1000, ("shuffle", "dropout")))


def test_neighbouring_streams_are_uncorrelated():
    """Bits of streams with consecutive keys agree half of the time, as independent bits do."""
    rows = torch.stack(
        [torch.randint(0, 2, (4096,), generator=torch_generator(0, "a", i)) for i in range(64)]
    ).double()
    correlation = torch.corrcoef(rows) - torch.eye(64)
    # 2,016 correlations, each about normal with deviation 1/64: six deviations.
    assert correlation.abs().max() < 6 / 64
    assert (rows.mean(dim=1) - 0.5).abs().max() < 6 * 0.5 / 64


def test_draws_are_uniform():
    """First draws of many streams fill the unit interval evenly (chi-square, 99 cells)."""
    first = np.array([torch.rand((), generator=torch_generator(1, "u", i)) for i in range(5000)])
    counts = np.histogram(first, bins=100, range=(0, 1))[0]
    chi_square = ((counts - 50) ** 2 / 50).sum()
    assert 99 - 5 * np.sqrt(198) < chi_square < 99 + 5 * np.sqrt(198)


@pytest.mark.parametrize("make", [torch_generator, numpy_generator, python_random])
def test_global_generators_are_untouched(make):
    before = torch.get_rng_state(), np.random.get_state(), random.getstate()
    make(0, "a", 1)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert all(np.array_equal(a, b) for a, b in zip(np.random.get_state(), before[1], strict=True))
    assert random.getstate() == before[2]


def test_reseeding_forgets_what_was_drawn():
    generator = torch.Generator()
    torch.randn(7, generator=generator)  # leaves half of a pair of normals behind
    seed_torch_generator(generator, 3, "dropout", "a")
    fresh = torch_generator(3, "dropout", "a")
    assert torch.equal(generator.get_state(), fresh.get_state())
    for draw in (torch.randn, torch.rand, torch.randperm):
        assert torch.equal(draw(33, generator=generator), draw(33, generator=fresh))


def test_initial_seed_holds_the_start_of_the_key():
    key = stream_key(3, "dropout", "a")
    assert torch_generator(3, "dropout", "a").initial_seed() == int.from_bytes(key[:8], "little")


def test_generators_made_in_threads_are_the_same():
    names = [(seed, "a", client) for seed in range(5) for client in range(40)]
    alone = [torch.rand(4, generator=torch_generator(*name)) for name in names]
    together = {}

    def make(part):
        for index in range(part, len(names), 4):
            together[index] = torch.rand(4, generator=torch_generator(*names[index]))

    threads = [threading.Thread(target=make, args=(part,)) for part in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(alone[index], together[index]) for index in range(len(names)))


def test_numpy_generators_spawn_by_name():
    first = [child.random() for child in numpy_generator(0, "a").spawn(3)]
    parent = numpy_generator(0, "a")
    second = [child.random() for child in [*parent.spawn(1), *parent.spawn(2)]]
    assert first == second
    assert len({*first, parent.random()}) == 4


@settings(max_examples=20)
@given(n_words=st.integers(0, 700), dtype=st.sampled_from([np.uint32, np.uint64]))
def test_seed_sequence_gives_words_of_the_asked_type(n_words, dtype):
    words = streams.KeyedSeedSequence(b"k").generate_state(n_words, dtype)
    assert words.dtype == dtype
    assert words.shape == (n_words,)


def test_kinds_of_generators_do_not_share_words():
    """torch, numpy's legacy generator and random are the same twister: states must differ."""
    key = stream_key(0, "a")
    twisters = [
        torch_generator(0, "a").get_state().numpy()[24 : 24 + 8 * 624].view(np.uint64),
        streams.numpy_random_state(key).get_state()[1],
        np.array(python_random(0, "a").getstate()[1][:624]),
    ]
    for first, second in ((0, 1), (0, 2), (1, 2)):
        common = np.intersect1d(twisters[first], twisters[second])
        assert len(common) <= 3


def test_unknown_layout_of_torch_is_an_error(monkeypatch):
    monkeypatch.setattr(streams, "_BLOB_BYTES", 5000)
    streams._check_torch_layout.cache_clear()
    try:
        with pytest.raises(UnsupportedPlatformError, match=r"must be the 5000 bytes .* got 5056"):
            streams._check_torch_layout()
    finally:
        streams._check_torch_layout.cache_clear()


def test_generators_of_other_devices_are_refused():
    class OnGpu:
        device = torch.device("cuda", 1)

    with pytest.raises(ValueError, match=r"must be a CPU generator, got one on cuda:1"):
        seed_torch_generator(OnGpu(), 0, "a")
