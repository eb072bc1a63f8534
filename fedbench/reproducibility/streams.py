"""Random streams that are named, not counted.

A stream is identified by ``(seed, purpose, *key)``, for example ``(0, "shuffle", client, round)``.
The identification is hashed, and the whole state of a generator is filled from the hash. What a
stream yields therefore depends on its name alone: not on the streams used before, on the number
of clients, on the worker, nor on ``PYTHONHASHSEED``.

Generators are not seeded through ``manual_seed`` because torch keeps only 32 bits of a seed: of
2,000,000 streams hundreds of pairs would be equal.
"""

from __future__ import annotations

import functools
import hashlib
import operator
import random
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.random.bit_generator import ISpawnableSeedSequence

from fedbench.errors import UnsupportedPlatformError

if TYPE_CHECKING:
    import torch

__all__ = [
    "KeyedSeedSequence",
    "numpy_generator",
    "python_random",
    "seed_torch_generator",
    "stream_key",
    "torch_generator",
]

_KEY_BYTES = 32
_LARGE = 2**1024
_MT_WORDS = 624  # 32-bit words of a Mersenne twister, in torch, numpy and random alike
# Set in the first word, as the reference initialisation does: a twister of nothing but zeros
# yields zeros for ever. The other bits of that word are not part of the state.
_TOP_BIT = 0x80000000

# torch.Generator.get_state() of a CPU generator, in bytes: the initial seed (8), the number of
# words left before the next twist (4), a flag "seeded" (4), the index of the next word (8), the
# words (8 each, upper half zero), then cached normal variates, all zero when there are none.
_BLOB_BYTES = 5056
_BLOB_SEED = slice(0, 8)
_BLOB_LEFT = slice(8, 12)
_BLOB_SEEDED = slice(12, 16)
_BLOB_WORDS = slice(24, 24 + 8 * _MT_WORDS)


def stream_key(seed: int, purpose: str, *key: int | str) -> bytes:
    """Return the 32-byte identification of a random stream.

    Parameters
    ----------
    seed : int
        Root seed of the run: any integer, negative and arbitrarily large ones included.
    purpose : str
        What the stream is for: ``"shuffle"``, ``"dropout"``, ``"select"``, ...
    *key : int or str
        What the stream belongs to: client id, round, epoch, ... The client ``1`` and the client
        ``"1"`` are different.

    Returns
    -------
    bytes
        BLAKE2b of an injective encoding of the arguments, so different arguments give different
        keys. The same on every machine and in every process.

    Raises
    ------
    TypeError
        If `seed` or a part of `key` has another type. Booleans are refused as well: ``True``
        would silently be the stream of ``1``.
    """
    return hash_name(checked_name(seed, purpose, *key))


def checked_name(seed: int, purpose: str, *key: int | str) -> tuple[int | str | bytes, ...]:
    """Return the name of a stream in plain types, or raise what :func:`stream_key` raises."""
    name = (seed, purpose, *key)
    return name if _is_plain(name) else _checked(name)


def hash_name(name: tuple[int | str | bytes, ...]) -> bytes:
    """Return the key of a stream whose name is checked."""
    # The literal of a tuple of texts and numbers is injective, and one call; escaping everything
    # but ASCII makes it independent of Python's Unicode tables, and so of its version.
    encoded = ascii(name).encode("ascii")
    return hashlib.blake2b(encoded, digest_size=_KEY_BYTES, person=b"fedbench-stream").digest()


def _is_plain(name: tuple[Any, ...]) -> bool:
    """Return whether nothing in `name` needs a conversion or an error."""
    if type(name[0]) is not int or type(name[1]) is not str:
        return False
    for part in name:
        kind = type(part)
        if kind is not str and (kind is not int or not -_LARGE < part < _LARGE):
            return False
    return True


def _checked(name: tuple[Any, ...]) -> tuple[int | str | bytes, ...]:
    """Return `name` with plain parts, or raise. Large numbers become bytes.

    Python limits the decimal digits that it writes, and lets users change the limit.
    """
    if not isinstance(name[1], str):
        raise TypeError(
            f"purpose must be a str, got {name[1]!r} of type {type(name[1]).__name__}. "
            "Name what the stream is for, for example 'shuffle'."
        )
    if isinstance(name[0], str):
        raise TypeError(f"seed must be an int, got the text {name[0]!r}. Give a number.")
    checked: list[int | str | bytes] = []
    for position, part in enumerate(name):
        what, kinds = ("a part of key", "an int or a str") if position else ("seed", "an int")
        if isinstance(part, str):
            checked.append(str.__str__(part))
            continue
        if isinstance(part, (bool, np.bool_)):
            raise TypeError(f"{what} must be {kinds}, got {part!r}. Use 0 or 1 for a number.")
        try:
            number = operator.index(part)
        except TypeError:
            raise TypeError(
                f"{what} must be {kinds}, got {part!r} of type {type(part).__name__}. "
                "Convert it first."
            ) from None
        is_large = not -_LARGE < number < _LARGE
        num_bytes = number.bit_length() // 8 + 1
        checked.append(number.to_bytes(num_bytes, "little", signed=True) if is_large else number)
    return tuple(checked)


def expand(key: bytes, kind: bytes, num_bytes: int) -> bytes:
    """Return `num_bytes` pseudorandom bytes for one kind of generator of the stream `key`.

    `kind` keeps the generators of different libraries apart: three of them are Mersenne twisters
    and would yield the same words for equal states.
    """
    return hashlib.shake_128(kind + b":" + key).digest(num_bytes)


class KeyedSeedSequence(ISpawnableSeedSequence):
    """A numpy seed sequence whose words come from a stream key, whole states at a time.

    Parameters
    ----------
    key : bytes
        Identification of the stream, from :func:`stream_key`.
    """

    def __init__(self, key: bytes) -> None:
        self.key = key
        self._num_children = 0

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> np.ndarray[Any, Any]:
        """Return `n_words` words of `dtype` (uint32 or uint64), hashed from the key."""
        width = np.dtype(dtype).newbyteorder("<")
        words = np.frombuffer(expand(self.key, b"numpy", n_words * width.itemsize), width)
        return words.astype(dtype)

    def spawn(self, n_children: int) -> list[KeyedSeedSequence]:
        """Return `n_children` further sequences, independent of this one and of each other."""
        first = self._num_children
        self._num_children += n_children
        return [
            KeyedSeedSequence(expand(self.key, b"spawn %d" % index, _KEY_BYTES))
            for index in range(first, self._num_children)
        ]


def numpy_generator(seed: int, purpose: str, *key: int | str) -> np.random.Generator:
    """Return numpy's generator (PCG64) of the stream ``(seed, purpose, *key)``.

    The arguments and errors are those of :func:`stream_key`. ``spawn`` of the generator works
    and depends on the key alone.
    """
    seed_sequence: Any = KeyedSeedSequence(stream_key(seed, purpose, *key))
    return np.random.Generator(np.random.PCG64(seed_sequence))


def numpy_random_state(key: bytes) -> np.random.RandomState:
    """Return numpy's legacy generator (Mersenne twister) of the stream `key`."""
    seed_sequence: Any = KeyedSeedSequence(key)
    return np.random.RandomState(np.random.MT19937(seed_sequence))


def python_random(seed: int, purpose: str, *key: int | str) -> random.Random:
    """Return the ``random.Random`` of the stream ``(seed, purpose, *key)``.

    The arguments and errors are those of :func:`stream_key`.
    """
    return python_random_of(stream_key(seed, purpose, *key))


def python_random_of(key: bytes) -> random.Random:
    """Return the ``random.Random`` of the stream `key`."""
    words = np.frombuffer(expand(key, b"python", 4 * _MT_WORDS), "<u4").tolist()
    words[0] |= _TOP_BIT
    generator = random.Random()
    generator.setstate((3, (*words, _MT_WORDS), None))
    return generator


def torch_generator(seed: int, purpose: str, *key: int | str) -> torch.Generator:
    """Return torch's CPU generator of the stream ``(seed, purpose, *key)``.

    The arguments and errors of :func:`stream_key` apply.

    Returns
    -------
    torch.Generator
        A new generator; ``initial_seed()`` gives 64 bits of the key. Where many streams are used
        one after the other, :func:`seed_torch_generator` spares the allocation.
    """
    import torch

    generator = torch.Generator()
    seed_torch_generator(generator, seed, purpose, *key)
    return generator


def seed_torch_generator(
    generator: torch.Generator, seed: int, purpose: str, *key: int | str
) -> None:
    """Put an existing CPU generator at the start of the stream ``(seed, purpose, *key)``.

    Parameters
    ----------
    generator : torch.Generator
        A generator of the CPU; whatever it had drawn is forgotten.
    seed, purpose, *key
        As in :func:`stream_key`, errors included.

    Raises
    ------
    ValueError
        If `generator` belongs to another device.
    UnsupportedPlatformError
        If this torch keeps the generator's state in a layout that is not known here.
    """
    if generator.device.type != "cpu":
        raise ValueError(
            f"generator must be a CPU generator, got one on {generator.device}. "
            "Create it with torch.Generator()."
        )
    fill_torch_generator(generator, stream_key(seed, purpose, *key))


class _Blob(threading.local):
    """A state of a torch generator to write words into; one for each thread."""

    def __init__(self) -> None:
        import torch

        _check_torch_layout()
        self.bytes = bytearray(torch.Generator().manual_seed(0).get_state().numpy())
        self.tensor = torch.frombuffer(self.bytes, dtype=torch.uint8)
        self.words = np.frombuffer(self.bytes, np.uint8)[_BLOB_WORDS].view(np.uint64)


@functools.cache
def _blob() -> _Blob:
    return _Blob()  # not at import time, which must not import torch


def fill_torch_generator(generator: torch.Generator, key: bytes) -> None:
    """Put a CPU generator at the start of the stream `key`."""
    blob = _blob()
    blob.words[:] = np.frombuffer(expand(key, b"torch", 4 * _MT_WORDS), np.uint32)
    blob.bytes[_BLOB_WORDS.start + 3] |= _TOP_BIT >> 24
    blob.bytes[_BLOB_SEED] = key[:8]
    generator.set_state(blob.tensor)


@functools.cache
def _check_torch_layout() -> None:
    """Raise unless a generator's state is laid out as the constants above say."""
    import torch

    seed = 20240229
    blob = torch.Generator().manual_seed(seed).get_state().numpy().tobytes()
    layout_is_known = (
        sys.byteorder == "little"
        and len(blob) == _BLOB_BYTES
        and blob[_BLOB_SEED] == seed.to_bytes(8, "little")
        and blob[_BLOB_LEFT] == blob[_BLOB_SEEDED] == (1).to_bytes(4, "little")
        and np.frombuffer(blob[_BLOB_WORDS], np.uint64).tolist() == _reference_words(seed)
        and not any(blob[_BLOB_SEEDED.stop : _BLOB_WORDS.start])
        and not any(blob[_BLOB_WORDS.stop :])
    )
    if not layout_is_known:
        raise UnsupportedPlatformError(
            f"the state of a torch.Generator must be the {_BLOB_BYTES} bytes of a Mersenne "
            f"twister on a little-endian machine, got {len(blob)} bytes of another layout from "
            f"torch {torch.__version__}. Use a torch release that fedbench's tests cover, or "
            "report this version."
        )


def _reference_words(seed: int) -> Sequence[int]:
    """Return the words of a Mersenne twister initialised from a 32-bit seed (Matsumoto 2002)."""
    words = [seed]
    for index in range(1, _MT_WORDS):
        previous = words[-1]
        words.append((1812433253 * (previous ^ (previous >> 30)) + index) & 0xFFFFFFFF)
    return words
