"""Aggregation of clients' updates: layouts, the correctly rounded mean, streaming, robust rules.

Every function takes torch CPU tensors, numpy arrays, state dicts of either, or updates stacked in
one array, reads them in place, and returns the kind it was given. The mean and the robust rules
also take tensors on a GPU: they are copied to the host and the result back, so that its bits are
those of every other machine. Using it with numpy does not import torch.
"""

from __future__ import annotations

from fedbench.aggregation.client_steps import sgd_step
from fedbench.aggregation.coordinatewise import mean_around_median, median, trimmed_mean
from fedbench.aggregation.geometric import centered_clip, geometric_median
from fedbench.aggregation.layout import FlatLayout
from fedbench.aggregation.mean import mean
from fedbench.aggregation.preaggregation import bucketing, clip_norms, nearest_neighbor_mixing
from fedbench.aggregation.quantized import QuantizedUpdate, quantize, quantized_mean
from fedbench.aggregation.rules import RULES
from fedbench.aggregation.selection import bulyan, krum, multi_krum
from fedbench.aggregation.server_steps import (
    fedadagrad_step,
    fedadam_step,
    fedavgm_step,
    fedyogi_step,
)
from fedbench.aggregation.sparse import SparseUpdate, sparse_mean, top_k
from fedbench.aggregation.streaming import StreamingMean
from fedbench.aggregation.threads import get_num_threads, set_num_threads

__all__ = [
    "RULES",
    "FlatLayout",
    "QuantizedUpdate",
    "SparseUpdate",
    "StreamingMean",
    "bucketing",
    "bulyan",
    "centered_clip",
    "clip_norms",
    "fedadagrad_step",
    "fedadam_step",
    "fedavgm_step",
    "fedyogi_step",
    "geometric_median",
    "get_num_threads",
    "krum",
    "mean",
    "mean_around_median",
    "median",
    "multi_krum",
    "nearest_neighbor_mixing",
    "quantize",
    "quantized_mean",
    "set_num_threads",
    "sgd_step",
    "sparse_mean",
    "top_k",
    "trimmed_mean",
]
