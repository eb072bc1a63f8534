"""The round loop.

Everything that touches the server happens here, on the thread that calls: planning, broadcasting,
aggregating, committing. Everything that touches a client happens in a client task, wherever the
executor runs it. A round either succeeds and is committed as a whole, or leaves no trace.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

from fedbench.algorithms import Algorithm, Client, ServerSetup, ServerState
from fedbench.errors import EnclosureError
from fedbench.executors import Executor, Resident
from fedbench.executors.nesting import inside_client_task
from fedbench.reproducibility import level_or_default, pinned, torch_generator
from fedbench.simulation.arguments import (
    check_flags,
    checked_cohort,
    loaded_dataset,
    positions_of,
    resolve_algorithm,
    resolve_executor,
    resolve_workload,
)
from fedbench.simulation.checkpoint import prepare_folder
from fedbench.simulation.client_task import ClientSide
from fedbench.simulation.devices import checked_device
from fedbench.simulation.history import History, RoundRecord
from fedbench.simulation.one_round import Committed, RoundRunner
from fedbench.simulation.options import make_options, refuse_compression
from fedbench.simulation.resume import digest_of, restore, save
from fedbench.simulation.rounds import Observer, unobserved
from fedbench.simulation.vectorized import vectorized_side
from fedbench.training import whole
from fedbench.workloads import Workload

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

__all__ = ["Simulation"]


class Simulation:
    """A workload under an algorithm, run round by round on an executor.

    Parameters
    ----------
    workload : str, Workload or mapping
        Name of a built-in workload, a :class:`~fedbench.workloads.Workload`, or its parts as a
        mapping of keyword arguments (``{"dataset": ..., "model": ..., ...}``).
    algorithm : str, Algorithm or mapping, optional
        Replaces the workload's algorithm; a mapping is a name with hyperparameters.
    executor : str or Executor
        Name of a backend, whose executor the simulation then owns and closes, or an executor
        that stays yours.
    workers : int, optional
        Worker count of an owned executor.
    seed : int
        Root of the random streams of this run: model initialisation, cohorts, clients. The data
        and their partition belong to the workload and do not change with it.
    reproducibility : {"L1", "L0"}, optional
        By default the environment variable ``FEDBENCH_REPRODUCIBILITY``, or else ``"L1"``.
        With ``"L1"`` every client task has its own random streams and the results are bitwise
        the same on every backend, worker count and completion order. With ``"L0"`` clients draw
        from the process's global generators.
    cohort_size : int, optional
        Replaces the workload's number of clients per round.
    check_enclosure : bool
        Watch every client task and raise :class:`~fedbench.errors.EnclosureError` if it writes
        to the broadcast, keeps or sends memory that is not its own, or draws from a global
        generator. Costs digests of the broadcast around every task; for tests and debugging.
    reduce_in_workers : bool, optional
        Let the workers fold the updates, so that one partial a worker travels and not every
        update; by default where the updates of a round would take much of the memory. The bits
        are the same.
    vectorized : bool, optional
        Train the clients of a chunk at once, their parameters stacked, where model and algorithm
        allow it; as the workload says by default. The results are those of clients trained one by
        one up to rounding, and many times quicker for small models. See the guide.
    device : str
        Where clients train and models are evaluated: ``"cpu"``, ``"cuda"`` or ``"cuda:N"``. The
        server stays on the CPU. A GPU reproduces only itself.
    observer : callable, optional
        ``observer(phase, client_id, state)``, called on this thread with what each phase of a
        round left: ``"broadcast"``, ``"train"`` and ``"uplink"`` for each client, ``"aggregate"``
        and ``"evaluate"``. What it is given is to be read only.
    around_client : callable, optional
        Called with the :class:`~fedbench.algorithms.Client` in its task before it trains.
    **options
        Participation, simulated faults, schedules, optimisers, exchange, compression and
        evaluation: the fields of :class:`SimulationOptions`. They replace those of the workload.

    Attributes
    ----------
    client_states : dict
        Committed state of the clients that have taken part, by client id (stateful algorithms).
    rounds_done : int
        Number of committed rounds.

    Raises
    ------
    UnknownNameError, ValueError, TypeError
        If an argument is not as described.
    VectorizationError
        If the clients cannot be vectorised; the message says why. A ``ValueError``.

    Examples
    --------
    >>> import fedbench
    >>> simulation = fedbench.Simulation("digits-logreg", seed=1)
    >>> history = simulation.run(rounds=2)
    >>> len(history)
    2
    """

    def __init__(
        self,
        workload: str | Workload | Mapping[str, Any],
        *,
        algorithm: str | Algorithm | Mapping[str, Any] | None = None,
        executor: str | Executor = "sequential",
        workers: int | None = None,
        seed: int = 0,
        reproducibility: str | None = None,
        cohort_size: int | None = None,
        check_enclosure: bool = False,
        reduce_in_workers: bool | None = None,
        vectorized: bool | None = None,
        device: str = "cpu",
        observer: Observer | None = None,
        around_client: Callable[[Client], None] | None = None,
        **options: Any,
    ) -> None:
        check_flags(
            check_enclosure=check_enclosure,
            reduce_in_workers=reduce_in_workers,
            vectorized=vectorized,
        )
        self.workload = resolve_workload(workload)
        self.seed = seed
        self.level = level_or_default(reproducibility)
        self.algorithm = resolve_algorithm(algorithm, self.workload)
        self.dataset = loaded_dataset(self.workload)
        size = self.workload.cohort_size if cohort_size is None else cohort_size
        self.cohort_size = checked_cohort(size, self.dataset.num_clients)
        self.options = make_options(self.workload.options, options)
        self.options.refuse_for(self.algorithm)
        sample = self.options.participation.sampler(self.dataset, self.cohort_size)
        self._executor, self._owns_executor = resolve_executor(executor, workers)
        self._side = Resident(
            ClientSide.of(
                self.workload,
                self.dataset,
                self.algorithm,
                self.options,
                seed=seed,
                level=self.level,
                check_enclosure=check_enclosure,
                around_client=around_client,
                device=checked_device(device, self._executor.backend),
            )
        )
        wanted = self.workload.vectorized if vectorized is None else vectorized
        self._model = self._side.value.server_model()
        dtype = self._model.layout.dtype
        refuse_compression(self.options.compression, dtype, reduce_in_workers)
        self._rounds = RoundRunner(
            side=self._side,
            options=self.options,
            sample=sample,
            initial=self._model.state(),
            model=self._model,
            stacked=vectorized_side(self._side.value, self._model) if wanted else None,
            reduce_in_workers=reduce_in_workers,
            observe=observer or unobserved,
        )
        self._server = self._initial_server()
        self.client_states: dict[int | str, dict[str, Any]] = {}
        self.rounds_done = 0
        self.history = History(
            pinned=pinned(
                self._executor.intraop_threads,
                device=self._side.value.device,
                vectorized=f"on {self._executor.workers} workers" if wanted else "no",
            )
        )

    @property
    def server(self) -> ServerState:
        """The committed server state; refused inside a client task (invariant I2)."""
        if inside_client_task():
            raise EnclosureError(
                "the server's state was touched inside a client task. Clients read the broadcast "
                "only: let the algorithm's broadcast() send what they need."
            )
        return self._server

    @server.setter
    def server(self, state: ServerState) -> None:
        if inside_client_task():
            raise EnclosureError(
                "the server's state was written inside a client task. Return an update and change "
                "the server in aggregate()."
            )
        self._server = state

    @property
    def executor(self) -> Executor:
        """The executor that runs the client tasks, started if the simulation owns it."""
        if self._owns_executor:
            self._executor.start()
        return self._executor

    @property
    def num_parameters(self) -> int:
        """Number of trainable parameters of the model."""
        return self._model.layout.num_parameters

    def __repr__(self) -> str:
        changed = self.options.changed()
        further = "".join(f", {name}={value}" for name, value in changed.items())
        return (
            f"Simulation({self.workload.name!r}, {self.algorithm!r}, {self._executor.backend}, "
            f"seed={self.seed}, {self.cohort_size} of {self.dataset.num_clients} clients, "
            f"{self.rounds_done} rounds done{further})"
        )

    def __enter__(self) -> Self:
        _ = self.executor
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the executor if the simulation owns it; safe to call again."""
        if self._owns_executor:
            self._executor.close()

    def run(
        self,
        rounds: int | None = None,
        *,
        evaluate_every: int | None = None,
        on_round: Callable[[RoundRecord], None] | None = None,
        checkpoint_dir: str | Path | None = None,
        checkpoint_every: int = 10,
    ) -> History:
        """Run rounds and return the history of the simulation so far.

        Parameters
        ----------
        rounds : int, optional
            How many; the workload's number by default.
        evaluate_every : int, optional
            Evaluate the server's model after every so many rounds (the workload's number by
            default) and after the last one; 0 never evaluates.
        on_round : callable, optional
            Called with each :class:`RoundRecord`, on this thread.
        checkpoint_dir : str or path, optional
            Where to save a checkpoint after every `checkpoint_every` rounds of the simulation
            and after the last one.
        checkpoint_every : int
            Rounds between two checkpoints.

        Returns
        -------
        History
            All committed rounds, those of earlier calls and of before a resume included.

        Raises
        ------
        ClientTaskError, WorkerDiedError, NonFiniteError
            If a round fails. It is then not committed: the simulation is as it was before.
        OutputError
            If `checkpoint_dir` cannot be written; raised before the first round where it can be.
        """
        count = whole("rounds", self.workload.rounds if rounds is None else rounds)
        every = self.workload.eval_every if evaluate_every is None else evaluate_every
        every = whole("evaluate_every", every, least=0)
        checkpoint_every = whole("checkpoint_every", checkpoint_every)
        if checkpoint_dir is not None:
            prepare_folder(Path(checkpoint_dir))
        for left in reversed(range(count)):
            number = self.rounds_done + 1
            record = self.run_round(evaluate=every > 0 and (number % every == 0 or not left))
            if checkpoint_dir is not None and (number % checkpoint_every == 0 or not left):
                self.save_checkpoint(checkpoint_dir)
            if on_round is not None:
                on_round(record)
        return self.history

    def save_checkpoint(self, directory: str | Path) -> Path:
        """Write the committed state to a new checkpoint in `directory` and return its path.

        The two newest checkpoints are kept. A reader finds a whole checkpoint or none. An
        ``OutputError`` says why a directory cannot be written.
        """
        return save(self, Path(directory))

    def load_checkpoint(self, path: str | Path) -> int:
        """Go on from a checkpoint and return the number of its rounds.

        What follows has the bits of the unbroken run, on any backend.

        Parameters
        ----------
        path : str or path
            A checkpoint, or a directory of checkpoints, of which the newest is taken.

        Raises
        ------
        CheckpointError
            If there is none, or it is damaged, or it belongs to another simulation (other
            workload, algorithm, seed, level, cohort size or model); the simulation is then as it
            was.
        """
        return restore(self, Path(path))

    def run_round(self, *, evaluate: bool = False) -> RoundRecord:
        """Run one round, commit it and return its record.

        Parameters
        ----------
        evaluate : bool
            Evaluate the server's new model on the test samples.
        """
        outcome = self._rounds.run(self.executor, self._committed(), evaluate=evaluate)
        self.server = outcome.server
        self.client_states |= outcome.clients
        self.rounds_done += 1
        self.history.records.append(outcome.record)
        return outcome.record

    def evaluate(
        self, clients: Literal["all"] | Iterable[int | str] = ()
    ) -> dict[str, dict[str, float]]:
        """Return the metrics of the server's models by split; mostly there is one, ``"test"``.

        Parameters
        ----------
        clients : {"all"} or iterable of (int or str)
            Ids of clients that evaluate on their own data as well; see
            :attr:`RoundRecord.metrics` for their splits.

        Raises
        ------
        ValueError
            If there is no such client.
        """
        positions = positions_of(self.dataset.client_ids, clients)
        return self._rounds.evaluate(self.executor, self._committed(), positions)[0]

    def model_state(self) -> dict[str, Tensor]:
        """Return copies of the server model's parameters and buffers by name."""
        self._model.load(self.server.model)
        return self._model.state_dict()

    def client_model_state(self, client_id: int | str) -> dict[str, Tensor]:
        """Return copies of a client's parameters and buffers by name.

        They are those of its personal model, if the algorithm gives it one, or else those of the
        server's model; entries that stay on clients are the client's own, the initial ones if it
        has not taken part. A ``ValueError`` says if there is no such client.
        """
        positions_of(self.dataset.client_ids, [client_id])
        return self._rounds.client_model_state(self._committed(), client_id)

    def state_digest(self) -> str:
        """Return the SHA-256 of the server's state and of every client's state, in hexadecimal."""
        return digest_of(self.server, self.client_states)

    def _initial_server(self) -> ServerState:
        with self._side.value.server_draws("init_server"):
            return self.algorithm.init_server(
                ServerSetup(
                    model=self._model.state(),
                    architecture=self._model,
                    num_clients=self.dataset.num_clients,
                    generator=functools.partial(torch_generator, self.seed),
                )
            )

    def _committed(self) -> Committed:
        return Committed(self.server, self.client_states, self.rounds_done)
