"""The keys of a run: what they are called, what they may be, and what they are by default.

This one table makes the YAML keys, the flags of ``fedbench run``, the environment variables and
the page in the guide. It imports neither torch nor pandas, so that ``--help`` stays quick.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    model_serializer,
    model_validator,
)

__all__ = ["COMMAND_KEYS", "COMPONENTS", "Component", "RunConfiguration", "is_text"]

Count = Annotated[int, Field(ge=1)]
Angles = Annotated[list[Annotated[float, Field(allow_inf_nan=False)]], Field(min_length=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Component(BaseModel):
    """Something chosen by name, with its options: ``fedprox`` or ``{name: fedprox, mu: 0.1}``.

    Attributes
    ----------
    name : str
        A name of the component's registry, or ``module:attribute`` of your own.
    """

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    name: Annotated[str, Field(min_length=1)]

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @model_serializer
    def _shortest(self) -> str | dict[str, Any]:
        return {"name": self.name, **self.options} if self.options else self.name

    @property
    def options(self) -> dict[str, Any]:
        """The options by name."""
        return dict(self.__pydantic_extra__ or {})

    @property
    def label(self) -> str:
        """The component as short text for tables, such as ``dirichlet(alpha=0.3)``."""
        inside = ", ".join(f"{name}={value}" for name, value in self.options.items())
        return f"{self.name}({inside})" if inside else self.name


def _key(default: Any, summary: str, metavar: str) -> Any:
    """Return a field: its line in help texts and what stands for its value there."""
    return Field(default, description=summary, json_schema_extra={"metavar": metavar})


class RunConfiguration(BaseModel):
    """Everything that `fedbench run` can be told, validated.

    Made by :func:`fedbench.configuration.load`. None stands for "as the workload has it", or for
    "nothing" where there is no workload to ask.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    workload: Component | None = _key(None, "A complete job to start from.", "NAME")
    dataset: Component | None = _key(None, "Data, instead of the workload's.", "NAME")
    partitioner: Component | None = _key(
        None, "Division over clients, instead of the workload's.", "NAME"
    )
    num_clients: Count | None = _key(None, "Clients to divide the data over.", "N")
    rotate: Angles | None = _key(
        None, "Feature shift: rotate client i's images by the i-th of these degrees.", "[A,B,...]"
    )
    data_seed: int = _key(0, "Seed of the test split and of the partition.", "N")
    model: Component | None = _key(None, "Model, instead of the workload's.", "NAME")
    loss: str | None = _key(None, "Loss of the clients, instead of the workload's.", "NAME")
    algorithm: Component | None = _key(None, "Algorithm, instead of the workload's.", "NAME")
    cohort_size: Count | None = _key(None, "Clients per round.", "N")
    rounds: Count | None = _key(None, "Rounds.", "N")
    local_epochs: Count | None = _key(None, "Passes over a client's samples per round.", "N")
    batch_size: Count | None = _key(None, "Samples per local step.", "N")
    lr: Positive | None = _key(None, "Learning rate of the clients.", "X")
    momentum: Annotated[float, Field(ge=0, lt=1)] | None = _key(
        None, "Momentum of the clients' SGD.", "X"
    )
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = _key(
        None, "L2 penalty of the clients' SGD.", "X"
    )
    nesterov: bool | None = _key(None, "Nesterov's form of the momentum.", "true|false")
    schedule: Component | None = _key(None, "Learning rate over the rounds.", "NAME")
    clip_norm: Positive | None = _key(None, "Largest norm of a gradient.", "X")
    clip_value: Positive | None = _key(None, "Largest entry of a gradient.", "X")
    optimizer: Component | None = _key(None, "Optimiser of the clients instead of SGD.", "NAME")
    train: str | None = _key(
        None, "Your function train(model, data, rng) instead of SGD.", "MODULE:NAME"
    )
    drop_last: bool | None = _key(
        None, "Leave out an epoch's last batch where it is smaller.", "true|false"
    )
    participation: Component | None = _key(None, "How cohorts are sampled.", "NAME")
    client_dropout: Annotated[float, Field(ge=0, lt=1)] | None = _key(
        None, "Probability that a sampled client fails.", "X"
    )
    stragglers: Component | None = _key(None, "Simulated durations and a deadline.", "NAME")
    buffers: Literal["average", "local"] | None = _key(
        None, "Average the model's buffers or keep them local.", "NAME"
    )
    integers: Literal["max", "server", "sum"] | None = _key(
        None, "What becomes of integer buffers: max, server or sum.", "NAME"
    )
    frozen: list[str] | None = _key(None, "Patterns of parameters that are not trained.", "LIST")
    personal: list[str] | None = _key(
        None, "Patterns of entries that never leave their client.", "LIST"
    )
    compression: Component | None = _key(None, "Compression of the uplink.", "NAME")
    validation: Annotated[float, Field(ge=0, lt=1)] | None = _key(
        None, "Share of each client's samples that is kept for its evaluation.", "X"
    )
    evaluate_clients: Literal["cohort", "all"] | None = _key(
        None, "Clients that evaluate on their own data.", "cohort|all"
    )
    eval_every: Annotated[int, Field(ge=0)] | None = _key(
        None, "Rounds between two evaluations; 0: never.", "N"
    )
    seed: int = _key(0, "Seed of model, cohorts and clients.", "N")
    reproducibility: str = _key(
        "L1",
        "L1: the same bits on every backend; L0: the process's global generators.",
        "LEVEL",
    )
    backend: Component = _key(
        Component(name="sequential"), "Where clients run; see `fedbench list`.", "NAME"
    )
    workers: Count | None = _key(
        None, "Workers of the backend; one per usable core by default.", "N"
    )
    intraop_threads: Count = _key(1, "Threads of torch inside one client task.", "N")
    retries: Annotated[int, Field(ge=0)] = _key(
        0, "How often a task is run again if its worker dies.", "N"
    )
    timeout: Positive | None = _key(None, "Seconds that a client task may take.", "SECONDS")
    vectorized: bool | None = _key(
        None, "Train many clients of a small model in one task, stacked.", "true|false"
    )
    device: str = _key("cpu", "Where clients train: cpu, cuda or cuda:N.", "DEVICE")
    check_enclosure: bool = _key(
        False, "Watch that client tasks touch only what is theirs.", "true|false"
    )
    reduce_in_workers: bool | None = _key(
        None, "Let workers fold the updates; by default where memory asks for it.", "true|false"
    )
    checkpoints: str | None = _key(
        None, "Save checkpoints here; the newest two are kept.", "FOLDER"
    )
    checkpoint_every: Count = _key(10, "Rounds between two checkpoints.", "N")
    resume: bool = _key(
        False, "Go on from the newest checkpoint in the folder, if there is one.", "true|false"
    )
    out: str | None = _key(
        None, "Write all metrics, one per line: .csv .md .json .parquet.", "FILE"
    )
    plot: str | None = _key(None, "Draw learning curves: .svg .png.", "FILE")
    parallel: Count = _key(1, "Runs of a matrix at once, one core each.", "N")

    def to_plain(self) -> dict[str, Any]:
        """Return the keys that are set, or have a default, as plain values."""
        return self.model_dump(exclude_none=True)

    def component(self, key: str) -> Component | None:
        """Return the component at `key`, one of ``COMPONENTS``."""
        return cast("Component | None", getattr(self, key))


COMPONENTS = tuple(
    name
    for name, field in RunConfiguration.model_fields.items()
    if Component in (field.annotation, *get_args(field.annotation))
)
"""The keys that hold a name with options."""

COMMAND_KEYS = ("checkpoints", "checkpoint_every", "resume", "out", "plot", "parallel")
"""The keys that say what the command does with its runs; a matrix cannot sweep them."""


def is_text(key: str) -> bool:
    """Return whether the value of `key` is text that is to be taken as it stands."""
    return str in (
        annotation := RunConfiguration.model_fields[key].annotation,
        *get_args(annotation),
    )
