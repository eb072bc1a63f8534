"""State dicts of plain arrays take one call of the extension, with the long way's results."""

from __future__ import annotations

import copy
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbench._native import core
from fedbench.aggregation import _arrays, _plain, mean
from fedbench.errors import LayoutError, NonFiniteError

SHAPES: dict[str, tuple[int, ...]] = {"w": (3, 4), "b": (5,), "one": (), "none": (0, 2), "a": (1,)}
DTYPES = ["float32", "float64", "float16"]


@pytest.fixture(params=["numpy", "torch"], scope="module")
def library(request):
    if request.param == "torch" and _arrays.exchange_api() is None:
        pytest.skip("this torch has no __dlpack_c_exchange_api__ (2.10 and newer have)")
    return request.param


def converted(state: dict[str, Any], library: str) -> dict[str, Any]:
    if library == "numpy":
        return state
    return {name: torch.from_numpy(array) for name, array in state.items()}


def states_of(library: str, clients: int = 3, seed: int = 0, dtype: str = "float32") -> list[Any]:
    rng = np.random.default_rng(seed)
    return [
        converted(
            {name: np.asarray(rng.standard_normal(s)).astype(dtype) for name, s in SHAPES.items()},
            library,
        )
        for _ in range(clients)
    ]


def like(state: dict[str, Any]) -> dict[str, Any]:
    full = np.full_like if isinstance(state["w"], np.ndarray) else torch.full_like
    return {name: full(array, 7) for name, array in state.items()}


def bits(state: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [
        (name, type(v), v.dtype, tuple(v.shape), np.asarray(v).tobytes())
        for name, v in state.items()
    ]


def short_way(states: list[Any], weights: Any = None, out: Any = None) -> Any:
    return _plain.mean_of_plain(states, weights, out, "raise")


def long_way(states: list[Any], weights: Any = None, **options: Any) -> Any:
    """The mean of what is no list, which the short way does not take."""
    return mean(tuple(states), weights, **options)


@given(
    seed=st.integers(0, 2**31),
    clients=st.integers(1, 12),
    dtype=st.sampled_from(DTYPES),
    kinds=st.lists(st.sampled_from([dict, OrderedDict]), min_size=12, max_size=12),
    orders=st.lists(st.permutations(list(SHAPES)), min_size=13, max_size=13),
    weights=st.one_of(st.none(), st.lists(st.integers(1, 500), min_size=12, max_size=12)),
)
def test_both_ways_give_the_same_bits(
    library: str,
    seed: int,
    clients: int,
    dtype: str,
    kinds: list[Any],
    orders: list[list[str]],
    weights: list[int] | None,
) -> None:
    states = [
        kind((name, state[name]) for name in order)
        for kind, order, state in zip(
            kinds, orders, states_of(library, clients, seed, dtype), strict=False
        )
    ]
    given_weights = None if weights is None else weights[:clients]
    expected = long_way(states, given_weights)
    result = short_way(states, given_weights)
    assert type(result) is dict
    assert bits(result) == bits(expected) == bits(mean(states, given_weights))
    out = like({name: states[0][name] for name in orders[12]})
    assert short_way(states, given_weights, out) is out
    assert {entry[0]: entry for entry in bits(out)} == {entry[0]: entry for entry in bits(expected)}


def test_equal_entries_of_different_clients_are_not_taken_for_tied(library) -> None:
    state = states_of(library)[0]
    assert bits(short_way([state, state, state])) == bits(long_way([state, state, state]))


def rename(state: dict[str, Any]) -> None:
    state["x"] = state.pop("w")


def replace(value: Any) -> Any:
    def spoil(state: dict[str, Any]) -> None:
        state["w"] = value(state["w"]) if callable(value) else value

    return spoil


def nan(state: dict[str, Any]) -> None:
    state["b"][3] = float("nan")


BROKEN = {
    "an entry more": lambda state: state.update(x=state["b"]),
    "an entry less": lambda state: state.pop("b"),
    "another name": rename,
    "another shape": replace(lambda w: w[:2]),
    "another dtype": replace(lambda w: w.astype(float) if isinstance(w, np.ndarray) else w.half()),
    "another library": replace(lambda w: np.ones((3, 4), np.float32) if torch.is_tensor(w)
                               else torch.ones(3, 4)),
    "no array": replace("w"),
    "none": replace(None),
    "integers": replace(lambda w: w.astype(int) if isinstance(w, np.ndarray) else w.long()),
    "not finite": nan,
}  # fmt: skip


@pytest.mark.parametrize("at", [0, 1, 2])
@pytest.mark.parametrize("broken", BROKEN)
def test_errors_are_those_of_the_long_way(library, broken, at) -> None:
    states = [copy.deepcopy(state) for state in states_of(library)]
    BROKEN[broken](states[at])
    assert short_way(states) is None
    with pytest.raises((LayoutError, TypeError, NonFiniteError)) as expected:
        long_way(states)
    with pytest.raises(type(expected.value)) as raised:
        mean(states)
    assert str(raised.value) == str(expected.value)


class Renamed(dict[str, Any]):
    """A mapping that looks its entries up in its own way."""

    def __getitem__(self, name: str) -> Any:
        return dict.__getitem__(self, name) + 1


OTHERS = {
    "strided": lambda states: states[1].update(w=states[1]["w"].T.copy().T if isinstance(
        states[1]["w"], np.ndarray) else states[1]["w"].T.contiguous().T),
    "integers": lambda states: [state.update(n=state["b"].astype(int) if isinstance(
        state["b"], np.ndarray) else state["b"].long()) for state in states],
    "tied": lambda states: [state.update(tied=state["w"]) for state in states],
    "its own mapping": lambda states: states.append(Renamed(states[0])),
}  # fmt: skip


@pytest.mark.parametrize("other", OTHERS)
def test_what_is_not_plain_takes_the_long_way(library, other) -> None:
    states = states_of(library)
    OTHERS[other](states)
    assert short_way(states) is None
    result = mean(states)
    assert bits(result) == bits(long_way(states))
    if other == "tied":
        assert result["tied"] is result["w"]


def test_outputs_that_do_not_fit_are_refused_as_before(library) -> None:
    states = states_of(library)
    base = np.zeros(40, np.float32) if library == "numpy" else torch.zeros(40)
    outs = {
        "missing": {k: v for k, v in like(states[0]).items() if k != "b"},
        "unexpected": like(states[0]) | {"x": like(states[0])["b"]},
        "shape": like(states[0]) | {"b": like(states[0])["b"][:2]},
        "strided": like(states[0]) | {"b": base[0:10:2]},
        "input": like(states[0]) | {"b": states[1]["b"]},
        "each other": like(states[0]) | {"b": base[:5], "w": base[4:16].reshape(3, 4)},
        "none": like(states[0]) | {"b": None},
        "an array": base,
    }
    for name, out in outs.items():
        before = bits(states[1])
        assert short_way(states, None, out) is None, name
        with pytest.raises((LayoutError, TypeError, ValueError)) as expected:
            long_way(states, out=out)
        with pytest.raises(type(expected.value)) as raised:
            mean(states, out=out)
        assert str(raised.value) == str(expected.value)
        assert bits(states[1]) == before
    assert (base == 0).all()


def test_a_read_only_output_is_not_written(library) -> None:
    if library == "torch":
        pytest.skip("torch has no read-only tensors")
    states = states_of(library)
    out = like(states[0])
    out["a"].flags.writeable = False
    assert short_way(states, None, out) is None
    with pytest.raises(ValueError, match=r"out\['a'\] must be a writable"):
        mean(states, out=out)


def test_tensors_that_are_written_say_so(library) -> None:
    if library == "numpy":
        pytest.skip("numpy keeps no versions")
    states = states_of(library)
    out = like(states[0])
    versions = {name: tensor._version for name, tensor in out.items()}
    short_way(states, None, out)
    assert {name: tensor._version - 1 for name, tensor in out.items()} == versions
    out["b"].requires_grad_()
    with pytest.raises(ValueError, match=r"out\['b'\] must not require gradients"):
        mean(states, out=out)
    with torch.inference_mode():
        inference = like(states[0])
    assert short_way(states, None, inference) is inference


def test_parameters_of_a_module_are_plain(library) -> None:
    if library == "numpy":
        pytest.skip("numpy has no parameters")
    models = [torch.nn.Linear(3, 2) for _ in range(2)]
    parameters = [dict(model.named_parameters()) for model in models]
    expected = long_way([model.state_dict() for model in models])
    assert bits(short_way(parameters)) == bits(expected)
    assert bits(short_way([model.state_dict() for model in models])) == bits(expected)


@pytest.mark.parametrize("nonfinite", ["raise", "propagate", "drop"])
def test_values_that_are_not_finite_follow_the_policy(library, nonfinite) -> None:
    states = states_of(library)
    nan(states[1])
    if nonfinite == "raise":
        with pytest.raises(NonFiniteError, match="client 1 in entry 'b' at flat index 3"):
            mean(states, nonfinite=nonfinite)
    elif nonfinite == "propagate":
        result = np.asarray(mean(states, nonfinite=nonfinite)["b"])
        assert np.isnan(result).tolist() == [False, False, False, True, False]
    else:
        with pytest.warns(RuntimeWarning, match="left out client"):
            result = mean(states, nonfinite=nonfinite)
        assert bits(result) == bits(long_way([states[0], states[2]]))


def test_mappings_without_entries_have_an_empty_mean(library) -> None:
    assert mean([{}, {}]) == long_way([{}, {}]) == {}


def test_a_lookup_that_fails_otherwise_is_told(library) -> None:
    class Unhashable(str):
        __slots__ = ()
        __hash__ = None  # type: ignore[assignment]

    api = _arrays.exchange_api() if library == "torch" else None
    with pytest.raises(TypeError, match="unhashable"):
        core.plain_entries({"w": 1}, [Unhashable("w")], api)
