"""Stems: from an observation to the features that the core reads."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class ResidualBlock(nn.Module):
    """`x + conv(relu(conv(relu(x))))`, 3x3."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv2(F.relu(self.conv1(F.relu(x))))


class ResidualTrunk(nn.Sequential):
    """The 15-layer trunk of IMPALA's deep network (Espeholt et al. 2018, Figure 3, right), no normalisation.

    Three sections of a convolution, max-pooling and two residual blocks.
    """

    def __init__(self, in_channels: int) -> None:
        layers: list[nn.Module] = []
        for channels in (16, 32, 32):
            layers += [nn.Conv2d(in_channels, channels, 3, padding=1), nn.MaxPool2d(3, stride=2, padding=1)]
            layers += [ResidualBlock(channels), ResidualBlock(channels)]
            in_channels = channels
        super().__init__(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(super().forward(x))


class PlainTrunk(nn.Sequential):
    """Convolutions without padding, of (channels, kernel size, stride) each, and a ReLU after each.

    Orthogonal weights, as is usual for such networks in actor-critic agents: under torch's default the
    signal fades from layer to layer, and small moving objects with it.
    """

    def __init__(self, in_channels: int, *layers: tuple[int, int, int]) -> None:
        super().__init__()
        for channels, size, stride in layers:
            self.extend([nn.Conv2d(in_channels, channels, size, stride=stride), nn.ReLU()])
            in_channels = channels
        for layer in self:
            if isinstance(layer, nn.Conv2d):
                nn.init.orthogonal_(layer.weight, gain=2**0.5)
                nn.init.zeros_(layer.bias)  # type: ignore[arg-type]


_PLAIN_TRUNKS = {
    # the DQN network's (Mnih et al. 2015): small enough to learn on a CPU
    "nature": ((32, 8, 4), (64, 4, 2), (64, 3, 1)),
    # IMPALA's shallow network's (Espeholt et al. 2018, Figure 3, left): a third of the multiplications
    "shallow": ((16, 8, 4), (32, 4, 2)),
}
IMAGE_STEMS = ("residual", *_PLAIN_TRUNKS, "small")
STEMS = (*IMAGE_STEMS, "mlp")


class Stem(nn.Module, ABC):
    """From an observation to the features that the core reads, in two parts: trunk and projection.

    An image's trunk is its convolutions: nearly all of the arithmetic, with few weights, so that running it
    step by step costs no throughput. The projection is one linear layer with most weights: memory-bound, so
    best batched over an unroll.
    """

    @abstractmethod
    def trunk_features(self, observation: Tensor) -> Tensor:
        """Observations `[N, ...]` -> what the projection reads, `[N, n]`."""

    @property
    def projection(self) -> nn.Linear:
        """The final linear layer, with most of the weights."""
        return self.fc

    fc: nn.Linear
    norm: nn.Module
    """Normalisation of the projection's outputs; `nn.Identity` for none."""

    def project(self, trunk_features: Tensor) -> Tensor:
        """`[N, n]` -> float32 features `[N, feature_size]`."""
        return F.relu(self.norm(self.projection(trunk_features))).float()

    def forward(self, observation: Tensor) -> Tensor:
        return self.project(self.trunk_features(observation))


class ImageStem(Stem):
    """Images `[N, C, H, W]`, bytes or normalised -> float32 features `[N, feature_size]`.

    Convolutions run channels-last, which is 1.7 to 3.4 times faster on CPUs and no slower on GPUs.
    """

    def __init__(
        self, name: str, shape: tuple[int, ...], feature_size: int, normalised: bool = False
    ) -> None:
        """`normalised`: whether its images are (normaliser.py)."""
        super().__init__()
        self.divisor = 1 if normalised else 255
        plain = _PLAIN_TRUNKS.get(name)
        trunk = PlainTrunk(shape[0], *plain) if plain else ResidualTrunk(shape[0])
        self.trunk = trunk.to(memory_format=torch.channels_last)  # type: ignore[call-overload,unused-ignore]
        with torch.no_grad():
            flat = math.prod(trunk(torch.zeros(1, *shape)).shape)
        self.fc = nn.Linear(flat, feature_size)
        # A game's images are nearly the same. Without residual connections the first large steps of RMSProp
        # then leave whole layers of ReLUs dead for every image, and the agent never recovers.
        self.norm = nn.Identity() if name == "residual" else nn.LayerNorm(feature_size)

    def trunk_features(self, observation: Tensor) -> Tensor:
        kind = observation.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else torch.float32
        x: Tensor = self.trunk(observation.to(dtype, memory_format=torch.channels_last) / self.divisor)
        return x.flatten(1)


class SmallImageStem(Stem):
    """uint8 images of a few pixels `[N, C, H, W]` -> float32 features `[N, feature_size]`.

    Such images hold codes: a 5 may be a key and a 6 a ball, and divided by 255 they look the same. So each
    value of each channel has an embedding, and a pixel is the sum of its channels' (Hui et al. 2020, BabyAI
    1.1). The one convolution, 3x3 with 16 channels, is that of MinAtar's agents (Young and Tian 2019).
    """

    def __init__(self, shape: tuple[int, ...], feature_size: int) -> None:
        super().__init__()
        channels, height, width = shape
        self.embedding = nn.Embedding(256 * channels, 16)
        nn.init.normal_(self.embedding.weight, std=channels**-0.5)  # so that a pixel has unit variance
        self.first = nn.Buffer(256 * torch.arange(channels).view(-1, 1, 1), persistent=False)
        self.conv = nn.Conv2d(16, 16, 3, padding=1)
        self.fc = nn.Linear(16 * height * width, feature_size)
        self.norm = nn.Identity()

    def trunk_features(self, observation: Tensor) -> Tensor:
        pixels = self.embedding(observation + self.first).sum(1)  # [N, H, W, 16]
        return F.relu(self.conv(pixels.permute(0, 3, 1, 2))).flatten(1)


class VectorStem(Stem):
    """Float vectors `[N, D]` -> features `[N, feature_size]`, two layers.

    Discrete observations arrive one-hot, so the first layer is their embedding.
    """

    def __init__(self, size: int, feature_size: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(size, feature_size)
        self.fc2 = nn.Linear(feature_size, feature_size)
        self.norm = nn.Identity()

    def trunk_features(self, observation: Tensor) -> Tensor:
        return F.relu(self.fc1(observation.float()))

    @property
    def projection(self) -> nn.Linear:
        return self.fc2


def default_stem(observation_shape: tuple[int, ...]) -> str:
    """Choose by the observations' shape: large images get the published residual network."""
    if len(observation_shape) != 3:
        return "mlp"
    return "small" if max(observation_shape[1:]) < 32 else "residual"


def make_stem(
    name: str, observation_shape: tuple[int, ...], feature_size: int, normalised: bool = False
) -> Stem:
    """Build a stem for observations of this shape: `(C, H, W)` images or `(D,)` vectors, `normalised` or not.

    Raises ValueError for a name that is unknown or does not fit the observations.
    """
    fitting = IMAGE_STEMS if len(observation_shape) == 3 else ("mlp",)
    if name not in fitting:
        problem = f"unknown stem '{name}'" if name not in STEMS else f"stem '{name}' does not fit"
        raise ValueError(
            f"{problem}; observations of shape {observation_shape} take {' or '.join(fitting)}: give "
            f"--stem {fitting[0]} or --stem auto, beside a preset too"
        )
    if name == "mlp":
        return VectorStem(math.prod(observation_shape), feature_size)
    if name == "small":
        if normalised:
            raise ValueError(
                "stem 'small' reads pixels as categories: give --normalise-observations off or another --stem"
            )
        return SmallImageStem(observation_shape, feature_size)
    try:
        return ImageStem(name, observation_shape, feature_size, normalised)
    except RuntimeError as error:  # an image smaller than the stem's receptive field
        raise ValueError(
            f"images of shape {observation_shape} are too small for stem '{name}'; take 'small', or 'auto', "
            "which chooses by their size"
        ) from error
