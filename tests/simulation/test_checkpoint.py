import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import fedbench
from fedbench.algorithms.fedavg import FedAvg
from fedbench.errors import CheckpointError, OutputError
from tests.simulation.helpers import batch_norm_model, tiny_workload

ALGORITHMS = ["fedavg", "fedadam", "scaffold", "proxskip", "ditto", "apfl", "ifca", "fpfc"]


def make(algorithm="scaffold", **options):
    return fedbench.Simulation(tiny_workload(batch_norm_model), algorithm=algorithm, **options)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_resumed_run_has_the_bits_of_the_unbroken_one(tmp_path, algorithm):
    unbroken = make(algorithm)
    history = unbroken.run(5)
    first = make(algorithm)
    first.run(2, checkpoint_dir=tmp_path)
    resumed = make(algorithm)
    assert resumed.load_checkpoint(tmp_path) == 2
    assert resumed.state_digest() == first.state_digest()
    resumed_history = resumed.run(3)
    assert resumed.state_digest() == unbroken.state_digest()
    assert resumed_history.to_frame().equals(history.to_frame())


class Counting(FedAvg):
    """Keeps numpy's values in its states."""

    stateful = True

    def init_client(self, model):
        seen = np.zeros(3, dtype=">i4")[::-1]
        return {"seen": seen, "last": np.float32(0), "rounds": np.int64(0)}

    def train(self, client, down):
        client.state["seen"] = client.state["seen"] + np.arange(3)
        client.state["last"] = np.float32(client.num_samples)
        client.state["rounds"] += 1
        return super().train(client, down)


def test_states_may_hold_arrays_of_numpy(tmp_path):
    unbroken = make(Counting())
    unbroken.run(3)
    make(Counting()).run(2, checkpoint_dir=tmp_path)
    resumed = make(Counting())
    resumed.load_checkpoint(tmp_path)
    kept = next(iter(resumed.client_states.values()))
    assert type(kept["seen"]) is np.ndarray
    assert (type(kept["last"]), type(kept["rounds"])) == (np.float32, np.int64)
    resumed.run(1)
    assert resumed.state_digest() == unbroken.state_digest()


def test_a_state_that_cannot_be_stored_is_named(tmp_path):
    simulation = make(Counting())
    simulation.run(1)
    next(iter(simulation.client_states.values()))["seen"] = np.zeros(2, dtype=np.complex64)
    with pytest.raises(CheckpointError, match="type ndarray cannot be stored in a checkpoint"):
        simulation.save_checkpoint(tmp_path)


def test_another_backend_may_go_on(tmp_path, executor):
    unbroken = make()
    unbroken.run(4)
    make().run(2, checkpoint_dir=tmp_path)
    resumed = make(executor=executor)
    resumed.load_checkpoint(tmp_path)
    resumed.run(2)
    assert resumed.state_digest() == unbroken.state_digest()


def test_checkpoints_come_every_so_many_rounds_and_two_are_kept(tmp_path):
    make().run(7, checkpoint_dir=tmp_path, checkpoint_every=2)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["round-000006", "round-000007"]


def test_one_checkpoint_can_be_named(tmp_path):
    make().run(4, checkpoint_dir=tmp_path, checkpoint_every=2)
    simulation = make()
    assert simulation.load_checkpoint(tmp_path / "round-000002") == 2


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"seed": 5}, "seed"),
        ({"algorithm": "fedavg"}, "algorithm"),
        ({"cohort_size": 2}, "cohort_size"),
        ({"reproducibility": "L0"}, "reproducibility"),
    ],
)
def test_a_foreign_checkpoint_is_refused_and_changes_nothing(tmp_path, options, field):
    make().run(1, checkpoint_dir=tmp_path)
    other = make(**options)
    before = other.state_digest()
    with pytest.raises(CheckpointError, match=f"another simulation: its {field}"):
        other.load_checkpoint(tmp_path)
    assert other.state_digest() == before
    assert other.rounds_done == 0


def test_nothing_to_resume_from(tmp_path):
    with pytest.raises(CheckpointError, match="holds no checkpoint"):
        make().load_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match="holds no checkpoint"):
        make().load_checkpoint(tmp_path / "missing")


@pytest.mark.parametrize("name", ["state.safetensors", "manifest.json"])
@pytest.mark.parametrize("damage", ["flip", "truncate", "empty", "missing"])
def test_every_damage_is_found_and_named(tmp_path, name, damage):
    make().run(1, checkpoint_dir=tmp_path)
    file = tmp_path / "round-000001" / name
    data = bytearray(file.read_bytes())
    if damage == "flip":
        data[len(data) // 2] ^= 0x10
    elif damage == "truncate":
        del data[-7:]
    elif damage == "empty":
        data.clear()
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(data)
    with pytest.raises(CheckpointError, match="round-000001"):
        make().load_checkpoint(
            tmp_path / "round-000001" if name == "state.safetensors" else tmp_path
        )


def test_another_schema_is_refused(tmp_path):
    import hashlib

    make().run(1, checkpoint_dir=tmp_path)
    file = tmp_path / "round-000001" / "manifest.json"
    manifest = json.loads(json.loads(file.read_text())["manifest"])
    text = json.dumps({**manifest, "schema_version": 99})
    digest = hashlib.sha256(text.encode()).hexdigest()
    file.write_text(json.dumps({"manifest": text, "sha256": digest}))
    with pytest.raises(CheckpointError, match="schema 99"):
        make().load_checkpoint(tmp_path)


def test_a_checkpoint_of_another_machine_warns(tmp_path, monkeypatch):
    make().run(1, checkpoint_dir=tmp_path)
    other = make()
    other.history.pinned["torch_capability"] = "AVX9000"
    with pytest.warns(UserWarning, match="torch_capability is .* on one side and 'AVX9000'"):
        other.load_checkpoint(tmp_path)


def test_a_full_disk_keeps_the_older_checkpoints(tmp_path, monkeypatch):
    simulation = make()
    simulation.run(1, checkpoint_dir=tmp_path)

    def full(path, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fedbench.simulation.checkpoint._write_through", full)
    with pytest.raises(OutputError, match=r"cannot write checkpoints to '.*': No space left on"):
        simulation.run(1, checkpoint_dir=tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["round-000001"]
    assert make().load_checkpoint(tmp_path) == 1


@pytest.mark.parametrize(
    ("folder", "reason"),
    [("/proc/x", "No such"), ("file", "it is a file"), ("file/x", "Not a")],
)
def test_an_unwritable_folder_is_found_before_the_first_round(tmp_path, folder, reason):
    (tmp_path / "file").write_text("I am a file")
    simulation = make()
    message = rf"^cannot write checkpoints to '.*{folder}': {reason}.*\. Give a folder"
    with pytest.raises(OutputError, match=message):
        simulation.run(2, checkpoint_dir=tmp_path / folder)
    with pytest.raises(OutputError, match=message):
        simulation.save_checkpoint(tmp_path / folder)
    assert simulation.rounds_done == 0
    assert (tmp_path / "file").read_text() == "I am a file"


WRITER = """
import sys
import fedbench
from tests.simulation.helpers import batch_norm_model, tiny_workload
simulation = fedbench.Simulation(tiny_workload(batch_norm_model), algorithm="scaffold")
try:
    simulation.load_checkpoint(sys.argv[1])
except fedbench.errors.CheckpointError as error:
    if "holds no checkpoint" not in str(error):
        raise
left = 40 - simulation.rounds_done
print("ready", flush=True)
if left:
    simulation.run(left, evaluate_every=0, checkpoint_dir=sys.argv[1], checkpoint_every=1)
print(simulation.state_digest(), flush=True)
"""


def kill_and_resume(directory, kills):
    """Kill a writing run again and again, then let it finish; return its digest."""
    chance = random.Random(3)
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    done = 0
    while True:
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(directory)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        if process.stdout.readline() != "ready\n":
            pytest.fail(process.communicate()[1])
        if done < kills:
            time.sleep(chance.uniform(0.0, 0.15))
            process.send_signal(signal.SIGKILL)
            done += process.wait() == -signal.SIGKILL
            process.communicate()
            if done < kills and len(list(directory.glob("round-000040"))):
                shutil.rmtree(directory)
                directory.mkdir()
            continue
        output, errors = process.communicate()
        assert process.returncode == 0, errors
        return output.strip()


@pytest.mark.parametrize("kills", [3, pytest.param(30, marks=pytest.mark.slow)])
def test_killed_runs_end_in_the_digest_of_the_unbroken_one(tmp_path, kills):
    unbroken = make()
    unbroken.run(40, evaluate_every=0)
    assert kill_and_resume(tmp_path, kills) == unbroken.state_digest()
    assert not list(tmp_path.glob(".unfinished-*"))
