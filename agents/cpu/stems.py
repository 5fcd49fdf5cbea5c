"""Stems: convolutions in C, and the projection, whose forward pass an actor caches for the learner."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...kernels.native import dense
from ...kernels.native.forward_cache import ForwardCache, cached_linear
from ...kernels.native.images import max_pool, scaled, standardised
from ...kernels.native.strided import conv_relu
from ...kernels.native.weight_transforms import cached_transform
from ...kernels.native.winograd import conv3x3, residual_block
from ..normaliser import PIXEL_LIMIT, Normaliser, PixelNormaliser
from ..stems import ImageStem, PlainTrunk, ResidualBlock, ResidualTrunk, SmallImageStem, Stem, VectorStem
from .modules import is_hooked, weights_of

_STEMS = ImageStem, SmallImageStem, VectorStem
"""Stems whose `project` C computes from their projection and norm."""


def trunk_features(stem: Stem, normaliser: Normaliser | None, observation: Tensor) -> Tensor | None:
    """Like `Agent.trunk_features`, in C; None if a module is subclassed or hooked."""
    if type(stem) is VectorStem:
        x = observation if normaliser is None else normaliser(observation)
        x, weights = x.float(), weights_of(stem.fc1, kinds=(nn.Linear,))
        if not weights or not dense.is_supported(x, weights):
            return None
        weight, bias = weights
        return dense.linear(x, weight, bias, relu=True)
    if type(stem) is not ImageStem or any(map(is_hooked, stem.modules())):
        return None
    dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else torch.float32
    x = _floats(normaliser, observation, dtype)
    images = (_residual_trunk if type(stem.trunk) is ResidualTrunk else _plain_trunk)(stem.trunk, x)
    return None if images is None else images.flatten(1)


def _floats(normaliser: Normaliser | None, observation: Tensor, dtype: torch.dtype) -> Tensor:
    if not isinstance(normaliser, PixelNormaliser):
        return scaled(observation, dtype)
    by_pixel = cached_transform(
        normaliser.statistics,
        "affine",
        lambda: torch.stack(normaliser.affine()).permute(0, 2, 3, 1).contiguous(),
    )
    return standardised(observation, by_pixel, PIXEL_LIMIT, dtype)


def _residual_trunk(trunk: nn.Module, x: Tensor) -> Tensor | None:
    layers: list[Any] = [*trunk.children()]
    blocks = [block for block in layers if type(block) is ResidualBlock]
    inside = [conv for block in blocks for conv in (block.conv1, block.conv2)]
    section = [nn.Conv2d, nn.MaxPool2d, ResidualBlock, ResidualBlock]
    if [*map(type, layers)] != section * 3 or {*map(type, inside)} != {nn.Conv2d}:
        return None
    for conv, _, *both in zip(*[iter(layers)] * 4, strict=True):
        x = max_pool(conv3x3(x, conv.weight, conv.bias))
        for block in both:
            x = residual_block(x, *block.conv1.parameters(), *block.conv2.parameters())
    return F.relu(x, inplace=True)


def _plain_trunk(trunk: nn.Module, x: Tensor) -> Tensor | None:
    layers: list[Any] = [*trunk.children()]
    convs = layers[::2]
    if type(trunk) is not PlainTrunk or [*map(type, layers)] != [nn.Conv2d, nn.ReLU] * len(convs):
        return None
    for conv in convs:
        x = conv_relu(x, conv.weight, conv.bias, conv.stride[0])
    return x


def new_projection_cache(stem: Stem, steps: int, rows: int) -> ForwardCache | None:
    """Allocate a cache of projections `[steps, rows, N]`; None if a module is subclassed or hooked."""
    weights = _projection(stem)
    if not weights:
        return None
    room = torch.empty(steps, rows, stem.projection.out_features)
    return ForwardCache(steps, rows, (room,), [weight for weight in weights if weight is not None])


def core_input(stem: Stem, features: Tensor, reward: Tensor, cache: ForwardCache | None) -> Tensor | None:
    """Compute what the core reads in a step, features and `Agent.core_reward`, in one call of C.

    features `[B, K]`, reward `[B]` -> `[B, N + 1]`; written into the cache if there is one. None where C
    cannot.
    """
    weights, norm, norm_weights, eps = _projection(stem), stem.norm, [None] * 2, 0.0
    if isinstance(norm, nn.LayerNorm):
        norm_weights, eps = weights_of(norm, kinds=(nn.LayerNorm,)), norm.eps
    elif type(norm) is not nn.Identity or is_hooked(norm):
        return None
    if not weights or not norm_weights or not dense.is_supported(features, [*weights, *norm_weights]):
        return None
    room = None
    if cache is not None and cache.has_room(len(features)):
        room = cache.tensors[0][cache.t]
        cache.t += 1
    return dense.core_input(features, weights, norm_weights, eps, reward, math.inf, room)


def project(stem: Stem, features: Tensor, cache: ForwardCache) -> Tensor | None:
    """Like `stem.project` for all steps, `[steps rows, K]`, from an actor's cached steps.

    None if those had other inputs or weights.
    """
    weights, sizes = _projection(stem), (cache.steps, cache.rows)
    if not weights or len(features) != math.prod(sizes):
        return None
    if not cache.matches(features.unflatten(0, sizes), weights):
        return None
    return F.relu(stem.norm(cached_linear(cache.tensors[0].flatten(0, 1), features, *weights))).float()


def _projection(stem: Stem) -> list[Any]:
    """List the projection's weight and bias; empty if the stem or the layer is subclassed or hooked."""
    if type(stem) not in _STEMS or is_hooked(stem):
        return []
    return weights_of(stem.projection, kinds=(nn.Linear,))
