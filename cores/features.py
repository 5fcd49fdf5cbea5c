"""Feature maps of keys and queries, and how they are normalised."""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

EPSILON = 1e-5

Map = Literal["elu", "relu", "softmax", "dpfp", "favor", "unit", "root2", "tanh"]
"""elu: ELU + 1. relu. softmax.
dpfp: deterministic parameter-free projection (Schlag et al. 2021, section 5.3).
favor: FAVOR+, positive random features of the softmax kernel (Choromanski et al. 2021). unit: L2-normalised.
root2: unit times the square root of 2. tanh (Schlag, Munkhdalai & Schmidhuber 2021)."""
Normalisation = Literal["sum", "attention", "both", "none"]
"""sum: features are divided by their sum. attention: the output is divided by q·Σk, with Σk the
sum of all keys so far (Katharopoulos et al. 2020). both (Schlag et al. 2021, section 6.3). none."""

MAX_FAVOR_FEATURES = 65_536
"""Maximum number of random directions: drawing more takes longer than anybody waits."""

ANY_SIGN = ("unit", "root2", "tanh")
"""maps whose features may sum to 0"""


class Features(nn.Module):
    """The feature map of one memory's keys and queries, `[..., h]` -> `[..., size]`.

    Args:
        head_size: h.
        feature_map: see `Map`.
        normalise: whether features are divided by their sum, see `Normalisation`; attention is left to the
            memory, which reads `attends`.
        dpfp_nu: ν of dpfp, whose size is 2 h ν.
        favor_features: m random directions of favor, which has 2 m features; 0 for m = h.

    Raises:
        ValueError: for numbers out of range, or a map and a normalisation that do not go together.
    """

    def __init__(
        self,
        head_size: int,
        feature_map: Map = "elu",
        normalise: Normalisation = "sum",
        dpfp_nu: int = 1,
        favor_features: int = 0,
    ) -> None:
        super().__init__()
        if feature_map in ANY_SIGN and normalise != "none":
            raise ValueError(
                f"feature_map {feature_map} has entries of any sign, whose sum may be 0; give normalise none"
            )
        if feature_map == "softmax" and normalise in ("sum", "both"):
            instead = "none" if normalise == "sum" else "attention"
            raise ValueError(f"feature_map softmax sums to one already; give normalise {instead}")
        if not 1 <= dpfp_nu < 2 * head_size:
            raise ValueError(f"dpfp_nu is {dpfp_nu}; give 1 to {2 * head_size - 1} for heads of {head_size}")
        if not 0 <= favor_features <= MAX_FAVOR_FEATURES:
            raise ValueError(
                f"favor_features is {favor_features}; give 1 to {MAX_FAVOR_FEATURES}, or 0 for {head_size}"
            )
        self.feature_map, self.normalise, self.dpfp_nu = feature_map, normalise, dpfp_nu
        m = favor_features or head_size
        self.size = {"dpfp": 2 * head_size * dpfp_nu, "favor": 2 * m}.get(feature_map, head_size)
        projection = orthogonal_normal(m, head_size) if feature_map == "favor" else None
        self.random = None if projection is None else nn.Parameter(projection, requires_grad=False)
        """favor's random matrix `[m, h]`, not trained; a parameter, so that it travels with the weights.

        Drawn once: Choromanski et al. redraw it while training, but what was written with one matrix cannot
        be read with another, and a state outlives the batch.
        """

    @property
    def attends(self) -> bool:
        """Whether the memory is to divide its output by q·Σk."""
        return self.normalise in ("attention", "both")

    def forward(self, x: Tensor) -> Tensor:
        features = self._map(x)
        if self.normalise in ("sum", "both"):
            features = features / (features.sum(-1, keepdim=True) + EPSILON)
        return features

    def _map(self, x: Tensor) -> Tensor:
        match self.feature_map:
            case "elu":
                return F.elu(x) + 1
            case "relu":
                return F.relu(x)
            case "softmax":
                return x.softmax(-1)
            case "dpfp":
                return dpfp(x, self.dpfp_nu)
            case "favor":
                assert self.random is not None
                return favor(x, self.random)
            case "unit":
                return F.normalize(x, dim=-1)
            case "root2":
                return F.normalize(x, dim=-1) * 2**0.5
            case "tanh":
                return x.tanh()


def normalized_elu(x: Tensor) -> Tensor:
    """Compute ELU + 1, divided by its sum over the last dimension, so that a key's entries sum to one.

    The sum normalisation is section 4.2 of Schlag et al. 2021; the 1e-5 is from the released RL code.
    """
    positive = F.elu(x) + 1
    return positive / (positive.sum(-1, keepdim=True) + EPSILON)


def dpfp(x: Tensor, nu: int) -> Tensor:
    """Multiply `z = [relu(x), relu(-x)]` by itself rolled by 1, ..., ν: `[..., h]` -> `[..., 2 h ν]`.

    Schlag et al. 2021, equation 37; their code rolls by +j, as ours does.
    """
    z = torch.cat((F.relu(x), F.relu(-x)), -1)
    return torch.cat([z * z.roll(j, -1) for j in range(1, nu + 1)], -1)


def favor(x: Tensor, random: Tensor) -> Tensor:
    """Positive features whose products estimate exp(x·x'): `[..., h]`, random `[m, h]` -> `[..., 2 m]`.

    Choromanski et al. 2021, "Rethinking Attention with Performers", Lemma 1: exp(±R x - |x|²/2) / sqrt(2 m).
    """
    projected = x @ random.to(x.dtype).mT
    both = torch.cat((projected, -projected), -1) - x.square().sum(-1, keepdim=True) / 2
    return both.exp() * both.shape[-1] ** -0.5


def orthogonal_normal(rows: int, columns: int) -> Tensor:
    """Draw a matrix whose rows are orthogonal in blocks of `columns`, with the norms of Gaussian vectors."""
    blocks = [torch.linalg.qr(torch.randn(columns, columns))[0] for _ in range(-(-rows // columns))]
    directions = torch.cat(blocks)[:rows]
    return directions * torch.randn(rows, columns).norm(dim=-1, keepdim=True)


TEMPERATURE = 16.0


def check_temperature(temperature: float) -> float:
    """Return a temperature of `slow_decay`. Raises ValueError if it is not positive and finite."""
    if not 0 < temperature < math.inf:
        raise ValueError(f"decay_temperature is {temperature}; it must be positive")
    return temperature


def slow_decay(x: Tensor, temperature: float = TEMPERATURE) -> Tensor:
    """Compute `sigmoid(x) ** (1 / temperature)`: near 1 at initialisation, when x is near 0."""
    return (F.logsigmoid(x) / temperature).exp()
