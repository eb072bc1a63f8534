"""IDX and CIFAR files: written here as published, then truncated and damaged."""

from __future__ import annotations

import gzip
import struct

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedbench.data import load_cifar10, load_cifar100, load_emnist, load_mnist, read_idx
from fedbench.errors import DataFormatError

IDX_CODES = {"u1": 8, "i1": 9, "i2": 11, "i4": 12, "f4": 13, "f8": 14}


def idx_bytes(array):
    kind = array.dtype.str[1:]
    header = bytes([0, 0, IDX_CODES[kind], array.ndim]) + struct.pack(
        f">{array.ndim}I", *array.shape
    )
    return header + array.astype(f">{kind}").tobytes()


def images(count, seed=0, size=28):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (count, size, size), dtype=np.uint8)


def write_mnist(folder, *, compress=False, prefix="", test="t10k", labels=(5, 0, 4, 9)):
    pixels, targets = images(4), np.array(labels, np.uint8)
    for part, rows in (("train", slice(None)), (test, slice(2))):
        for kind, array in (("images-idx3", pixels[rows]), ("labels-idx1", targets[rows])):
            data = idx_bytes(array)
            path = folder / f"{prefix}{part}-{kind}-ubyte{'.gz' if compress else ''}"
            path.write_bytes(gzip.compress(data) if compress else data)
    return pixels


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kind=st.sampled_from(sorted(IDX_CODES)),
    shape=st.lists(st.integers(0, 5), min_size=0, max_size=4),
    compress=st.booleans(),
)
def test_idx_round_trip(tmp_path, kind, shape, compress):
    array = np.random.default_rng(0).integers(0, 100, shape).astype(kind)
    data = idx_bytes(array)
    path = tmp_path / "file"
    path.write_bytes(gzip.compress(data) if compress else data)
    read = read_idx(path)
    assert read.dtype == array.dtype
    assert read.dtype.isnative
    assert np.array_equal(read, array)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), compress=st.booleans())
def test_truncated_idx_files_are_refused(tmp_path, data, compress):
    whole = idx_bytes(images(2, size=3))
    whole = gzip.compress(whole) if compress else whole
    cut = data.draw(st.integers(0, len(whole) - 1))
    path = tmp_path / "images"
    path.write_bytes(whole[:cut])
    with pytest.raises(DataFormatError, match="images: "):
        read_idx(path)


def test_trailing_bytes_and_other_files_are_refused(tmp_path):
    path = tmp_path / "images"
    path.write_bytes(idx_bytes(images(2, size=3)) + b"\0")
    with pytest.raises(DataFormatError, match=r"data: must have 34 bytes .* got 35"):
        read_idx(path)
    path.write_bytes(b"\x89PNG\r\n")
    with pytest.raises(DataFormatError, match="header: must start with an IDX magic number"):
        read_idx(path)
    path.write_bytes(b"\0\0\x08\x04" + b"\xff" * 16)
    with pytest.raises(DataFormatError, match="for the shape"):
        read_idx(path)


@pytest.mark.parametrize("compress", [False, True])
def test_mnist_files(tmp_path, compress):
    pixels = write_mnist(tmp_path, compress=compress)
    dataset = load_mnist(tmp_path)
    assert dataset.inputs.shape == (4, 1, 28, 28)
    assert torch.equal(dataset.inputs[:, 0], torch.from_numpy(pixels).float() / 255)
    assert dataset.targets.tolist() == [5, 0, 4, 9]
    assert (dataset.num_classes, dataset.test_targets.tolist()) == (10, [5, 0])


def test_emnist_files_are_turned_upright_and_numbered_from_zero(tmp_path):
    pixels = write_mnist(tmp_path, prefix="emnist-letters-", test="test", labels=(1, 26, 3, 4))
    dataset = load_emnist(tmp_path, split="letters")
    assert torch.equal(dataset.inputs[1, 0], torch.from_numpy(pixels[1].T.copy()).float() / 255)
    assert dataset.targets.tolist() == [0, 25, 2, 3]
    assert dataset.num_classes == 26
    with pytest.raises(ValueError, match=r"split must be one of byclass.*got 'letter'"):
        load_emnist(tmp_path, split="letter")


def test_mnist_files_that_do_not_belong_together_are_refused(tmp_path):
    write_mnist(tmp_path)
    labels = tmp_path / "t10k-labels-idx1-ubyte"
    labels.write_bytes(idx_bytes(np.zeros(3, np.uint8)))
    with pytest.raises(DataFormatError, match=r"t10k-labels.*one label per image \(2\)"):
        load_mnist(tmp_path)
    labels.write_bytes(idx_bytes(np.array([1, 12], np.uint8)))
    with pytest.raises(DataFormatError, match=r"sample 1, label: .*\[0, 10\), got 12"):
        load_mnist(tmp_path)
    (tmp_path / "train-images-idx3-ubyte").write_bytes(idx_bytes(np.zeros(4, np.uint8)))
    with pytest.raises(DataFormatError, match="must hold bytes in three dimensions"):
        load_mnist(tmp_path)
    (tmp_path / "train-images-idx3-ubyte").unlink()
    with pytest.raises(FileNotFoundError, match="must contain train-images-idx3-ubyte or"):
        load_mnist(tmp_path)
    with pytest.raises(FileNotFoundError, match="folder must be an existing folder"):
        load_mnist(tmp_path / "nowhere")


def cifar_records(count, labels, seed=0):
    rng = np.random.default_rng(seed)
    records = rng.integers(0, 256, (count, labels + 3072), dtype=np.uint8)
    records[:, :labels] = rng.integers(0, 10, (count, labels))
    return records


def test_cifar10_files(tmp_path):
    batches = [cifar_records(3, 1, seed) for seed in range(6)]
    names = [f"data_batch_{number}.bin" for number in range(1, 6)] + ["test_batch.bin"]
    for name, records in zip(names, batches, strict=True):
        (tmp_path / name).write_bytes(records.tobytes())
    dataset = load_cifar10(tmp_path)
    assert dataset.inputs.shape == (15, 3, 32, 32)
    assert dataset.targets[3:6].tolist() == batches[1][:, 0].tolist()
    # The first 1024 bytes are the red channel, row by row.
    assert torch.equal(
        dataset.inputs[4, 0].flatten(), torch.from_numpy(batches[1][1, 1:1025]) / 255
    )
    assert dataset.test_inputs.shape == (3, 3, 32, 32)

    damaged = batches[2].copy()
    damaged[1, 0] = 10
    (tmp_path / "data_batch_3.bin").write_bytes(damaged.tobytes())
    with pytest.raises(DataFormatError, match=r"data_batch_3.bin: sample 1, label: .*got 10"):
        load_cifar10(tmp_path)
    for cut in (0, 1, 3072, 3074, 9218):
        (tmp_path / "data_batch_3.bin").write_bytes(batches[2].tobytes()[:cut])
        with pytest.raises(DataFormatError, match=f"record {cut // 3073}: must have 3073 bytes"):
            load_cifar10(tmp_path)
    (tmp_path / "data_batch_3.bin").unlink()
    with pytest.raises(FileNotFoundError, match=r"data_batch_3.bin.*binary version"):
        load_cifar10(tmp_path)


def test_cifar100_files_have_two_labels(tmp_path):
    records = cifar_records(4, 2)
    records[0, :2] = 19, 99
    for name in ("train.bin", "test.bin"):
        (tmp_path / name).write_bytes(records.tobytes())
    fine, coarse = load_cifar100(tmp_path), load_cifar100(tmp_path, coarse=True)
    assert (fine.num_classes, int(fine.targets[0])) == (100, 99)
    assert (coarse.num_classes, int(coarse.targets[0])) == (20, 19)
    assert torch.equal(fine.inputs, coarse.inputs)
