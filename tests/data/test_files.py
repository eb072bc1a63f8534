"""``.npz`` files, torch datasets, image folders, tables."""

from __future__ import annotations

import gzip
import importlib.util
import io

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedbench.data import from_torch_dataset, load_image_folder, load_npz, load_table
from fedbench.errors import DataFormatError

needs_pillow = pytest.mark.skipif(
    importlib.util.find_spec("PIL") is None, reason="Pillow (extra `data`) is not installed"
)
needs_pyarrow = pytest.mark.skipif(
    importlib.util.find_spec("pyarrow") is None, reason="the extra `parquet` is not installed"
)


def arrays(**changes):
    rng = np.random.default_rng(0)
    return {
        "x_train": rng.random((10, 3)),
        "y_train": np.arange(10) % 3,
        "x_test": rng.random((4, 3)),
        "y_test": np.arange(4) % 3,
    } | changes


@pytest.fixture
def npz(tmp_path):
    def write(**content):
        np.savez(tmp_path / "data.npz", **content)
        return tmp_path / "data.npz"

    return write


def test_npz_with_the_names_of_keras(npz):
    dataset = load_npz(npz(**arrays()))
    assert dataset.inputs.dtype == torch.float32
    assert (dataset.inputs.shape, dataset.test_inputs.shape) == ((10, 3), (4, 3))
    assert dataset.num_classes == 3


def test_npz_without_test_arrays_is_split_with_its_clients(npz):
    path = npz(X=np.arange(40).reshape(20, 2), y=np.arange(20) % 2, who=["a", "ß"] * 10)
    dataset = load_npz(path, inputs="X", targets="y", clients="who", test_fraction=0.25, seed=1)
    assert dataset.inputs.dtype == torch.int64
    assert len(dataset) == 16
    for row, key in zip(dataset.inputs.tolist(), dataset.client_keys, strict=True):
        assert key == ["a", "ß"][row[0] // 2 % 2]


@pytest.mark.parametrize(
    ("shape", "expected"), [((5, 4, 6), (5, 1, 4, 6)), ((5, 4, 6, 3), (5, 3, 4, 6))]
)
def test_npz_images_get_their_channels_first(npz, shape, expected):
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    labels = np.array([[0], [1], [0], [1], [0]])  # Keras's CIFAR has targets [n, 1]
    path = npz(x_train=pixels, y_train=labels, x_test=pixels, y_test=labels)
    dataset = load_npz(path)
    assert dataset.inputs.shape == expected
    assert dataset.inputs[1, -1, 2, 3] == np.float32(pixels[1, 2, 3].flat[-1]) / np.float32(255)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y_train": np.arange(9)}, r"'y_train'.*one target per sample of 'x_train' \(10\), got 9"),
        ({"y_train": np.full(10, -1)}, "sample 0, array 'y_train'.*got -1"),
        ({"y_test": np.full(4, 3)}, r"sample 0, array 'y_test'.*\[0, 3\), got 3"),
        ({"y_train": np.zeros(10)}, "array 'y_train'.*one integer class per sample, got float64"),
        ({"x_train": np.full((10, 3), np.nan)}, "sample 0, array 'x_train'.*must be finite"),
        ({"x_train": np.full((10, 3), 1e300)}, "sample 0, array 'x_train'.*must be finite"),
        ({"x_train": np.array(["a"] * 10)}, "array 'x_train'.*must hold numbers"),
        ({"x_train": np.float32(3)}, "array 'x_train'.*got a scalar"),
        ({"x_train": np.array([None] * 10)}, "array 'x_train': cannot be read: Object arrays"),
    ],
)
def test_wrong_arrays_are_refused_by_name(npz, changes, message):
    path = npz(**arrays(**changes))
    with pytest.raises(DataFormatError, match=message) as caught:
        load_npz(path)
    assert str(path) in str(caught.value)


def test_missing_arrays_are_refused_with_what_is_there(npz):
    content = arrays()
    del content["y_test"]
    with pytest.raises(DataFormatError, match=r"'y_test'.*has x_train, y_train, x_test"):
        load_npz(npz(**content))
    with pytest.raises(DataFormatError, match=r"'who'.*must be in the file"):
        load_npz(npz(**arrays()), clients="who")
    with pytest.raises(DataFormatError, match=r"'who'.*one client per sample"):
        load_npz(npz(**arrays(who=np.arange(3))), clients="who")


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_truncated_npz_files_are_refused(tmp_path, data):
    whole = io.BytesIO()
    np.savez(whole, **arrays())
    cut = data.draw(st.integers(0, len(whole.getvalue()) - 1))
    path = tmp_path / "data.npz"
    path.write_bytes(whole.getvalue()[:cut])
    with pytest.raises(DataFormatError, match=r"data.npz: "):
        load_npz(path)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_npz_files_never_give_other_numbers(tmp_path, data):
    whole = io.BytesIO()
    np.savez_compressed(whole, **arrays())
    raw = bytearray(whole.getvalue())
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path = tmp_path / "data.npz"
    path.write_bytes(raw)
    try:
        dataset = load_npz(path)
    except DataFormatError:
        return
    expected = arrays()
    assert np.array_equal(dataset.inputs.numpy(), expected["x_train"].astype(np.float32))


def test_npz_that_is_a_single_array_or_missing(tmp_path):
    np.save(tmp_path / "one.npy", np.zeros(3))
    (tmp_path / "one.npy").rename(tmp_path / "one.npz")
    with pytest.raises(DataFormatError, match=r"one.npz: cannot be read: File is not a zip file"):
        load_npz(tmp_path / "one.npz")
    with pytest.raises(FileNotFoundError, match="path must be an existing file"):
        load_npz(tmp_path / "none.npz")


class ListDataset(torch.utils.data.Dataset):
    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]


def test_torch_datasets_are_read_whole():
    items = [(torch.full((1, 2, 2), float(k)), k % 2) for k in range(10)]
    both = from_torch_dataset(ListDataset(items), ListDataset(items[:2]))
    assert both.inputs[3].tolist() == [[[3.0, 3.0], [3.0, 3.0]]]
    assert both.targets.tolist() == [0, 1] * 5
    split = from_torch_dataset(ListDataset(items), client_keys=list("abababacac"), num_classes=5)
    assert (len(split), len(split.test_targets), split.num_classes) == (8, 2, 5)
    tensors = torch.utils.data.TensorDataset(torch.rand(4, 3), torch.tensor([0, 1, 1, 0]))
    subset = torch.utils.data.Subset(tensors, [3, 1])
    assert from_torch_dataset(subset, tensors).targets.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("items", "error", "message"),
    [
        ([], ValueError, "train must have at least one sample"),
        ([(torch.zeros(2), 0), 5], TypeError, "sample 1 is not one"),
        ([(torch.zeros(2), 0), (torch.zeros(3), 0)], TypeError, r"shape \(2,\), but sample 1"),
        ([(torch.zeros(2), "cat")], TypeError, "sample 0 is not one"),
        ([("cat", 0)], TypeError, "inputs of numbers, but sample 0"),
        ([(torch.tensor([torch.nan]), 0)] * 9, ValueError, "must be finite.*sample 0"),
        ([(torch.zeros(1), -2)] * 9, ValueError, "num_classes must be an integer >= 1"),
    ],
)
def test_wrong_torch_datasets_are_refused(items, error, message):
    with pytest.raises(error, match=message):
        from_torch_dataset(ListDataset(items))


def test_a_dataset_without_length_is_refused():
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter([])

    with pytest.raises(TypeError, match="train must be a dataset with a length, got Stream"):
        from_torch_dataset(Stream())


@pytest.fixture
def folder(tmp_path):
    image = pytest.importorskip("PIL.Image", reason="Pillow (extra `data`) is not installed")
    for label, name in enumerate(["Ärger", "cat"]):
        for number in range(5):
            path = tmp_path / "train" / name / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            pixels = np.full((4, 6, 3), 40 * number + label, np.uint8)
            image.fromarray(pixels).save(path)
    (tmp_path / "train" / "cat" / "notes.txt").write_text("ignored")
    return tmp_path / "train"


@needs_pillow
def test_image_folders(folder):
    dataset = load_image_folder(folder, folder)
    assert dataset.inputs.shape == (10, 3, 4, 6)
    assert dataset.num_classes == 2
    # "cat" sorts before the umlaut.
    assert (dataset.inputs[:, 0, 0, 0] * 255).round().int().tolist() == [
        *(40 * number + 1 for number in range(5)),
        *(40 * number for number in range(5)),
    ]
    gray = load_image_folder(folder, image_size=8, grayscale=True, test_fraction=0.4)
    assert gray.inputs.shape == (6, 1, 8, 8)
    assert gray.test_inputs.shape == (4, 1, 8, 8)


@needs_pillow
def test_wrong_image_folders_are_refused_with_the_file(folder, tmp_path):
    whole = (folder / "cat" / "3.png").read_bytes()
    for damaged in (b"", whole[:20], whole[: len(whole) // 2], b"text", whole[:40] + b"\0" * 40):
        (folder / "cat" / "3.png").write_bytes(damaged)
        with pytest.raises(DataFormatError, match=r"3.png: must be a readable image"):
            load_image_folder(folder)
    from PIL import Image

    Image.fromarray(np.zeros((5, 6, 3), np.uint8)).save(folder / "cat" / "3.png")
    with pytest.raises(DataFormatError, match=r"3.png: must have 4x6 pixels.*got 5x6"):
        load_image_folder(folder)
    (tmp_path / "test" / "dog").mkdir(parents=True)
    with pytest.raises(DataFormatError, match="class 'dog': must be one of the classes"):
        load_image_folder(folder, tmp_path / "test", image_size=4)
    with pytest.raises(DataFormatError, match="must have images in its folders, got none"):
        load_image_folder(tmp_path / "test")
    with pytest.raises(DataFormatError, match="one folder per class, got none"):
        load_image_folder(tmp_path / "test" / "dog")


CSV = """a,b,label,client
1,0.5,cat,x
2,1e3,dog,y
3,-1,cat,x
4,0,dog,ż
5,2,cat,ż
"""


@pytest.fixture
def csv(tmp_path):
    def write(text, name="data.csv"):
        path = tmp_path / name
        path.write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
        return path

    return write


@pytest.mark.parametrize("name", ["data.csv", "data.csv.gz"])
def test_csv_with_class_names_and_clients(csv, name):
    path = csv(CSV, name)
    dataset = load_table(path, path, target="label", client="client")
    assert dataset.inputs[1].tolist() == [2, 1000]
    assert dataset.targets.tolist() == [0, 1, 0, 1, 0]
    assert dataset.client_keys == ["x", "y", "x", "ż", "ż"]
    assert dataset.federate_by_key().client_ids == ("x", "y", "ż")


def test_csv_regression_and_chosen_features(csv):
    path = csv(CSV)
    dataset = load_table(path, path, target="a", features=["b"], regression=True)
    assert dataset.num_classes is None
    assert dataset.targets.tolist() == [1, 2, 3, 4, 5]
    assert dataset.inputs.shape == (5, 1)
    split = load_table(path, target="a", features=["b"], regression=True, test_fraction=0.4)
    assert (len(split), len(split.test_targets)) == (3, 2)


@needs_pyarrow
def test_parquet(csv, tmp_path):
    table = pd.read_csv(csv(CSV))
    table["label"] = [0, 1, 2, 1, 0]
    path = tmp_path / "data.parquet"
    table.to_parquet(path)
    dataset = load_table(path, path, target="label", client="client")
    assert (dataset.num_classes, dataset.targets.tolist()) == (3, [0, 1, 2, 1, 0])
    whole = path.read_bytes()
    for cut in (0, 3, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(DataFormatError, match=r"data.parquet: cannot be parsed"):
            load_table(path, target="label")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "cannot be parsed"),
        ("a,label,client\n", "at least one row, got none"),
        ('a,label,client\n"1,2', "cannot be parsed"),
        ("a,label,client\n1,2,3,4\n1,2,3,4,5\n", "cannot be parsed"),
        (
            "a,label,client\n1,0,x\nfoo,1,y\n",
            "row 1 .the first sample is row 0., column 'a': must be a finite number.*'foo'",
        ),
        (
            "a,label,client\n1,0,x\n,1,y\n",
            "row 1 .the first sample is row 0., column 'a': must have a value",
        ),
        (
            "a,label,client\n1,0,x\ninf,1,y\n",
            "row 1 .the first sample is row 0., column 'a': must be a finite number",
        ),
        (
            "a,label,client\n1,0,x\n1,1,\n",
            "row 1 .the first sample is row 0., column 'client': must have a value",
        ),
        (
            "a,label,client\n1,0,1.5\n",
            "row 0 .the first sample is row 0., column 'client': must be an integer or text",
        ),
        (
            "a,label,client\n1,0,x\n1,,y\n",
            "row 1 .the first sample is row 0., column 'label': must have a value",
        ),
        ("a,label,client\n1,0,x\n1,-1,y\n", "sample 1, column 'label'.*got -1"),
        ("a,label,client\n1,0.5,x\n", "column 'label'.*one integer class per sample"),
        ("a,klass,client\n1,0,x\n", "column 'label': must be in the file, which has 'a', 'klass'"),
        ("label,client\n0,x\n", "must have columns for the inputs, got none"),
    ],
)
def test_wrong_tables_are_refused_with_row_and_column(csv, text, message):
    with pytest.raises(DataFormatError, match=message):
        load_table(csv(text), target="label", client="client")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "labl"}, "column 'labl': must be in the file.*Did you mean 'label'"),
        ({"target": "label", "client": "cleint"}, "column 'cleint'.*Did you mean 'client'"),
        ({"target": "label", "features": ["x1", "weigth"]}, "'weigth'.*Did you mean 'weight'"),
        ({"target": "class_of_it"}, "column 'class_of_it'.*Check the name"),
    ],
)
def test_a_misspelt_column_is_named_before_any_value_is_read(csv, options, message):
    path = csv("x1,weight,label,client\n1,?,cat,a\n2,?,dog,b\n")
    with pytest.raises(DataFormatError, match=message):
        load_table(path, **options)


def test_a_column_that_the_test_rows_lack_is_named(csv):
    train = csv("a,label\n1,0\n2,1\n")
    with pytest.raises(DataFormatError, match=r"test.csv: column 'a'.*which has 'b', 'label'"):
        load_table(train, csv("b,label\n?,0\n", "test.csv"), target="label")


def test_test_rows_must_have_the_training_classes(csv):
    train = csv(CSV)
    with pytest.raises(
        DataFormatError,
        match=r"row 0 .the first sample is row 0., column 'label'.*cat, dog, got 'cow'",
    ):
        load_table(train, csv("a,b,label\n1,2,cow\n", "test.csv"), target="label", client="client")


def test_truncated_and_foreign_files_are_refused(csv, tmp_path):
    path = csv(CSV, "data.csv.gz")
    path.write_bytes(path.read_bytes()[:30])
    with pytest.raises(DataFormatError, match=r"data.csv.gz: cannot be parsed"):
        load_table(path, target="label")
    (tmp_path / "latin.csv").write_bytes(b"a,label\n1,\xe4\n")
    with pytest.raises(DataFormatError, match=r"latin.csv: cannot be parsed"):
        load_table(tmp_path / "latin.csv", target="label")
    with pytest.raises(ValueError, match=r"must be a .csv or .parquet file, got .*data.txt"):
        load_table(csv(CSV, "data.txt"), target="label")
