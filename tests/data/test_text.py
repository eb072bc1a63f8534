"""Text data: windows, topics as clients, the digest that notices another source."""

from __future__ import annotations

from pydoc_data.topics import topics

import pytest
import torch

from fedbench.data import load_python_docs
from fedbench.data.text import (
    ASCII_VOCABULARY,
    LEAF_VOCABULARY,
    PYTHON_DOCS_DIGEST,
    encode_text,
    text_digest,
)

THIS_PYTHON = text_digest(topics)


def decode(tokens):
    return "".join((ASCII_VOCABULARY + "\ufffd")[token] for token in tokens.tolist())


def test_samples_are_windows_of_the_topics_text():
    dataset = load_python_docs(length=50, stride=120, digest=THIS_PYTHON)
    assert dataset.num_classes == 97
    assert dataset.inputs.dtype == dataset.targets.dtype == torch.int64
    plain = {
        topic: "".join(letter if letter in ASCII_VOCABULARY else "\ufffd" for letter in text)
        for topic, text in topics.items()
    }
    for sample in range(0, len(dataset), 97):
        window = decode(dataset.inputs[sample]) + decode(dataset.targets[sample : sample + 1])
        assert window in plain[dataset.client_keys[sample]]


def test_every_topic_is_one_client():
    dataset = load_python_docs(digest=THIS_PYTHON)
    clients = dataset.federate_by_key()
    long_enough = [topic for topic, text in topics.items() if len(text) >= 1000]
    assert set(clients.client_ids) == set(long_enough)
    assert int(clients.client_sizes().max()) > 10 * int(clients.client_sizes().min())


def test_training_and_test_windows_do_not_overlap():
    dataset = load_python_docs(length=30, stride=31, min_characters=60_000, digest=THIS_PYTHON)
    (topic,) = set(dataset.client_keys)
    windows = torch.cat([dataset.inputs, dataset.test_inputs])
    assert decode(windows[1])[:10] == topics[topic][31:41]
    assert 31 * len(windows) <= len(topics[topic])


def test_another_text_is_noticed():
    with pytest.warns(UserWarning, match="expected 0000: this Python ships another text"):
        load_python_docs(digest="0000")


@pytest.mark.skipif(
    THIS_PYTHON != PYTHON_DOCS_DIGEST, reason="this Python ships another text than CPython 3.11.7"
)
def test_the_published_text_gives_the_published_samples():
    dataset = load_python_docs()
    assert (len(dataset), len(dataset.test_targets)) == (2012, 228)


def test_the_digest_ignores_order_and_sees_every_change():
    first = text_digest({"a": "x", "b": "y"})
    assert first == text_digest({"b": "y", "a": "x"})
    assert len({first, text_digest({"a": "y", "b": "x"}), text_digest({"a": "xb", "": "y"})}) == 3


def test_characters_outside_the_vocabulary_share_one_token():
    assert encode_text("ab\u20acb", "ba").tolist() == [1, 0, 2, 0]
    assert len(LEAF_VOCABULARY) == len(set(LEAF_VOCABULARY)) == 80
    assert len(ASCII_VOCABULARY) == 96


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"length": 0}, "length must be an integer >= 1"),
        ({"length": 80, "stride": 80}, "stride must be greater than length \\(80\\), got 80"),
        ({"test_fraction": 1.0}, "test_fraction must be between 0 and 1"),
        ({"min_characters": 10**9}, "must leave at least one topic"),
    ],
)
def test_wrong_arguments_are_refused_by_name(arguments, message):
    with pytest.raises(ValueError, match=message):
        load_python_docs(digest=THIS_PYTHON, **arguments)
