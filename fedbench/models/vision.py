"""Convolutional networks for images."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from fedbench.models.initialization import initialized

__all__ = ["cifar_cnn", "fedavg_cnn"]


def fedavg_cnn(
    in_channels: int = 1, image_size: int = 28, num_classes: int = 10, *, seed: int = 0
) -> nn.Module:
    """Return the CNN of McMahan et al. (2017), "Communication-Efficient Learning ...".

    Two 5x5 convolutions (32 and 64 channels, same padding), each followed by ReLU and 2x2 max
    pooling, a dense layer of 512 units with ReLU and the output layer. With the default
    arguments it has the 1,663,370 parameters that the paper states.

    Parameters
    ----------
    in_channels : int
        Channels of the images.
    image_size : int
        Height and width of the images in pixels, >= 4.
    num_classes : int
        Number of classes.
    seed : int
        Seed of the initial parameters.

    Returns
    -------
    torch.nn.Module
        ``[batch, in_channels, image_size, image_size]`` to logits ``[batch, num_classes]``.
    """
    if image_size < 4:
        raise ValueError(
            f"image_size must be an integer >= 4, got {image_size!r}. "
            "Two 2x2 poolings leave nothing of smaller images."
        )

    def build() -> nn.Module:
        return nn.Sequential(
            OrderedDict(
                conv1=nn.Conv2d(in_channels, 32, 5, padding=2),
                relu1=nn.ReLU(),
                pool1=nn.MaxPool2d(2),
                conv2=nn.Conv2d(32, 64, 5, padding=2),
                relu2=nn.ReLU(),
                pool2=nn.MaxPool2d(2),
                flatten=nn.Flatten(),
                dense=nn.Linear(64 * (image_size // 4) ** 2, 512),
                relu3=nn.ReLU(),
                output=nn.Linear(512, num_classes),
            )
        )

    return initialized(build, seed=seed)


def cifar_cnn(num_classes: int = 10, *, seed: int = 0) -> nn.Module:
    """Return a small CNN for 32x32 colour images, in the manner of LeNet-5.

    Two unpadded 5x5 convolutions (6 and 16 channels), each with ReLU and 2x2 max pooling, and
    dense layers of 120, 84 and `num_classes` units: 62,006 parameters for 10 classes. Many
    federated-learning studies use it on CIFAR-10 (He et al., 2020, for example).

    Parameters
    ----------
    num_classes : int
        Number of classes.
    seed : int
        Seed of the initial parameters.

    Returns
    -------
    torch.nn.Module
        ``[batch, 3, 32, 32]`` to logits ``[batch, num_classes]``.
    """

    def build() -> nn.Module:
        return nn.Sequential(
            OrderedDict(
                conv1=nn.Conv2d(3, 6, 5),
                relu1=nn.ReLU(),
                pool1=nn.MaxPool2d(2),
                conv2=nn.Conv2d(6, 16, 5),
                relu2=nn.ReLU(),
                pool2=nn.MaxPool2d(2),
                flatten=nn.Flatten(),
                dense1=nn.Linear(400, 120),
                relu3=nn.ReLU(),
                dense2=nn.Linear(120, 84),
                relu4=nn.ReLU(),
                output=nn.Linear(84, num_classes),
            )
        )

    return initialized(build, seed=seed)
