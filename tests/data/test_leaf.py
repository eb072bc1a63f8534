"""LEAF's JSON layout: FEMNIST-like numbers, Shakespeare-like text, damaged files."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedbench.data import load_leaf
from fedbench.data.text import LEAF_VOCABULARY
from fedbench.errors import DataFormatError

TRAIN = {
    "users": ["f0_żaba", "f1"],
    "num_samples": [2, 1],
    "user_data": {
        "f0_żaba": {"x": [[0.0, 1.0, 0.5, 0.25], [1, 0, 0, 0]], "y": [3, 0]},
        "f1": {"x": [[0.5, 0.5, 0.5, 0.5]], "y": [1.0]},
    },
}
TEST = {"users": ["f1"], "num_samples": [1], "user_data": {"f1": {"x": [[0, 0, 0, 1]], "y": [2]}}}
TEXT = {
    "users": ["ROMEO", "JULIET"],
    "num_samples": [2, 1],
    "user_data": {
        "ROMEO": {"x": ["But, soft!", "ut, soft! "], "y": [" ", "w"]},
        "JULIET": {"x": ["O Romeo, R"], "y": ["o"]},
    },
}


@pytest.fixture
def write(tmp_path):
    def write(name, content):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
        return path

    return write


def test_numbers_become_float32_with_the_users_as_keys(write):
    dataset = load_leaf(write("train.json", TRAIN), write("test.json", TEST), shape=(1, 2, 2))
    assert dataset.inputs.shape == (3, 1, 2, 2)
    assert dataset.inputs[0].flatten().tolist() == [0, 1, 0.5, 0.25]
    assert dataset.targets.tolist() == [3, 0, 1]
    assert dataset.test_targets.tolist() == [2]
    assert dataset.num_classes == 4
    clients = dataset.federate_by_key()
    assert clients.client_ids == ("f0_żaba", "f1")
    assert clients.client_sizes().tolist() == [2, 1]


def test_text_becomes_tokens_of_the_vocabulary(write):
    path = write("text.json", TEXT)
    dataset = load_leaf(path, path)
    assert dataset.num_classes == 80
    assert dataset.inputs.dtype == torch.int64
    assert "".join(LEAF_VOCABULARY[token] for token in dataset.inputs[2]) == "O Romeo, R"
    assert LEAF_VOCABULARY[dataset.targets[1]] == "w"
    assert dataset.client_keys == ["ROMEO", "ROMEO", "JULIET"]


def test_a_folder_of_files_is_read_in_the_order_of_names(write, tmp_path):
    more = {"users": ["a"], "num_samples": [1], "user_data": {"a": {"x": [[1] * 4], "y": [0]}}}
    write("train/b.json", TRAIN)
    write("train/a.json", more)
    write("train/readme.txt", "no data")
    dataset = load_leaf(tmp_path / "train", write("test.json", TEST))
    assert dataset.client_keys == ["a", "f0_żaba", "f0_żaba", "f1"]
    write("train/c.json", more)
    with pytest.raises(DataFormatError, match=r"c.json: user 'a': must appear once.*in a.json"):
        load_leaf(tmp_path / "train", tmp_path / "test.json")


def test_users_without_samples_are_left_out(write):
    content = copy.deepcopy(TRAIN)
    content["users"].append("empty")
    content["num_samples"].append(0)
    content["user_data"]["empty"] = {"x": [], "y": []}
    dataset = load_leaf(write("train.json", content), write("test.json", TEST))
    assert "empty" not in dataset.federate_by_key().client_ids


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.pop("users"), "field 'users': must be a JSON array, got nothing"),
        (lambda c: c.update(user_data=[]), "field 'user_data': must be a JSON object, got list"),
        (lambda c: c.update(num_samples=[2]), "field 'num_samples': must be an array with one"),
        (lambda c: c.update(num_samples=7), "field 'num_samples': must be an array with one"),
        (lambda c: c.update(num_samples=[2, 5]), "user 'f1'.*got 1, 1 and 5"),
        (lambda c: c["user_data"].pop("f1"), "user 'f1': must have arrays 'x' and 'y'"),
        (lambda c: c["user_data"]["f1"].pop("y"), "user 'f1': must have arrays 'x' and 'y'"),
        (lambda c: c["user_data"]["f1"]["y"].append(1), "user 'f1'.*got 1, 2 and 1"),
        (
            lambda c: c["user_data"]["f0_żaba"]["x"][1].pop(),
            r"user 'f0_żaba', sample 1, field 'x': must be finite numbers of shape \(4,\)",
        ),
        (
            lambda c: c["user_data"]["f0_żaba"]["x"][1].__setitem__(2, float("nan")),
            "user 'f0_żaba', sample 1, field 'x': must be finite numbers",
        ),
        (
            lambda c: c["user_data"]["f1"]["x"][0].__setitem__(2, "a"),
            "user 'f1', sample 0, field 'x'",
        ),
        (lambda c: c["user_data"]["f1"].update(x=[[1, 2]]), r"'f1', field 'x'.*shape \(4,\)"),
        (lambda c: c["user_data"]["f1"].update(y=[-1]), "field 'y': must be a class in .0, 4."),
        (lambda c: c["user_data"]["f1"].update(y=[0.5]), "sample 0, field 'y'.*got 0.5"),
        (lambda c: c["user_data"]["f1"].update(y=[float("inf")]), "field 'y'.*got inf"),
        (lambda c: c["user_data"]["f1"].update(y=["a"]), "field 'y'.*got 'a'"),
        (lambda c: c.update(users=[], num_samples=[]), "'users': must name at least one user"),
    ],
)
def test_wrong_content_is_refused_with_file_user_sample_and_field(write, change, message):
    content = copy.deepcopy(TRAIN)
    change(content)
    path = write("train.json", content)
    with pytest.raises(DataFormatError, match=message) as caught:
        load_leaf(path, write("test.json", TEST))
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (["ab", "a"], ["c", "d"], "sample 1, field 'x': must be a string of 2 characters, got 'a'"),
        (["ab"], ["cd"], "sample 0, field 'y': must be a string of 1 characters, got 'cd'"),
        (["aé"], ["c"], "80 characters of the vocabulary, got 'é'"),
        (["ab", [1, 2]], ["c", "d"], r"must be a string of 2 characters, got \[1, 2\]"),
    ],
)
def test_wrong_text_is_refused(write, x, y, message):
    content = {"users": ["u"], "num_samples": [len(x)], "user_data": {"u": {"x": x, "y": y}}}
    path = write("text.json", content)
    with pytest.raises(DataFormatError, match=message):
        load_leaf(path, path)


def test_test_files_must_fit_the_training_files(write):
    train = write("train.json", TRAIN)
    with pytest.raises(DataFormatError, match="must hold samples like the training files"):
        load_leaf(train, write("text.json", TEXT))
    larger = copy.deepcopy(TEST)
    larger["user_data"]["f1"]["y"] = [4]
    with pytest.raises(DataFormatError, match=r"must be a class in \[0, 4\), got 4"):
        load_leaf(train, write("test.json", larger))
    assert load_leaf(train, write("test.json", larger), num_classes=62).num_classes == 62


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(0, len(json.dumps(TRAIN)) - 1))
def test_a_truncated_file_is_refused(write, cut):
    path = write("train.json", json.dumps(TRAIN)[:cut])
    with pytest.raises(DataFormatError, match=r"train.json: must be JSON"):
        load_leaf(path, write("test.json", TEST))


def test_missing_paths_and_shapes_are_refused_by_name(write, tmp_path):
    train = write("train.json", TRAIN)
    with pytest.raises(FileNotFoundError, match="test must be a JSON file or a folder"):
        load_leaf(train, tmp_path / "nothing.json")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="train must be a JSON file or a folder"):
        load_leaf(tmp_path / "empty", train)
    with pytest.raises(ValueError, match=r"as many values as a sample \(4\), got \(28, 28\)"):
        load_leaf(train, write("test.json", TEST), shape=(28, 28))
    with pytest.raises(DataFormatError, match="must hold a JSON object"):
        load_leaf(write("list.json", "[]"), train)
    (tmp_path / "latin.json").write_bytes(b'{"users": ["\xe9"]}')
    with pytest.raises(DataFormatError, match=r"latin.json: must be JSON"):
        load_leaf(tmp_path / "latin.json", train)
