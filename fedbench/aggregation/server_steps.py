"""The optimiser steps of a server, fused into one pass over flat vectors, in place."""

from __future__ import annotations

from typing import Any

from fedbench.aggregation._outputs import announce_writes
from fedbench.aggregation._steps import (
    KERNELS,
    adaptivity,
    coefficient,
    flag,
    like,
    require_nonnegative,
    separate,
    target,
)

__all__ = ["fedadagrad_step", "fedadam_step", "fedavgm_step", "fedyogi_step"]


def fedavgm_step(
    parameters: Any,
    update: Any,
    velocity: Any,
    *,
    server_lr: float = 1.0,
    momentum: float = 0.9,
    nesterov: bool = False,
) -> None:
    r"""One server step of FedAvgM in place.

    Performs, each operation rounded once::

        velocity[:] = momentum * velocity + update
        step = momentum * velocity + update if nesterov else velocity
        step = server_lr * step                     # if server_lr is not 1
        parameters[:] = parameters + step

    Parameters
    ----------
    parameters : array of any shape
        The server's, as for :func:`sgd_step`; updated in place.
    update : array
        Like `parameters`: the mean of the clients' updates (their parameters minus the server's);
        not modified. NaN and infinities are let through, into `parameters` and `velocity`.
    velocity : array
        Like `parameters`, zero at the start; updated in place.
    server_lr : float, default 1
        Server learning rate, at least 0.
    momentum : float, default 0.9
        Decay of the velocity, from 0 to 1.
    nesterov : bool, default False
        Step along the velocity of the next round [1]_.

    Raises
    ------
    ValueError, TypeError
        As for :func:`sgd_step`.

    Notes
    -----
    Determinism, time and memory: as for :func:`sgd_step`.

    References
    ----------
    .. [1] Hsu, Qi and Brown, "Measuring the Effects of Non-Identical Data Distribution for
       Federated Visual Classification", 2019 (arXiv:1909.06335).

    Examples
    --------
    >>> import numpy as np
    >>> from fedbench import aggregation
    >>> parameters, velocity = np.float64([1.0]), np.float64([2.0])
    >>> aggregation.fedavgm_step(parameters, np.float64([1.0]), velocity, momentum=0.5)
    >>> parameters, velocity
    (array([3.]), array([2.]))
    """
    own = target(parameters)
    server_lr = coefficient("server_lr", server_lr, own)
    momentum = coefficient("momentum", momentum, own, 1.0)
    nesterov = flag("nesterov", nesterov)
    moving = like(velocity, own, "velocity", True)
    mean = like(update, own, "update", False)
    written = [("parameters", own), ("velocity", moving)]
    separate(written, [mean])
    KERNELS[own.dtype][1](
        own.size, own.handle, mean.handle, moving.handle, server_lr, momentum, nesterov
    )
    announce_writes(buffer for _, buffer in written)


def fedadagrad_step(
    parameters: Any,
    update: Any,
    first_moment: Any,
    second_moment: Any,
    *,
    server_lr: float = 0.1,
    beta1: float = 0.0,
    tau: float = 1e-3,
) -> None:
    r"""One server step of FedAdagrad in place.

    Performs, each operation rounded once::

        first_moment[:] = beta1 * first_moment + (1 - beta1) * update   # = update if beta1 is 0
        second_moment[:] = second_moment + first_moment * first_moment
        parameters[:] = parameters + server_lr * first_moment / (sqrt(second_moment) + tau)

    where ``1 - beta1`` is computed in float64 and then rounded to the dtype.

    Parameters
    ----------
    parameters : array of any shape
        The server's, as for :func:`sgd_step`; updated in place.
    update : array
        Like `parameters`: the mean of the clients' updates (their parameters minus the server's);
        not modified. NaN and infinities are let through, into `parameters` and the moments.
    first_moment, second_moment : array
        Like `parameters`, zero and ``tau**2`` at the start; updated in place. No element of
        `second_moment` may be negative; NaN is let through.
    server_lr : float, default 0.1
        Server learning rate, at least 0.
    beta1 : float, default 0
        Decay of the first moment, from 0 to 1.
    tau : float, default 1e-3
        Degree of adaptivity [1]_; positive.

    Raises
    ------
    ValueError
        As for :func:`sgd_step`, and if an element of `second_moment` is negative.
    TypeError
        As for :func:`sgd_step`.

    Notes
    -----
    Determinism, time and memory: as for :func:`sgd_step`; the square root is rounded correctly,
    as in numpy (``torch.sqrt`` may differ in the last bit).

    References
    ----------
    .. [1] Reddi et al., "Adaptive Federated Optimization", ICLR 2021, algorithm 2
       (arXiv:2003.00295).

    Examples
    --------
    >>> import numpy as np
    >>> from fedbench import aggregation
    >>> x, m, v = np.float64([1.0]), np.float64([0.0]), np.float64([9.0])
    >>> aggregation.fedadagrad_step(x, np.float64([4.0]), m, v, server_lr=1.0, tau=3.0)
    >>> x, m, v
    (array([1.5]), array([4.]), array([25.]))
    """
    moments = (first_moment, second_moment)
    _adaptive("adagrad", parameters, update, moments, (server_lr, beta1, 0.0, tau))


def fedyogi_step(
    parameters: Any,
    update: Any,
    first_moment: Any,
    second_moment: Any,
    *,
    server_lr: float = 0.1,
    beta1: float = 0.9,
    beta2: float = 0.99,
    tau: float = 1e-3,
) -> None:
    r"""One server step of FedYogi in place.

    Performs, each operation rounded once::

        first_moment[:] = beta1 * first_moment + (1 - beta1) * update   # = update if beta1 is 0
        square = first_moment * first_moment
        second_moment[:] = second_moment - (1 - beta2) * square * sign(second_moment - square)
        parameters[:] = parameters + server_lr * first_moment / (sqrt(second_moment) + tau)

    Parameters
    ----------
    parameters, update, first_moment, second_moment, server_lr, beta1, tau
        As for :func:`fedadagrad_step`; `beta1` is 0.9 by default.
    beta2 : float, default 0.99
        Decay of the second moment, from 0 to 1.

    Raises
    ------
    ValueError, TypeError
        As for :func:`fedadagrad_step`.

    Notes
    -----
    Determinism, time and memory: as for :func:`sgd_step`; the square root is rounded correctly,
    as in numpy (``torch.sqrt`` may differ in the last bit).

    References
    ----------
    .. [1] Reddi et al., "Adaptive Federated Optimization", ICLR 2021, algorithm 2
       (arXiv:2003.00295).

    Examples
    --------
    >>> import numpy as np
    >>> from fedbench import aggregation
    >>> x, m, v = np.float64([1.0]), np.float64([0.0]), np.float64([4.0])
    >>> aggregation.fedyogi_step(x, np.float64([2.0]), m, v, server_lr=1.0, beta1=0.0, tau=2.0)
    >>> x, v
    (array([1.5]), array([4.]))
    """
    moments = (first_moment, second_moment)
    _adaptive("yogi", parameters, update, moments, (server_lr, beta1, beta2, tau))


def fedadam_step(
    parameters: Any,
    update: Any,
    first_moment: Any,
    second_moment: Any,
    *,
    server_lr: float = 0.1,
    beta1: float = 0.9,
    beta2: float = 0.99,
    tau: float = 1e-3,
) -> None:
    r"""One server step of FedAdam in place, without bias correction.

    Performs, each operation rounded once::

        first_moment[:] = beta1 * first_moment + (1 - beta1) * update   # = update if beta1 is 0
        square = first_moment * first_moment
        second_moment[:] = beta2 * second_moment + (1 - beta2) * square
        parameters[:] = parameters + server_lr * first_moment / (sqrt(second_moment) + tau)

    Parameters
    ----------
    parameters : array of any shape
        Contiguous numpy array or torch CPU tensor, float32 or float64; updated in place.
    update, first_moment, second_moment : array
        Like `parameters`: the mean of the clients' updates, and the moments, zero and ``tau**2``
        at the start, updated in place; see :func:`fedadagrad_step`.
    server_lr, beta1, tau : float
        As for :func:`fedadagrad_step`; `beta1` is 0.9 by default.
    beta2 : float, default 0.99
        Decay of the second moment, from 0 to 1.

    Raises
    ------
    ValueError, TypeError
        As for :func:`fedadagrad_step`.

    Notes
    -----
    Determinism, time and memory: as for :func:`sgd_step`; the square root is rounded correctly,
    as in numpy (``torch.sqrt`` may differ in the last bit).

    References
    ----------
    .. [1] Reddi et al., "Adaptive Federated Optimization", ICLR 2021, algorithm 2
       (arXiv:2003.00295).

    Examples
    --------
    >>> import numpy as np
    >>> from fedbench import aggregation
    >>> x, m, v = np.float64([1.0]), np.float64([0.0]), np.float64([0.0])
    >>> aggregation.fedadam_step(
    ...     x, np.float64([2.0]), m, v, server_lr=1.0, beta1=0.0, beta2=0.0, tau=2.0
    ... )
    >>> x, v
    (array([1.5]), array([4.]))
    """
    moments = (first_moment, second_moment)
    _adaptive("adam", parameters, update, moments, (server_lr, beta1, beta2, tau))


def _adaptive(
    kind: str,
    parameters: Any,
    update: Any,
    moments: tuple[Any, Any],
    coefficients: tuple[float, float, float, float],
) -> None:
    own = target(parameters)
    server_lr, beta1, beta2, tau = coefficients
    checked = (
        coefficient("server_lr", server_lr, own),
        coefficient("beta1", beta1, own, 1.0),
        coefficient("beta2", beta2, own, 1.0),
        adaptivity(tau, own),
    )
    first = like(moments[0], own, "first_moment", True)
    second = like(moments[1], own, "second_moment", True)
    mean = like(update, own, "update", False)
    written = [("parameters", own), ("first_moment", first), ("second_moment", second)]
    separate(written, [mean])
    require_nonnegative("second_moment", second)
    KERNELS[own.dtype][2](
        kind,
        own.size,
        own.handle,
        mean.handle,
        first.handle,
        second.handle,
        *checked,
    )
    announce_writes(buffer for _, buffer in written)
