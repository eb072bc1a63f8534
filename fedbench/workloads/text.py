"""The workload on real text."""

from __future__ import annotations

from functools import partial

from fedbench.data import FederatedDataset, load_python_docs
from fedbench.models import char_lstm
from fedbench.workloads.base import Workload

__all__ = ["python_docs_clients", "text_lstm"]


def python_docs_clients(seed: int = 0) -> FederatedDataset:
    """Return Python's language reference, one client per topic; `seed` changes nothing."""
    return load_python_docs(seed=seed).federate_by_key()


def text_lstm() -> Workload:
    """Return the character LSTM of FedAvg and LEAF: long sequences of small operations.

    The default rounds measure speed. They are far too few for a language model, which needs
    thousands.
    """
    return Workload(
        name="text-lstm",
        description="character LSTM on Python's language reference, one client per topic",
        dataset=python_docs_clients,
        model=partial(char_lstm, 97),
        cohort_size=5,
        rounds=6,
        lr=0.8,
        batch_size=10,
        local_epochs=1,
        eval_every=3,
    )
