"""Real text for models that predict the next character."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping

import torch

from fedbench.data._partition_tools import check_count
from fedbench.data.federated import ArrayDataset
from fedbench.data.split import check_test_fraction

__all__ = [
    "ASCII_VOCABULARY",
    "LEAF_VOCABULARY",
    "PYTHON_DOCS_DIGEST",
    "encode_text",
    "load_python_docs",
    "text_digest",
]

ASCII_VOCABULARY = "\n" + "".join(map(chr, range(32, 127)))
"""The 96 characters that :func:`load_python_docs` tells apart; a 97th token stands for others."""

LEAF_VOCABULARY = (
    "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
)
"""The 80 characters of LEAF's Shakespeare."""

PYTHON_DOCS_DIGEST = "853505944682f68394b4bac08996a977b0d71f01cb49ef646ad8f8150e5779d6"
"""SHA-256 (:func:`text_digest`) of the text of CPython 3.11.7, which published figures use."""


def load_python_docs(
    *,
    length: int = 80,
    stride: int = 200,
    min_characters: int = 1000,
    test_fraction: float = 0.1,
    digest: str = PYTHON_DOCS_DIGEST,
    seed: int = 0,
) -> ArrayDataset:
    """Cut Python's language reference, as shipped for ``help()``, into samples.

    The text is that of the standard module ``pydoc_data.topics``; each topic ("for", "yield",
    "specialnames", ...) is one client, so clients differ in size and in subject. A sample is a
    window of `length` characters with the character that follows.

    Parameters
    ----------
    length : int
        Characters per sample.
    stride : int
        Characters from the start of a sample to the start of the next, > `length`, so that
        samples do not overlap.
    min_characters : int
        Leave out topics with less text.
    test_fraction : float
        Share of each topic, from its end, that is kept for the test, in (0, 1).
    digest : str
        What ``fedbench.data.text.text_digest`` should give. Another release of Python may ship
        another text; then a warning says that results are not comparable.
    seed : int
        Ignored: nothing is drawn.

    Returns
    -------
    ArrayDataset
        Inputs ``[n, length]`` and targets ``[n]``, both int64 tokens in [0, 97), with the topic
        of every training sample as client key.

    Raises
    ------
    ValueError
        If an argument is out of range or no topic is long enough.
    """
    from pydoc_data.topics import topics

    check_count("length", length)
    if stride <= length:
        raise ValueError(
            f"stride must be greater than length ({length}), got {stride!r}. "
            "Samples that overlap would put test text into the training samples."
        )
    check_test_fraction(test_fraction)
    found = text_digest(topics)
    if found != digest:
        warnings.warn(
            f"the text of pydoc_data.topics has the SHA-256 {found}, expected {digest}: this "
            "Python ships another text, so results are not comparable with those on that one. "
            f"Pass digest={found!r} to accept it.",
            stacklevel=2,
        )
    windows: list[tuple[str, torch.Tensor]] = []
    held_out: list[torch.Tensor] = []
    for topic in sorted(topics):
        tokens = encode_text(topics[topic], ASCII_VOCABULARY)
        if len(tokens) < max(min_characters, length + 1 + stride):
            continue
        cut = tokens.unfold(0, length + 1, stride)
        num_test = max(1, round(test_fraction * len(cut)))
        windows.append((topic, cut[:-num_test]))
        held_out.append(cut[-num_test:])
    if not windows:
        raise ValueError(
            f"min_characters and length must leave at least one topic, got {min_characters} and "
            f"{length}. Lower them."
        )
    train, test = torch.cat([part for _, part in windows]), torch.cat(held_out)
    keys = [topic for topic, part in windows for _ in part]
    return ArrayDataset(
        train[:, :-1].contiguous(),
        train[:, -1].contiguous(),
        test[:, :-1].contiguous(),
        test[:, -1].contiguous(),
        len(ASCII_VOCABULARY) + 1,
        client_keys=keys,
    )


def text_digest(texts: Mapping[str, str]) -> str:
    """Return the SHA-256 of named texts, independent of their order."""
    joined = "\0".join(f"{name}\0{texts[name]}" for name in sorted(texts))
    return hashlib.sha256(joined.encode()).hexdigest()


def encode_text(text: str, vocabulary: str) -> torch.Tensor:
    """Return the position in `vocabulary` of every character of `text`.

    Parameters
    ----------
    text : str
        Any text.
    vocabulary : str
        Different characters.

    Returns
    -------
    torch.Tensor
        int64 ``[len(text)]``; ``len(vocabulary)`` stands for a character that is not in it.
    """
    positions = {character: position for position, character in enumerate(vocabulary)}
    other = len(vocabulary)
    return torch.tensor([positions.get(character, other) for character in text])
