"""A digest is equal when and only when the state is, bit for bit."""

import collections
import dataclasses
import enum
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch.utils._python_dispatch import TorchDispatchMode

from fedbench.reproducibility.digest import check_state, digest


def test_digest_is_pinned():
    """Users compare digests over releases: change the encoding knowingly."""
    state = {"w": torch.arange(6, dtype=torch.float32).reshape(2, 3), "round": 3, "ids": ["a", 1]}
    assert digest(state) == ("a4bc044dd965b6f2b4bda77c30a2ab3230162dd4015d64a1bc7d9aa44c13ddf6")


def test_order_of_keys_does_not_count():
    state = {"a": 1, "b": torch.ones(2), 3: None, "3": 2.0, True: "x"}
    turned = dict(reversed(state.items()))
    assert list(turned) != list(state)
    assert digest(turned) == digest(state) == digest(collections.OrderedDict(state))


def test_order_of_sequences_counts():
    assert digest([1, 2]) != digest([2, 1])
    assert digest([1, 2]) == digest((1, 2))
    assert digest({1, 2, 3}) == digest(frozenset([3, 2, 1])) != digest([1, 2, 3])


DISTINCT = [
    None,
    0,
    False,
    0.0,
    -0.0,
    0j,
    "",
    b"",
    [],
    {},
    set(),
    "0",
    b"0",
    [0],
    [[0]],
    [0, 0],
    {0: 0},
    {"0": 0},
    {None: 0},
    256,
    -256,
    2**200,
    float("nan"),
    float("inf"),
    torch.zeros(()),
    torch.zeros(1),
    torch.zeros(1, 1),
    torch.zeros(0),
    torch.zeros(0, 3),
    torch.zeros(3, 0),
    -torch.zeros(1),
    torch.zeros(1, dtype=torch.float64),
    torch.zeros(1, dtype=torch.bfloat16),
    torch.zeros(1, dtype=torch.float16),
    torch.zeros(1, dtype=torch.int32),
    torch.zeros(1, dtype=torch.uint8),
    torch.zeros(1, dtype=torch.bool),
    torch.zeros(1, dtype=torch.complex64),
    np.array(["a"]),
    np.array(["2020-01-01"], dtype="M8[D]"),
    {"a": [1], "b": []},
    {"a": [], "b": [1]},
    ["ab", "c"],
    ["a", "bc"],
]


def test_distinct_states_have_distinct_digests():
    digests = [digest(state) for state in DISTINCT]
    assert len(set(digests)) == len(DISTINCT)
    assert digests == [digest(state) for state in DISTINCT]


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.int8,
        torch.int64,
        torch.bool,
        torch.complex128,
    ],
)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1,), (4, 3, 2)])
def test_tensors_of_every_dtype_and_shape(dtype, shape):
    tensor = torch.randint(2, shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    reference = digest(tensor)
    assert reference == digest(tensor.clone())
    if tensor.numel():
        changed = tensor.clone()
        changed.view(-1)[-1] = 1 - changed.view(-1)[-1].item()
        assert digest(changed) != reference
    if dtype is not torch.bfloat16:
        assert digest(tensor.numpy()) == reference


def test_every_bit_counts():
    base = torch.linspace(0, 1, 1000)
    for index in (0, 499, 999):
        for bit in (0, 13, 31):
            changed = base.clone()
            changed.view(torch.int32)[index] ^= 1 << bit if bit < 31 else -(2**31)
            assert digest(changed) != digest(base)


def test_layout_in_memory_does_not_count():
    base = torch.arange(24.0).reshape(2, 3, 4)
    for view in (
        base.permute(2, 0, 1).contiguous().permute(1, 2, 0),
        torch.arange(48.0)[::2].div(2).reshape(2, 3, 4),
        base.clone().requires_grad_(),
        torch.nn.Parameter(base.clone()),
        (-base)._neg_view(),
    ):
        assert digest(view) == digest(base)
    array = base.numpy()
    assert digest(np.asfortranarray(array)) == digest(base)
    assert digest(array.astype(">f4")) == digest(base)
    assert digest(array[:, ::-1][:, ::-1]) == digest(base)
    read_only = array.copy()
    read_only.flags.writeable = False
    assert digest(read_only) == digest(base)


def test_conjugate_views():
    base = torch.tensor([1 + 2j, 3 - 1j])
    assert digest(base.conj()) == digest(base.conj().resolve_conj()) != digest(base)


def test_tied_entries_are_two_entries():
    shared = torch.ones(3)
    assert digest({"a": shared, "b": shared}) == digest({"a": shared, "b": shared.clone()})
    assert digest({"a": shared, "b": shared[1:]}) != digest({"a": shared, "b": shared})


def test_models_and_optimizers_have_digests():
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(4, 3)).square().sum().backward()
    before = digest(model.state_dict()), digest(optimizer.state_dict())
    optimizer.step()
    after = digest(model.state_dict()), digest(optimizer.state_dict())
    assert before[0] != after[0]
    assert before[1] != after[1]


def test_dataclasses_enums_and_numpy_scalars():
    @dataclasses.dataclass
    class Report:
        loss: float
        count: int

    @dataclasses.dataclass
    class Other:
        loss: float
        count: int

    class Kind(enum.IntEnum):
        TRAIN = 1

    assert digest(Report(0.5, 3)) == digest(Report(0.5, 3)) != digest(Report(0.5, 4))
    assert digest(Report(0.5, 3)) != digest(Other(0.5, 3))
    assert digest(Kind.TRAIN) == digest(1) == digest(np.int64(1)) == digest(np.uint8(1))
    assert digest(np.float64(0.1)) == digest(0.1)
    assert digest(np.True_) == digest(True)
    assert digest(np.float32(0.1)) == digest(np.array(0.1, np.float32))


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"a": [1, object()]}, r"state\['a'\]\[1\] must be .* got object"),
        ({(1, 2): 3}, "a key of state must be .* got tuple"),
        ([np.array([object()])], r"state\[0\] must be an array of plain numbers, got dtype object"),
        (
            {"s": torch.eye(2).to_sparse()},
            r"state\['s'\] must be a dense tensor with values, .* torch.sparse_coo",
        ),
        (torch.ones(2, device="meta"), "state must be a dense tensor with values, .* device meta"),
        (len, "state must be .* got builtin_function_or_method"),
        (int, "state must be .* got type"),
    ],
)
def test_what_has_no_digest_is_named(state, message):
    with pytest.raises(TypeError, match=message):
        digest(state)
    with pytest.raises(TypeError, match=message):
        check_state(state)


class NoOperations(TorchDispatchMode):
    """Lets no tensor be computed, copied or moved."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        raise AssertionError(f"{function} was called")


def test_a_state_is_checked_without_touching_its_values():
    images = torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last)
    state = {"images": [images, images.conj()], "rows": np.ones((3, 4)).T, "round": {1, 2}}
    with NoOperations():
        check_state(state)
        with pytest.raises(AssertionError, match="was called"):
            digest(state)


NESTED = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(allow_nan=False),
        st.text(max_size=3),
        st.binary(max_size=3),
    ),
    lambda children: st.one_of(
        st.lists(children, max_size=3),
        st.dictionaries(st.one_of(st.integers(), st.text(max_size=2)), children, max_size=3),
    ),
    max_leaves=8,
)


def _is_same(a, b):
    """Equality that tells types and signed zeros apart."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_is_same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(_is_same, a, b))
    return repr(a) == repr(b)


@given(NESTED, NESTED)
def test_digests_of_random_states(first, second):
    assert (digest(first) == digest(second)) == _is_same(first, second)


@given(hnp.arrays(hnp.scalar_dtypes().filter(lambda d: d.kind in "biufc"), hnp.array_shapes()))
def test_digests_of_random_arrays(array):
    assert digest(array) == digest(array.copy(order="F")) == digest({"x": array}["x"])
    assert digest(array) != digest(array[np.newaxis])


def test_without_torch_nothing_imports_it():
    code = (
        "import sys, numpy\n"
        "from fedbench.reproducibility import digest, numpy_generator\n"
        "digest({'a': numpy.ones(3)}); numpy_generator(0, 'a')\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
