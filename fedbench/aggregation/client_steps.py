"""The optimiser step of a client, fused into one pass over flat vectors, in place."""

from __future__ import annotations

from typing import Any

from fedbench.aggregation._outputs import announce_writes
from fedbench.aggregation._steps import (
    KERNELS,
    coefficient,
    flag,
    like,
    separate,
    target,
)

__all__ = ["sgd_step"]


def sgd_step(
    parameters: Any,
    gradient: Any,
    *,
    lr: float,
    momentum: float = 0.0,
    nesterov: bool = False,
    velocity: Any = None,
    first_step: bool = False,
    weight_decay: float = 0.0,
    proximal: float = 0.0,
    anchor: Any = None,
    correction: Any = None,
) -> None:
    r"""One local SGD step in place, with the terms that federated algorithms add.

    Performs, element by element and each operation rounded once in the dtype of `parameters`::

        d = gradient
        d = d + weight_decay * parameters           # if weight_decay
        d = d + proximal * (parameters - anchor)    # if proximal: FedProx
        d = d + correction                          # if given: SCAFFOLD's c - c_i
        velocity[:] = momentum * velocity + d       # if momentum; = d if first_step
        d = d + momentum * velocity if nesterov else velocity
        parameters[:] = parameters - lr * d

    Parameters
    ----------
    parameters : array of any shape
        Contiguous numpy array or torch CPU tensor, float32 or float64; updated in place.
    gradient : array
        Like `parameters`; not modified. NaN and infinities are let through.
    lr : float
        Learning rate, at least 0. It and the other coefficients are rounded to the dtype first.
    momentum : float, default 0
        From 0 to 1. With 0 there is no `velocity`.
    nesterov : bool, default False
        Nesterov's momentum; needs `momentum`.
    velocity : array, optional
        Like `parameters`, updated in place; needed with `momentum`.
    first_step : bool, default False
        Start the velocity from the gradient whatever it holds, as torch.optim.SGD does.
    weight_decay : float, default 0
        L2 penalty, at least 0.
    proximal : float, default 0
        Coefficient of the pull towards `anchor` [1]_, at least 0.
    anchor : array, optional
        Like `parameters`, the server's parameters; needed with `proximal`.
    correction : array, optional
        Like `parameters`, added to the gradient, for example a control variate [2]_.

    Raises
    ------
    ValueError
        If a coefficient is out of range or not finite in the dtype, a needed vector is missing, a
        vector does not fit `parameters`, cannot be written or shares memory with another one.
        Nothing is written then.
    TypeError
        If an array is of another library or dtype, or a coefficient is not a real number.

    Notes
    -----
    Determinism: the bits are those of the operations above in numpy, or in torch with
    multiplications and additions as calls of their own (``torch.add(..., alpha=...)`` fuses
    them), in the default floating-point environment, on every machine.
    Time: one pass over memory instead of one per operation. Memory: none.

    References
    ----------
    .. [1] Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020.
    .. [2] Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning",
       ICML 2020.

    Examples
    --------
    >>> import numpy as np
    >>> from fedbench import aggregation
    >>> parameters = np.float32([1, 2])
    >>> aggregation.sgd_step(parameters, np.float32([10, 20]), lr=0.01)
    >>> parameters
    array([0.9, 1.8], dtype=float32)
    """
    own = target(parameters)
    lr = coefficient("lr", lr, own)
    momentum = coefficient("momentum", momentum, own, 1.0)
    weight_decay = coefficient("weight_decay", weight_decay, own)
    proximal = coefficient("proximal", proximal, own)
    nesterov, first_step = flag("nesterov", nesterov), flag("first_step", first_step)
    _require_pair("velocity", velocity, "momentum", momentum)
    if nesterov and not momentum:
        raise ValueError(
            "momentum must be greater than 0 with nesterov, got 0. Set it to 0.9, for example."
        )
    _require_pair("anchor", anchor, "proximal", proximal)
    written = [("parameters", own)]
    if momentum:
        written.append(("velocity", like(velocity, own, "velocity", True)))
    read = [like(gradient, own, "gradient", False)]
    pull = like(anchor, own, "anchor", False) if proximal else None
    shift = None if correction is None else like(correction, own, "correction", False)
    read += [buffer for buffer in (pull, shift) if buffer is not None]
    separate(written, read)
    KERNELS[own.dtype][0](
        own.size,
        own.handle,
        read[0].handle,
        None if pull is None else pull.handle,
        None if shift is None else shift.handle,
        written[1][1].handle if momentum else None,
        lr,
        weight_decay,
        proximal,
        momentum,
        nesterov,
        first_step,
    )
    announce_writes(buffer for _, buffer in written)


def _require_pair(name: str, vector: Any, coefficient_name: str, value: float) -> None:
    if value and vector is None:
        raise ValueError(
            f"{name} must be given with {coefficient_name}={value}, got None. "
            "Pass a vector like parameters."
        )
    if not value and vector is not None:
        raise ValueError(
            f"{coefficient_name} must not be 0 when {name} is given. Leave out {name}, or set it."
        )
