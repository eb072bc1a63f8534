"""Local work of a client: one model per worker, flat parameters, batches by index."""

from fedbench.training.batches import shuffled_batches
from fedbench.training.components import made
from fedbench.training.descriptions import described
from fedbench.training.evaluation import EvaluationSums, evaluate_batches
from fedbench.training.exchange import Exchange, Roles
from fedbench.training.flat_vectors import (
    add_vectors,
    copy_vector,
    empty_vector_like,
    subtract_vectors,
)
from fedbench.training.local_sgd import (
    LocalWork,
    SGDStep,
    batch_gradient,
    full_gradient,
    local_sgd,
)
from fedbench.training.losses import LOSSES, Loss
from fedbench.training.optimizers import OPTIMIZERS, MakeOptimizer, resolve_optimizer
from fedbench.training.own_training import OwnTraining, run_own_training
from fedbench.training.parameters import ParameterLayout
from fedbench.training.schedules import (
    SCHEDULES,
    Constant,
    Cosine,
    Exponential,
    Schedule,
    Step,
    scheduled_lr,
)
from fedbench.training.values import checked_flag, plain, whole
from fedbench.training.vectorized import (
    StackedResult,
    refuse_work,
    stacked_sgd,
    vectorized_model,
)
from fedbench.training.vectorized_reading import DenseLayer, DenseNetwork
from fedbench.training.vectorized_step import VectorizedModel
from fedbench.training.worker_model import ModelState, OwnEntries, WorkerModel, worker_model

__all__ = [
    "LOSSES",
    "OPTIMIZERS",
    "SCHEDULES",
    "Constant",
    "Cosine",
    "DenseLayer",
    "DenseNetwork",
    "EvaluationSums",
    "Exchange",
    "Exponential",
    "LocalWork",
    "Loss",
    "MakeOptimizer",
    "ModelState",
    "OwnEntries",
    "OwnTraining",
    "ParameterLayout",
    "Roles",
    "SGDStep",
    "Schedule",
    "StackedResult",
    "Step",
    "VectorizedModel",
    "WorkerModel",
    "add_vectors",
    "batch_gradient",
    "checked_flag",
    "copy_vector",
    "described",
    "empty_vector_like",
    "evaluate_batches",
    "full_gradient",
    "local_sgd",
    "made",
    "plain",
    "refuse_work",
    "resolve_optimizer",
    "run_own_training",
    "scheduled_lr",
    "shuffled_batches",
    "stacked_sgd",
    "subtract_vectors",
    "vectorized_model",
    "whole",
    "worker_model",
]
