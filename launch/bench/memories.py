"""Memories that the generalised delta rule computes, as rules of inputs of their own: for `bench kernels`.

The times include making the rule's inputs of these: so fla's kernels, one for each memory, do the same job.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...cores.generalised import unit
from ...cores.linear_form import Writes, one_write, stack_writes
from ...kernels import Rule, Shapes
from ...kernels.dispatch import Fused
from ...kernels.rules import GENERALISED_DELTA


def _memory(
    name: str, writes: Callable[..., Writes], shapes: Shapes, **maps: Callable[[Tensor], Tensor]
) -> Rule:
    """Return a `Rule`: `writes` of a memory's inputs, computed by the generalised delta rule."""

    def fed(form: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            count = len(shapes.names) - 2  # W and reset follow, and the backend for an operator
            return form(*writes(*arguments[:count]), *arguments[count:])

        return run

    def fused(form: Fused | None) -> Fused | None:
        if form is None:
            return None
        reason = form.unsupported_reason
        return Fused(fed(form.operator), lambda inputs: fed(lambda *them: reason(them))(*inputs))

    rule = GENERALISED_DELTA
    assert rule.chunked is not None
    return Rule(
        name,
        shapes,
        fed(rule.reference),
        chunked=fed(rule.chunked),
        native=fused(rule.native),
        triton=fused(rule.triton),
        maps=maps,
    )


def _log_decay(x: Tensor) -> Tensor:
    """A sixteenth of it: a channel is halved after some 15 steps."""
    return F.logsigmoid(x) / 16


def _log_decay_of_rwkv7(x: Tensor) -> Tensor:
    return -0.606 * x.sigmoid()


def _kda(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, g: Tensor) -> Writes:
    beta = beta.unsqueeze(-1)
    return one_write(q, k, beta * v, beta * k, g.exp())


def _gated_delta_net_2(q: Tensor, k: Tensor, v: Tensor, b: Tensor, w: Tensor, g: Tensor) -> Writes:
    return one_write(q, k, w * v, b * k, g.exp())


def _delta_product(q: Tensor, k: Tensor, v: Tensor, beta: Tensor) -> Writes:
    beta = beta.unsqueeze(-1)
    return Writes(q, k, beta * v, beta * k, torch.ones_like(k))


def _rwkv7(r: Tensor, k: Tensor, v: Tensor, removal: Tensor, a: Tensor, g: Tensor) -> Writes:
    zero, one, w = torch.zeros_like(k), torch.ones_like(k), g.exp()
    return Writes(
        r,
        k=stack_writes(a * removal, k),
        u=stack_writes(torch.zeros_like(v), v),
        e=stack_writes(removal / w, zero),
        decay=stack_writes(w, one),
    )


_KEYS, _VALUES, _STATE = "T B H K", "T B H V", "B H V K"

KDA = _memory(
    "kda",
    _kda,
    Shapes(q=_KEYS, k=_KEYS, v=_VALUES, beta="T B H", g=_KEYS, W=_STATE),
    q=unit,
    k=unit,
    beta=torch.sigmoid,
    g=_log_decay,
)
GATED_DELTA_NET_2 = _memory(
    "gated_delta_net_2",
    _gated_delta_net_2,
    Shapes(q=_KEYS, k=_KEYS, v=_VALUES, b=_KEYS, w=_VALUES, g=_KEYS, W=_STATE),
    q=unit,
    k=unit,
    b=torch.sigmoid,
    w=torch.sigmoid,
    g=_log_decay,
)
DELTA_PRODUCT = _memory(
    "delta_product",
    _delta_product,
    Shapes(q=_KEYS, k="T B H n K", v="T B H n V", beta="T B H n", W=_STATE),
    q=unit,
    k=unit,
    beta=torch.sigmoid,
)
RWKV7 = _memory(
    "rwkv7",
    _rwkv7,
    Shapes(r=_KEYS, k=_KEYS, v=_VALUES, removal=_KEYS, a=_KEYS, g=_KEYS, W=_STATE),
    removal=unit,
    a=torch.sigmoid,
    g=_log_decay_of_rwkv7,
)

MEMORIES = (KDA, GATED_DELTA_NET_2, DELTA_PRODUCT, RWKV7)
