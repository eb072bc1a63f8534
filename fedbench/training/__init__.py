"""Local work of a client: one model per worker, flat parameters, batches by index."""

from fedbench.training.evaluation import EvaluationSums, evaluate_batches
from fedbench.training.local_sgd import (
    LocalWork,
    SGDStep,
    batch_gradient,
    full_gradient,
    local_sgd,
    shuffled_batches,
)
from fedbench.training.losses import LOSSES, Loss
from fedbench.training.parameters import ParameterLayout
from fedbench.training.worker_model import ModelState, WorkerModel, worker_model

__all__ = [
    "LOSSES",
    "EvaluationSums",
    "LocalWork",
    "Loss",
    "ModelState",
    "ParameterLayout",
    "SGDStep",
    "WorkerModel",
    "batch_gradient",
    "evaluate_batches",
    "full_gradient",
    "local_sgd",
    "shuffled_batches",
    "worker_model",
]
