"""What of a simulation goes into a checkpoint, and how it goes on from one."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbench.algorithms import ServerState
from fedbench.errors import CheckpointError
from fedbench.reproducibility import digest, incomparable
from fedbench.simulation.checkpoint import (
    Snapshot,
    latest_checkpoint,
    read_checkpoint,
    write_checkpoint,
)
from fedbench.simulation.history import History, RoundRecord
from fedbench.training import described

if TYPE_CHECKING:
    from fedbench.simulation.simulation import Simulation

__all__ = ["digest_of", "restore", "save"]

_EVALUATION = "evaluate_clients"


def digest_of(server: ServerState, client_states: Mapping[int | str, Any]) -> str:
    """Return the SHA-256 of the server's state and of every client's state, in hexadecimal."""
    return digest(
        {
            "parameters": server.model.parameters,
            "buffers": dict(server.model.buffers),
            "extra": dict(server.extra),
            "clients": client_states,
        }
    )


def save(simulation: Simulation, directory: Path) -> Path:
    """Write the committed state of `simulation` to a new checkpoint in `directory`."""
    snapshot = Snapshot(
        identity=_identity(simulation),
        rounds_done=simulation.rounds_done,
        state={
            "model": simulation.server.model,
            "extra": simulation.server.extra,
            "clients": simulation.client_states,
        },
        records=[dataclasses.asdict(record) for record in simulation.history],
        digest=simulation.state_digest(),
        pinned=simulation.history.pinned,
    )
    return write_checkpoint(directory, snapshot)


def restore(simulation: Simulation, path: Path) -> int:
    """Put `simulation` into the state of a checkpoint and return the number of its rounds."""
    if not (path / "manifest.json").exists():
        path = latest_checkpoint(path)
    snapshot = read_checkpoint(path)
    for name, mine in _identity(simulation).items():
        theirs = snapshot.identity.get(name)
        if theirs != mine:
            raise CheckpointError(
                f"{path} belongs to another simulation: its {name} is {theirs!r}, this one has "
                f"{mine!r}. Make the simulation with the arguments of that run."
            )
    state = snapshot.state
    server = ServerState(state["model"], state["extra"])
    if digest_of(server, state["clients"]) != snapshot.digest:
        raise CheckpointError(f"{path} is damaged: the digest of its state does not match.")
    differences = incomparable(snapshot.pinned, simulation.history.pinned)
    if differences:
        warnings.warn(
            f"{path} was written under other conditions, so what follows may not have the bits of "
            f"the unbroken run: {'; '.join(differences)}.",
            stacklevel=3,
        )
    simulation.server = server
    simulation.client_states = state["clients"]
    simulation.rounds_done = snapshot.rounds_done
    records = [RoundRecord.from_plain(record) for record in snapshot.records]
    simulation.history = History(records, simulation.history.pinned)
    return snapshot.rounds_done


def _identity(simulation: Simulation) -> dict[str, Any]:
    """Return what must be equal for a checkpoint to belong to the simulation."""
    workload = simulation.workload
    shapes = simulation.model_state().items()
    return {
        "workload": workload.name,
        "algorithm": described(simulation.algorithm),
        "seed": simulation.seed,
        "reproducibility": str(simulation.level),
        "cohort_size": simulation.cohort_size,
        "num_clients": simulation.dataset.num_clients,
        "model": [[name, list(value.shape)] for name, value in shapes],
        "local_epochs": workload.local_epochs,
        "batch_size": workload.batch_size,
        "lr": workload.lr,
        "momentum": workload.momentum,
        "weight_decay": workload.weight_decay,
        "nesterov": workload.nesterov,
        "loss": workload.loss,
        # Who evaluates changes nothing of what follows.
        "options": {k: v for k, v in simulation.options.changed().items() if k != _EVALUATION},
    }
