"""Aggregation of clients' updates: layouts, the correctly rounded mean, streaming, robust rules.

Every function takes torch CPU tensors, numpy arrays, state dicts of either, or updates stacked in
one array, reads them in place, and returns the kind it was given. Using it with numpy does not
import torch.
"""

from __future__ import annotations

from fedbench.aggregation.layout import FlatLayout
from fedbench.aggregation.mean import mean
from fedbench.aggregation.threads import get_num_threads, set_num_threads

__all__ = ["FlatLayout", "get_num_threads", "mean", "set_num_threads"]
