"""Feature shift: clients whose inputs look different, although their classes do not."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch.nn import functional

from fedbench.data.federated import FederatedDataset

__all__ = ["rotate_clients"]


def rotate_clients(dataset: FederatedDataset, degrees: Sequence[float]) -> FederatedDataset:
    """Rotate the images of each client by an angle of its own.

    The feature shift of the clustered-learning literature (Ghosh et al., 2020, use 0, 90, 180
    and 270 degrees): client ``i`` is rotated counter-clockwise by
    ``degrees[i % len(degrees)]``. The test images stay as they are.

    Parameters
    ----------
    dataset : FederatedDataset
        With inputs ``[n, channels, height, width]`` float32.
    degrees : sequence of float
        Angles, finite; multiples of 90 are exact for square images, others are interpolated
        bilinearly with zeros outside.

    Returns
    -------
    FederatedDataset
        A copy with the same clients; nothing is drawn at random.

    Raises
    ------
    TypeError, ValueError
        If the inputs are not images or `degrees` is empty or not finite.
    """
    if dataset.inputs.dim() != 4 or not dataset.inputs.is_floating_point():
        raise TypeError(
            "dataset must have float32 inputs of shape [n, channels, height, width], got "
            f"{dataset.inputs.dtype} of shape {tuple(dataset.inputs.shape)}. "
            "Reshape the inputs to images first."
        )
    angles = [float(angle) for angle in degrees]
    if not angles or not all(math.isfinite(angle) for angle in angles):
        raise ValueError(
            f"degrees must hold at least one finite angle, got {list(degrees)!r}. "
            "Pass [0, 90, 180, 270], for example."
        )
    inputs = dataset.inputs.clone()
    for client, indices in enumerate(dataset.partition):
        inputs[indices] = _rotated(inputs[indices], angles[client % len(angles)])
    return FederatedDataset(
        inputs,
        dataset.targets,
        dataset.partition,
        test_inputs=dataset.test_inputs,
        test_targets=dataset.test_targets,
        num_classes=dataset.num_classes,
        client_ids=dataset.client_ids,
    )


def _rotated(images: torch.Tensor, angle: float) -> torch.Tensor:
    quarters, rest = divmod(angle, 90)
    if rest == 0 and images.shape[2] == images.shape[3]:
        return torch.rot90(images, int(quarters) % 4, (2, 3))
    cos, sin = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    height, width = images.shape[2:]
    # affine_grid works in coordinates in [-1, 1] along each side, whatever its length.
    turn = torch.tensor([[cos, -sin * height / width, 0.0], [sin * width / height, cos, 0.0]])
    grid = functional.affine_grid(
        turn.expand(len(images), 2, 3), list(images.shape), align_corners=False
    )
    return functional.grid_sample(images, grid, padding_mode="zeros", align_corners=False)
