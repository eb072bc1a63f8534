"""ResNet-18 (He et al., 2016) in the variants that federated learning uses."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from fedbench.models.initialization import initialized

__all__ = ["resnet18"]

_NORMS: dict[str, Callable[[int], nn.Module]] = {
    "group": lambda channels: nn.GroupNorm(2, channels),
    "batch": nn.BatchNorm2d,
}
_STEMS = ("cifar", "imagenet")


class _BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut."""

    def __init__(
        self, in_channels: int, channels: int, stride: int, norm: Callable[[int], nn.Module]
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride, padding=1, bias=False)
        self.norm1 = norm(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = norm(channels)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != channels:
            self.shortcut = nn.Sequential(
                OrderedDict(
                    conv=nn.Conv2d(in_channels, channels, 1, stride, bias=False),
                    norm=norm(channels),
                )
            )

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = functional.relu(self.norm1(self.conv1(inputs)))
        return functional.relu(self.norm2(self.conv2(hidden)) + self.shortcut(inputs))


def resnet18(
    num_classes: int = 10, *, norm: str = "group", stem: str = "cifar", seed: int = 0
) -> nn.Module:
    """Return ResNet-18.

    With BatchNorm clients share running statistics, which suffers under label skew; Hsieh et
    al. (2020) propose GroupNorm instead, and Reddi et al. (2021) use two groups, as here.

    Parameters
    ----------
    num_classes : int
        Number of classes.
    norm : {"group", "batch"}
        Normalisation: GroupNorm with two groups, or BatchNorm with its running statistics as
        buffers. The number of parameters is the same.
    stem : {"cifar", "imagenet"}
        One 3x3 convolution for 32x32 images (11,173,962 parameters for 10 classes), or the 7x7
        convolution with stride 2 and max pooling of the paper (11,689,512 for 1,000 classes).
    seed : int
        Seed of the initial parameters.

    Returns
    -------
    torch.nn.Module
        ``[batch, 3, height, width]`` to logits ``[batch, num_classes]``.

    Raises
    ------
    ValueError
        If `norm` or `stem` is none of the names above.
    """
    if norm not in _NORMS:
        raise ValueError(f"norm must be one of {', '.join(map(repr, _NORMS))}, got {norm!r}.")
    if stem not in _STEMS:
        raise ValueError(f"stem must be one of {', '.join(map(repr, _STEMS))}, got {stem!r}.")
    make_norm = _NORMS[norm]

    def build() -> nn.Module:
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        if stem == "cifar":
            layers["conv"] = nn.Conv2d(3, 64, 3, padding=1, bias=False)
        else:
            layers["conv"] = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        layers["norm"] = make_norm(64)
        layers["relu"] = nn.ReLU()
        if stem == "imagenet":
            layers["pool"] = nn.MaxPool2d(3, stride=2, padding=1)
        in_channels = 64
        for stage, channels in enumerate((64, 128, 256, 512), start=1):
            layers[f"stage{stage}"] = nn.Sequential(
                _BasicBlock(in_channels, channels, 1 if stage == 1 else 2, make_norm),
                _BasicBlock(channels, channels, 1, make_norm),
            )
            in_channels = channels
        layers["mean"] = nn.AdaptiveAvgPool2d(1)
        layers["flatten"] = nn.Flatten()
        layers["output"] = nn.Linear(512, num_classes)
        return nn.Sequential(layers)

    return initialized(build, seed=seed)
