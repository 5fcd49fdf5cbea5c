"""Stems: from an observation to the features that the core reads."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class ResidualBlock(nn.Module):
    """`x + conv(relu(conv(relu(x))))`, 3x3, no normalisation."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        # In place where no gradient needs what is overwritten: memory traffic is what this network waits for.
        return self.conv2(F.relu(self.conv1(F.relu(x)), inplace=True)).add_(x)


class Pool(nn.Module):
    """`MaxPool2d(3, stride=2, padding=1)`.

    On a CPU without gradients the window is a maximum over rows and then over columns, bit for bit the same:
    torch's own kernel looks for the places of the maxima too, and takes a fifth of a bfloat16 step for it.
    """

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled() or x.device.type != "cpu":
            return F.max_pool2d(x, 3, stride=2, padding=1)
        return _maxima(_maxima(x, 2), 3)


def _maxima(x: Tensor, dim: int) -> Tensor:
    """Of three neighbours around every second entry of a dimension, beginning with the first."""
    size = x.shape[dim]
    centres, others = (x[_every_second(dim, first)] for first in (0, 1))
    y = centres.clone()
    right, left = y.narrow(dim, 0, size // 2), y.narrow(dim, 1, (size - 1) // 2)
    torch.maximum(right, others, out=right)
    torch.maximum(left, others.narrow(dim, 0, (size - 1) // 2), out=left)
    return y


def _every_second(dim: int, first: int) -> tuple[slice, ...]:
    return (*(slice(None) for _ in range(dim)), slice(first, None, 2))


def _residual_trunk(in_channels: int) -> nn.Sequential:
    """The 15-layer trunk of IMPALA's deep network (Espeholt et al. 2018, Figure 3, right)."""
    layers: list[nn.Module] = []
    for channels in (16, 32, 32):
        layers += [
            nn.Conv2d(in_channels, channels, 3, padding=1),
            Pool(),
            ResidualBlock(channels),
            ResidualBlock(channels),
        ]
        in_channels = channels
    layers.append(nn.ReLU(inplace=True))
    return nn.Sequential(*layers)


def _nature_trunk(in_channels: int) -> nn.Sequential:
    """The three convolutions of the DQN network (Mnih et al. 2015): small enough to learn on a CPU.

    Orthogonal weights, as is usual for this network in actor-critic agents: under torch's default the
    signal fades from layer to layer, and small moving objects with it.
    """
    trunk = nn.Sequential(
        nn.Conv2d(in_channels, 32, 8, stride=4),
        nn.ReLU(inplace=True),
        nn.Conv2d(32, 64, 4, stride=2),
        nn.ReLU(inplace=True),
        nn.Conv2d(64, 64, 3),
        nn.ReLU(inplace=True),
    )
    for layer in trunk:
        if isinstance(layer, nn.Conv2d):
            nn.init.orthogonal_(layer.weight, gain=2**0.5)
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    return trunk


_TRUNKS: dict[str, Callable[[int], nn.Sequential]] = {"residual": _residual_trunk, "nature": _nature_trunk}
IMAGE_STEMS = tuple(_TRUNKS)
STEMS = (*IMAGE_STEMS, "mlp")


class ImageStem(nn.Module):
    """uint8 frames `[N, C, H, W]` -> float32 features `[N, feature_size]`.

    Convolutions run channels-last, which is 1.7 to 3.4 times faster on CPUs and no slower on GPUs.
    """

    def __init__(self, name: str, shape: tuple[int, ...], feature_size: int) -> None:
        super().__init__()
        trunk = _TRUNKS[name](shape[0])
        self.trunk = trunk.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        with torch.no_grad():
            flat = math.prod(trunk(torch.zeros(1, *shape)).shape)
        self.fc = nn.Linear(flat, feature_size)
        # Frames of one game are nearly the same. Without residual connections the first large steps of
        # RMSProp then push whole layers of rectifiers to zero for every frame, and the agent stays blind.
        self.norm = nn.LayerNorm(feature_size) if name == "nature" else nn.Identity()

    def forward(self, frame: Tensor) -> Tensor:
        kind = frame.device.type
        # bfloat16 holds 0 to 255 exactly.
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else torch.float32
        x = frame.to(dtype=dtype, memory_format=torch.channels_last).div_(255.0)
        return F.relu(self.norm(self.fc(self.trunk(x).flatten(1)))).float()


class VectorStem(nn.Module):
    """Float vectors `[N, D]` -> features `[N, feature_size]`, two layers.

    Discrete observations arrive one-hot, so the first layer is their embedding.
    """

    def __init__(self, size: int, feature_size: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(size, feature_size)
        self.fc2 = nn.Linear(feature_size, feature_size)

    def forward(self, frame: Tensor) -> Tensor:
        return F.relu(self.fc2(F.relu(self.fc1(frame.float())))).float()


def default_stem(observation_shape: tuple[int, ...]) -> str:
    """The stem that follows from the observation space: images get the published residual network."""
    return "residual" if len(observation_shape) == 3 else "mlp"


def make_stem(name: str, observation_shape: tuple[int, ...], feature_size: int) -> nn.Module:
    """A stem for observations of this shape: `(C, H, W)` images or `(D,)` vectors.

    Raises ValueError for a name that is unknown or does not fit the observations.
    """
    fitting = IMAGE_STEMS if len(observation_shape) == 3 else ("mlp",)
    if name not in fitting:
        known = f"unknown stem '{name}'" if name not in STEMS else f"stem '{name}' does not fit"
        raise ValueError(f"{known}; observations of shape {observation_shape} take {' or '.join(fitting)}")
    if name == "mlp":
        return VectorStem(math.prod(observation_shape), feature_size)
    try:
        return ImageStem(name, observation_shape, feature_size)
    except RuntimeError as error:  # an image smaller than the stem's receptive field
        raise ValueError(f"images of shape {observation_shape} are too small for stem '{name}'") from error
