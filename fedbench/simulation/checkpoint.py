"""Checkpoints: the committed state of a simulation in a directory that appears all at once.

A checkpoint is a directory ``round-000010`` with two files: ``state.safetensors`` holds the
tensors, ``manifest.json`` the rest, with digests of both. It is written under a temporary name,
flushed to the disk and renamed, so a reader finds a whole checkpoint or none, whenever the writer
was killed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as dump_tensors

from fedbench.errors import CheckpointError, OutputError
from fedbench.training import ModelState

__all__ = [
    "SCHEMA_VERSION",
    "Snapshot",
    "has_checkpoint",
    "latest_checkpoint",
    "prepare_folder",
    "read_checkpoint",
    "write_checkpoint",
]

SCHEMA_VERSION = 1
_NAME = re.compile(r"round-(\d{6,})")
_STATE, _MANIFEST = "state.safetensors", "manifest.json"
_ARRAY_TYPES = ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")
"""Kinds and sizes of numpy's arrays that torch and the file's format know."""


@dataclass(frozen=True)
class Snapshot:
    """What a checkpoint holds.

    Attributes
    ----------
    identity : mapping of str to object
        What the simulation is: only a simulation with the same identity may load the state.
    rounds_done : int
        Number of committed rounds.
    state : object
        Nested mappings, sequences, tensors, model states and plain values.
    records : list of dict
        The history as plain values.
    digest : str
        Digest of `state` as the simulation takes it.
    pinned : mapping of str to object
        What the bits of the run depend on besides its seed.
    """

    identity: Mapping[str, Any]
    rounds_done: int
    state: Any
    records: Sequence[Mapping[str, Any]]
    digest: str
    pinned: Mapping[str, Any]


def prepare_folder(directory: Path) -> None:
    """Make the folder of the checkpoints and find out whether it takes any.

    Raises
    ------
    OutputError
        If it cannot be made, or takes no new folders; the message says why.
    """
    with _explained(directory):
        directory.mkdir(parents=True, exist_ok=True)
        _new_folder(directory).rmdir()


def write_checkpoint(directory: Path, snapshot: Snapshot, *, keep: int = 2) -> Path:
    """Write a checkpoint into `directory` and return its path; older ones beyond `keep` go.

    Raises
    ------
    OutputError
        If it cannot be written; earlier checkpoints are then as they were.
    """
    prepare_folder(directory)
    tensors: dict[str, torch.Tensor] = {}
    structure = _encode(snapshot.state, tensors)
    payload = dump_tensors(tensors)
    manifest = {
        "schema_version": SCHEMA_VERSION,
        "identity": snapshot.identity,
        "rounds_done": snapshot.rounds_done,
        "digest": snapshot.digest,
        "pinned": snapshot.pinned,
        "sha256": hashlib.sha256(payload).hexdigest(),
        "structure": structure,
        "records": snapshot.records,
    }
    text = json.dumps(manifest)
    sealed = json.dumps({"manifest": text, "sha256": hashlib.sha256(text.encode()).hexdigest()})
    target = directory / f"round-{snapshot.rounds_done:06d}"
    with _explained(directory):
        _place(target, payload, sealed.encode())
        for _, old in _checkpoints(directory)[:-keep]:
            shutil.rmtree(old)
    _remove_unfinished(directory)
    return target


def _place(target: Path, payload: bytes, manifest: bytes) -> None:
    """Let the whole checkpoint appear at `target`, or nothing."""
    temporary = _new_folder(target.parent)
    try:
        _write_through(temporary / _STATE, payload)
        _write_through(temporary / _MANIFEST, manifest)
        if target.exists():
            shutil.rmtree(target)
        temporary.rename(target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    _flush_directory(target.parent)


def _new_folder(directory: Path) -> Path:
    return Path(tempfile.mkdtemp(prefix=".unfinished-", dir=directory))


@contextlib.contextmanager
def _explained(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        is_file = isinstance(error, FileExistsError) and not directory.is_dir()
        reason = "it is a file" if is_file else error.strerror or str(error)
        raise OutputError(
            f"cannot write checkpoints to {str(directory)!r}: {reason}. Give a folder that can be "
            f"written."
        ) from error


def has_checkpoint(directory: str | Path) -> bool:
    """Return whether `directory` holds a checkpoint to resume from."""
    return bool(_checkpoints(Path(directory)))


def latest_checkpoint(directory: Path) -> Path:
    """Return the checkpoint of `directory` with the most rounds.

    Raises
    ------
    CheckpointError
        If there is none.
    """
    found = _checkpoints(directory)
    if not found:
        raise CheckpointError(
            f"{directory} holds no checkpoint (a folder named round-NNNNNN). "
            f"Start without resuming, or give the folder that the run wrote to."
        )
    return found[-1][1]


def read_checkpoint(path: Path) -> Snapshot:
    """Return what the checkpoint at `path` holds.

    Raises
    ------
    CheckpointError
        If a file is missing, damaged, or of another schema; the message names the file.
    """
    try:
        sealed = json.loads((path / _MANIFEST).read_text(encoding="utf-8"))
        text = sealed["manifest"]
        if hashlib.sha256(text.encode()).hexdigest() != sealed["sha256"]:
            raise _damaged(path / _MANIFEST, "its digest does not match")
        manifest = json.loads(text)
        payload = (path / _STATE).read_bytes()
    except OSError as error:
        raise _damaged(path, f"{error.strerror}: {error.filename}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise _damaged(path / _MANIFEST, "it is not a manifest") from error
    if manifest["schema_version"] != SCHEMA_VERSION:
        raise CheckpointError(
            f"{path} was written with checkpoint schema {manifest['schema_version']}, this "
            f"version reads {SCHEMA_VERSION}. Use the version of fedbench that wrote it."
        )
    if hashlib.sha256(payload).hexdigest() != manifest["sha256"]:
        raise _damaged(path / _STATE, "its digest does not match")
    try:
        tensors = load_tensors(payload)
    except SafetensorError as error:
        raise _damaged(path / _STATE, str(error)) from error
    return Snapshot(
        identity=manifest["identity"],
        rounds_done=manifest["rounds_done"],
        state=_decode(manifest["structure"], tensors),
        records=manifest["records"],
        digest=manifest["digest"],
        pinned=manifest["pinned"],
    )


def _damaged(path: Path, why: str) -> CheckpointError:
    return CheckpointError(f"{path} is damaged: {why}. Delete it and resume from an older one.")


def _checkpoints(directory: Path) -> list[tuple[int, Path]]:
    if not directory.is_dir():
        return []
    named = [(_NAME.fullmatch(entry.name), entry) for entry in directory.iterdir()]
    return sorted((int(match[1]), entry) for match, entry in named if match)


def _remove_unfinished(directory: Path) -> None:
    """Remove what killed writers left behind."""
    for entry in directory.glob(".unfinished-*"):
        shutil.rmtree(entry, ignore_errors=True)


def _write_through(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _flush_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _encode(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    """Return `value` as JSON, with every tensor moved to `tensors` under a number."""
    if isinstance(value, torch.Tensor):
        return {"tensor": _stored(value.detach().clone().contiguous(), tensors)}
    if isinstance(value, np.ndarray | np.generic) and value.dtype.str[1:] in _ARRAY_TYPES:
        kind = "array" if isinstance(value, np.ndarray) else "numpy_scalar"
        native = np.array(value, dtype=value.dtype.newbyteorder("="), order="C")
        return {kind: _stored(torch.from_numpy(native), tensors)}
    if isinstance(value, ModelState):
        parts = [_encode(value.parameters, tensors), _encode(value.buffers, tensors)]
        return {"model": parts}
    if isinstance(value, Mapping):
        # Pairs, not an object: a client's id may be the number 1 or the text "1".
        return {"mapping": [[key, _encode(entry, tensors)] for key, entry in value.items()]}
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_encode(entry, tensors) for entry in value]}
    if value is None or isinstance(value, bool | int | float | str):
        return {"value": value}
    raise CheckpointError(
        f"a state entry of type {type(value).__name__} cannot be stored in a checkpoint. Keep "
        f"client and server state in tensors, arrays, numbers, text, lists and mappings."
    )


def _stored(tensor: torch.Tensor, tensors: dict[str, torch.Tensor]) -> str:
    key = str(len(tensors))
    tensors[key] = tensor
    return key


def _decode(node: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    ((kind, content),) = node.items()
    if kind == "tensor":
        # A copy of its own: tensors of one file share memory and lie at any alignment.
        return tensors[content].clone()
    if kind in ("array", "numpy_scalar"):
        array = tensors[content].numpy().copy()
        return array if kind == "array" else array[()]
    if kind == "model":
        return ModelState(*(_decode(part, tensors) for part in content))
    if kind == "mapping":
        return {key: _decode(entry, tensors) for key, entry in content}
    if kind == "list":
        return [_decode(entry, tensors) for entry in content]
    if kind == "tuple":
        return tuple(_decode(entry, tensors) for entry in content)
    return content
