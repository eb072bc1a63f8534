"""Linear and fully connected classifiers."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import nn

from fedbench.models.initialization import initialized

__all__ = ["linear_regression", "logistic_regression", "mlp"]


class _LinearRegression(nn.Linear):
    """A linear layer with one output, whose unit dimension is dropped."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return super().forward(inputs).squeeze(-1)


def linear_regression(in_features: int, *, bias: bool = True, seed: int = 0) -> nn.Module:
    """Return linear regression to one value.

    Parameters
    ----------
    in_features : int
        Number of values per sample.
    bias : bool
        Whether the model has an intercept.
    seed : int
        Seed of the initial parameters.

    Returns
    -------
    torch.nn.Module
        ``[batch, in_features]`` to values ``[batch]``; the parameters are called ``weight``
        (``[1, in_features]``) and ``bias`` (``[1]``).
    """
    return initialized(lambda: _LinearRegression(in_features, 1, bias=bias), seed=seed)


def logistic_regression(in_features: int, num_classes: int, *, seed: int = 0) -> nn.Module:
    """Return multinomial logistic regression: one linear layer on the flattened input.

    Parameters
    ----------
    in_features : int
        Number of values per sample.
    num_classes : int
        Number of classes.
    seed : int
        Seed of the initial parameters.

    Returns
    -------
    torch.nn.Module
        ``[batch, ...]`` to logits ``[batch, num_classes]``;
        ``(in_features + 1) * num_classes`` parameters.
    """
    return mlp(in_features, num_classes, hidden=(), seed=seed)


def mlp(
    in_features: int, num_classes: int, *, hidden: Sequence[int] = (200, 200), seed: int = 0
) -> nn.Module:
    """Return a perceptron with ReLU on the flattened input.

    The default widths are those of the "2NN" of McMahan et al. (2017): 199,210 parameters
    for 784 inputs and 10 classes.

    Parameters
    ----------
    in_features : int
        Number of values per sample.
    num_classes : int
        Number of classes.
    hidden : sequence of int
        Widths of the hidden layers.
    seed : int
        Seed of the initial parameters.

    Returns
    -------
    torch.nn.Module
        ``[batch, ...]`` to logits ``[batch, num_classes]``.
    """
    widths = [in_features, *hidden, num_classes]
    for width in widths:
        if not isinstance(width, int) or isinstance(width, bool) or width < 1:
            raise ValueError(
                f"in_features, hidden and num_classes must be integers >= 1, got {width!r}. "
                "Leave a layer out instead of giving it no units."
            )

    def build() -> nn.Module:
        layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
        for position in range(len(widths) - 1):
            if position:
                layers[f"relu{position}"] = nn.ReLU()
            layers[f"linear{position + 1}"] = nn.Linear(widths[position], widths[position + 1])
        return nn.Sequential(layers)

    return initialized(build, seed=seed)
