"""FlatLayout: by name, exact, views when possible, errors that name the entry."""

from __future__ import annotations

import pickle
import re
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedbench.aggregation import FlatLayout, _arrays, _outputs
from fedbench.errors import LayoutError


def model() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.Linear(4, 2)
    )


def same(a: dict, b: dict) -> bool:
    return set(a) == set(b) and all(
        a[name].dtype == b[name].dtype
        and a[name].shape == b[name].shape
        and bytes(np.asarray(a[name]).tobytes()) == bytes(np.asarray(b[name]).tobytes())
        for name in a
    )


DTYPES = [np.float32, np.float64, np.float16, np.int8, np.int64, np.uint16, np.bool_]


@settings(max_examples=150)
@given(
    st.dictionaries(
        st.text(max_size=5),
        st.sampled_from(DTYPES).flatmap(
            lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0))
        ),
        max_size=6,
    )
)
def test_round_trip_of_any_state(state: dict) -> None:
    layout = FlatLayout.from_state(state)
    flat = layout.pack(state)
    assert flat.shape == (layout.size,)
    assert same(layout.unpack(flat), state)
    target = {name: np.zeros_like(value) for name, value in state.items()}
    layout.unpack(flat, out=target)
    assert same(target, state)
    again = layout.pack(dict(reversed(state.items())), out=np.empty_like(flat))
    assert again.tobytes() == flat.tobytes()


def test_one_dtype_packs_to_that_dtype_without_gaps() -> None:
    state = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor(7.0), "c": torch.empty(0, 3)}
    layout = FlatLayout.from_state(state)
    assert (layout.dtype, layout.size, layout.nbytes) == ("float32", 7, 28)
    assert layout.offsets == (0, 24, 28)
    assert layout.pack(state).tolist() == [0, 1, 2, 3, 4, 5, 7]


def test_mixed_dtypes_keep_every_bit() -> None:
    state = {
        "weight": torch.tensor([1.5], dtype=torch.bfloat16),
        "double": torch.tensor([1e-300], dtype=torch.float64),
        "steps": torch.tensor(2**24 + 1),
        "mask": torch.tensor([True, False, True]),
        "half": torch.tensor([65504.0], dtype=torch.float16),
    }
    layout = FlatLayout.from_state(state)
    assert layout.dtype == "uint8"
    back = layout.unpack(layout.pack(state))
    assert all(torch.equal(back[name], state[name]) for name in state)
    assert all(back[name].dtype is state[name].dtype for name in state)
    assert all(offset % 8 == 0 for offset in layout.offsets)


def test_unpack_gives_views_and_tied_entries_stay_tied() -> None:
    shared = torch.ones(2, 2)
    state = {"embed": shared, "bias": torch.zeros(2), "head": shared}
    layout = FlatLayout.from_state(state)
    assert layout.tied == (("head", "embed"),)
    assert layout.size == layout.numel == 6
    flat = layout.pack(state)
    views = layout.unpack(flat)
    assert views["head"] is views["embed"]
    flat[0] = 9.0
    assert views["embed"][0, 0] == 9.0
    untied = {"embed": torch.ones(2, 2), "bias": torch.zeros(2), "head": torch.ones(2, 2)}
    assert torch.equal(layout.pack(untied), layout.pack(state))
    untied["head"][1, 1] = 5.0
    with pytest.raises(LayoutError, match=r"state\['head'\] must equal state\['embed'\]"):
        layout.pack(untied)


def test_a_module_round_trips_in_place() -> None:
    source, target = model(), model()
    layout = FlatLayout.from_state(source.state_dict())
    layout.unpack(layout.pack(source.state_dict()), out=target.state_dict())
    assert same(source.state_dict(), target.state_dict())


def test_strided_and_channels_last_entries() -> None:
    x = torch.arange(24.0).reshape(1, 2, 3, 4)
    state = {"x": x.contiguous(memory_format=torch.channels_last), "t": x[0, 0].T}
    layout = FlatLayout.from_state(state)
    back = layout.unpack(layout.pack(state))
    assert torch.equal(back["x"], x)
    assert torch.equal(back["t"], x[0, 0].T)
    target = {
        "x": torch.zeros_like(state["x"]),
        "t": torch.zeros(3, 4).T,
    }
    layout.unpack(layout.pack(state), out=target)
    assert torch.equal(target["x"], x)
    assert torch.equal(target["t"], x[0, 0].T)
    numpy_target = {"a": np.zeros(6, np.float32)[::2]}
    numpy_layout = FlatLayout.from_state(numpy_target)
    numpy_layout.unpack(np.float32([1, 2, 3]), out=numpy_target)
    assert numpy_target["a"].tolist() == [1, 2, 3]


def test_names_shapes_and_dtypes_are_exact() -> None:
    state = {"a": np.zeros(3, np.float32), "b": np.zeros((2, 1), np.float32)}
    layout = FlatLayout.from_state(state)
    with pytest.raises(LayoutError, match=r"state must have the entries.*missing 'b'"):
        layout.pack({"a": state["a"]})
    with pytest.raises(LayoutError, match="unexpected 'c'"):
        layout.pack({**state, "c": state["a"]})
    with pytest.raises(LayoutError, match=r"state\['b'\] must be .* shape \(2, 1\), got .*\(2,\)"):
        layout.pack({"a": state["a"], "b": np.zeros(2, np.float32)})
    with pytest.raises(LayoutError, match=r"state\['a'\] .*float32.* got numpy float64"):
        layout.pack({"a": np.zeros(3), "b": state["b"]})
    with pytest.raises(LayoutError, match="got torch float32"):
        layout.pack({"a": torch.zeros(3), "b": state["b"]})
    with pytest.raises(LayoutError, match=r"flat must be .* shape \(5,\), got .* shape \(4,\)"):
        layout.unpack(np.zeros(4, np.float32))
    with pytest.raises(TypeError, match="flat must be a numpy array"):
        layout.unpack([1.0] * 5)
    with pytest.raises(TypeError, match="state must be a mapping"):
        layout.pack([1])


def test_a_failed_pack_or_unpack_writes_nothing() -> None:
    state = {"a": np.ones(3, np.float32), "b": np.ones(2, np.float32)}
    layout = FlatLayout.from_state(state)
    out = np.zeros(5, np.float32)
    with pytest.raises(LayoutError):
        layout.pack({"a": state["a"], "b": np.ones(3, np.float32)}, out=out)
    assert not out.any()
    frozen = {"a": np.zeros(3, np.float32), "b": np.zeros(2, np.float32)}
    frozen["b"].flags.writeable = False
    with pytest.raises(LayoutError, match=r"out\['b'\] must be writable"):
        layout.unpack(layout.pack(state), out=frozen)
    assert not frozen["a"].any()


def test_overlap_is_refused() -> None:
    flat = np.zeros(5, np.float32)
    state = {"a": flat[:3], "b": np.zeros(2, np.float32)}
    layout = FlatLayout.from_state(state)
    with pytest.raises(ValueError, match="out must not share memory with state"):
        layout.pack(state, out=flat)
    with pytest.raises(ValueError, match="flat must not share memory with out"):
        layout.unpack(flat, out=state)


def test_unsupported_entries_are_named() -> None:
    with pytest.raises(TypeError, match=r"state\['z'\] must have one of the dtypes.*complex64"):
        FlatLayout.from_state({"z": torch.ones(1, dtype=torch.complex64)})
    with pytest.raises(TypeError, match=r"state\['extra'\] must be a numpy array"):
        FlatLayout.from_state({"extra": {"nested": 1}})
    with pytest.raises(LayoutError, match="got both"):
        FlatLayout.from_state({"a": np.ones(1), "b": torch.ones(1)})
    with pytest.raises(TypeError, match="must be a mapping"):
        FlatLayout.from_state([np.ones(1)])


def test_local_buffers_stay_out() -> None:
    net = model()
    names = [name for name, _ in net.named_buffers()]
    layout = FlatLayout.from_state(net.state_dict(), buffers="local", buffer_names=names)
    assert not set(names) & set(layout.names)
    assert layout.dtype == "float32"
    with pytest.raises(ValueError, match="named_buffers"):
        FlatLayout.from_state(net.state_dict(), buffers="local")
    with pytest.raises(LayoutError, match="got 'nope'"):
        FlatLayout.from_state(net.state_dict(), buffers="local", buffer_names=["nope"])
    with pytest.raises(ValueError, match="'average' or 'local', got 'max'"):
        FlatLayout.from_state(net.state_dict(), buffers="max")


def test_layouts_compare_hash_and_pickle() -> None:
    state = model().state_dict()
    layout = FlatLayout.from_state(state)
    assert layout == FlatLayout.from_state(state)
    assert hash(layout) == hash(FlatLayout.from_state(state))
    copy = pickle.loads(pickle.dumps(layout))
    assert copy == layout
    assert same(copy.unpack(layout.pack(state)), dict(state))
    assert layout != FlatLayout.from_state({"a": torch.ones(1)})


def test_empty_state() -> None:
    layout = FlatLayout.from_state({})
    assert layout.unpack(layout.pack({})) == {}


@pytest.mark.slow
def test_more_than_two_to_the_31_elements() -> None:
    state = {"a": np.zeros(2**31 + 3, np.int8), "b": np.int8([1, 2, 3])}
    layout = FlatLayout.from_state(state)
    flat = layout.pack(state)
    assert flat[-3:].tolist() == [1, 2, 3]
    assert layout.unpack(flat)["b"].tolist() == [1, 2, 3]


class Mapped(dict):
    """A mapping that is inspected entry by entry, because it may look entries up in its own way."""


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_both_ways_of_inspection_pack_the_same_bytes(library, monkeypatch) -> None:
    if library == "torch" and _arrays.exchange_api() is None:
        pytest.skip("this torch has no __dlpack_c_exchange_api__ (2.10 and newer have)")
    rng = np.random.default_rng(0)
    shapes = {"w": (3, 4), "b": (), "none": (0, 2), "c": (5,)}
    state = {name: np.asarray(rng.standard_normal(s), np.float32) for name, s in shapes.items()}
    state["half"] = state["c"].astype(np.float16)
    if library == "torch":
        state = {name: torch.from_numpy(array) for name, array in state.items()}
    layout = FlatLayout.from_state(state)
    shuffled = {name: state[name] for name in ("c", "half", "w", "none", "b")}
    expected = bytes(np.asarray(layout.pack(Mapped(shuffled))))
    out = layout.pack(state) * 0
    monkeypatch.setattr(FlatLayout, "_described", lambda *arguments: pytest.fail("the long way"))
    assert bytes(np.asarray(layout.pack(shuffled))) == expected
    assert layout.pack(shuffled, out) is out
    assert bytes(np.asarray(out)) == expected
    aliased = state | {"w": out[:48].view(state["w"].dtype).reshape(3, 4)}
    with pytest.raises(ValueError, match="out must not share memory with state"):
        layout.pack(aliased, out)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (np.zeros(3, np.float32), "got numpy float32 with shape (3,)"),
        (np.zeros(2, np.float64), "got numpy float64 with shape (2,)"),
        (torch.zeros(2), "got torch float32 with shape (2,)"),
        (None, "got NoneType"),
    ],
)
def test_both_ways_of_inspection_name_the_entry(entry, message) -> None:
    good = {"b": np.zeros(1, np.float32), "w": np.zeros(2, np.float32)}
    layout = FlatLayout.from_state(good)
    for kind in (dict, Mapped):
        with pytest.raises((LayoutError, TypeError), match=re.escape(message)) as raised:
            layout.pack(kind(good | {"w": entry}))
        assert str(raised.value).startswith("state['w'] must be ")


@pytest.mark.parametrize("library", [np, torch], ids=["numpy", "torch"])
def test_arrays_that_another_thread_replaces_stay_alive_while_they_are_packed(
    library: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The dict gets new arrays, and the old ones' memory other numbers, before the copy begins."""
    state = {name: library.ones(3_000_000, dtype=library.float32) for name in "abc"}
    layout = FlatLayout.from_state(state)
    output_buffer = _outputs.output_buffer

    def replace(*arguments: Any) -> Any:
        for name in state:
            state[name] = library.zeros(3_000_000, dtype=library.float32)
        return output_buffer(*arguments)

    monkeypatch.setattr("fedbench.aggregation.layout.output_buffer", replace)
    assert bool((layout.pack(state) == 1.0).all())


def test_a_buffer_that_begins_between_two_words_is_copied() -> None:
    for state in (
        {"flag": torch.tensor([True]), "w": torch.arange(2, dtype=torch.float64)},
        {"flag": np.array([True]), "w": np.arange(2.0)},
    ):
        layout = FlatLayout.from_state(state)
        raw = layout.pack(state)
        if isinstance(raw, torch.Tensor):
            moved = torch.cat([torch.zeros(1, dtype=torch.uint8), raw])[1:]
        else:
            moved = np.concatenate([np.zeros(1, np.uint8), raw])[1:]
        back = layout.unpack(moved)
        assert back["w"].tolist() == [0.0, 1.0]
        assert back["flag"].tolist() == [True]
        assert _arrays.address(_arrays.describe(back["w"], "w")) % 8 == 0
