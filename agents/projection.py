"""The stem's layer of many weights: stepped by an actor, which keeps what it computes for the learner."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ..cores import Kept
from ..cores.layer import weights_of
from ..kernels.native import dense, known


def new_kept(steps: int, rows: int, layer: nn.Linear) -> Kept | None:
    """Make room for what `project` computes in so many steps; None if the layer is not as made."""
    weights = weights_of(layer, kinds=(nn.Linear,))
    if not weights:
        return None
    room = torch.empty(steps, rows, layer.out_features)
    return Kept(steps, rows, (room,), [weight for weight in weights if weight is not None])


def project(x: Tensor, layer: nn.Linear, kept: Kept | None = None) -> Tensor:
    """Compute `layer(x)`: x `[rows, K]` of a step, or `[steps rows, K]` of all -> `[..., N]`.

    Without gradients a step goes into `kept`, if there is room; with them the values of all steps are taken
    from it, if it knows them.
    """
    weights = weights_of(layer, kinds=(nn.Linear,))
    if not weights:
        return layer(x)
    learns = torch.is_grad_enabled()
    if kept is not None and learns and _knows(kept, x, weights):
        return known.linear(kept.tensors[0].flatten(0, 1), x, *weights)
    y = dense.linear(x, *weights) if dense.takes(x, weights) else layer(x)
    if kept is not None and not learns and kept.has_room(len(x)):
        kept.tensors[0][kept.t] = y
        kept.t += 1
    return y


def step(
    x: Tensor, reward: Tensor, limit: float, layer: nn.Linear, norm: nn.Module, kept: Kept | None = None
) -> Tensor | None:
    """Compute `relu(norm(layer(x)))` and the reward, clamped to ±limit, in one call of C; None if it cannot.

    x `[B, K]` and reward `[B]` of a step -> `[B, N + 1]`. `kept` is as in `project`.
    """
    weights, norm_weights, eps = weights_of(layer, kinds=(nn.Linear,)), [None, None], 0.0
    if isinstance(norm, nn.LayerNorm):
        norm_weights, eps = weights_of(norm, kinds=(nn.LayerNorm,)), norm.eps
    elif type(norm) is not nn.Identity:
        return None
    if not weights or not norm_weights or not dense.takes(x, [*weights, *norm_weights]):
        return None
    room = None
    if kept is not None and kept.has_room(len(x)):
        room = kept.tensors[0][kept.t]
        kept.t += 1
    return dense.core_input(x, weights, norm_weights, eps, reward, limit, room)


def _knows(kept: Kept, x: Tensor, weights: list[Tensor | None]) -> bool:
    sizes = kept.steps, kept.rows
    return len(x) == math.prod(sizes) and kept.knows(x.unflatten(0, sizes), weights)
