"""Packing state dicts against ``torch.cat``.

``pytest benchmarks/bench_layout.py`` times packing and unpacking. Run as a program, it times
them and torch in turns on one thread each, and fails if a promised ratio is missed.
"""

import argparse
import functools
import sys

import pytest
import torch
from bench_mean import resnet18_shapes
from interleaved import interleaved, ratios, table

from fedbench import aggregation
from fedbench.aggregation import FlatLayout


def resnet18_state():
    """A state dict of ResNet-18's size."""
    return {str(i): torch.randn(shape) for i, shape in enumerate(resnet18_shapes())}


def reused_candidates():
    """Packing into memory that is there."""
    state = resnet18_state()
    layout = FlatLayout.from_state(state)
    out = torch.empty(layout.size)
    flat = [value.reshape(-1) for value in state.values()]
    return {
        "fedbench pack into a reused buffer": functools.partial(layout.pack, state, out),
        "torch.cat(out=)": functools.partial(torch.cat, flat, out=out),
    }


def fresh_candidates():
    """Packing into memory of its own."""
    state = resnet18_state()
    layout = FlatLayout.from_state(state)
    flat = [value.reshape(-1) for value in state.values()]
    return {
        "torch.cat": functools.partial(torch.cat, flat),
        "fedbench pack": functools.partial(layout.pack, state),
    }


def unpack_candidates():
    """Copying a flat vector back into a state."""
    state = resnet18_state()
    layout = FlatLayout.from_state(state)
    flat = layout.pack(state)

    def copy_back():
        at = 0
        for value in state.values():
            value.copy_(flat[at : at + value.numel()].view_as(value))
            at += value.numel()

    return {
        "fedbench unpack(out=)": functools.partial(layout.unpack, flat, state),
        "torch copy_ of slices": copy_back,
    }


@pytest.mark.parametrize("target", ["reused", "fresh"])
def test_pack(benchmark, target):
    candidates = reused_candidates() if target == "reused" else fresh_candidates()
    benchmark(next(run for name, run in candidates.items() if name.startswith("fedbench")))


def test_unpack(benchmark):
    benchmark(unpack_candidates()["fedbench unpack(out=)"])


def main():
    """Print the tables; return the number of missed ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    repeats = parser.parse_args().repeats
    aggregation.set_num_threads(1)
    torch.set_num_threads(1)
    seconds = interleaved(reused_candidates(), repeats)
    print(table("into a reused buffer, microseconds (at most 1.05)", seconds, "torch.cat(out=)"))
    missed = int(ratios(seconds, "torch.cat(out=)")["fedbench pack into a reused buffer"] > 1.05)
    seconds = interleaved(fresh_candidates(), repeats)
    print(table("into a fresh buffer, microseconds (at most 0.6)", seconds, "torch.cat"))
    missed += ratios(seconds, "torch.cat")["fedbench pack"] > 0.6
    seconds = interleaved(unpack_candidates(), repeats)
    print(table("back into a state, microseconds", seconds, "fedbench unpack(out=)"))
    print(f"{missed} promised ratios missed")
    return missed


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
