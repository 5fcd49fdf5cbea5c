"""What a memory did in an unroll, as sums: the generalised delta rule or attention, with realised numbers.

Given keys, strengths and queries as they came out, what is read is linear in what was written.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor


class Writes(NamedTuple):
    """Inputs of `kernels.generalised_delta`: each step's read and its S writes."""

    q: Tensor
    """Queries `[T, B, H, h]`."""
    k: Tensor
    """Keys of the writes `[T, B, H, S, h]`."""
    u: Tensor
    """Values of the writes, from which W e is subtracted `[T, B, H, S, h]`."""
    e: Tensor
    """Erase keys: W e is subtracted from u `[T, B, H, S, h]`."""
    decay: Tensor
    """Decay of W's columns before each write `[T, B, H, S, h]`."""


class DeltaForm(NamedTuple):
    """S times a step `W = W diag(a)`, then `W = W + (u - W e) kᵀ`; then `y = W q`. W is zeroed at a reset.

    K channels of keys and V of values. Two optional terms go beyond `kernels.generalised_delta`: a decay of
    W's rows, `W = diag(λ) W` before a step's first write; and momentum η, with which a step writes
    `C = η C + u kᵀ` and `W = W diag(a) (I - e kᵀ) + C`, once.
    """

    writes: Writes
    """The realised queries, keys, values, erase keys and decays a: here `[T, B, H, K]`, u `[T, B, H, S, V]`,
    the others `[T, B, H, S, K]`."""
    W: Tensor
    """Fast weights before the first step `[B, H, V, K]`."""
    reset: Tensor
    """Which steps begin an episode: bool `[T, B]`."""
    value_decay: Tensor | None = None
    """λ `[T, B, H, V]`; None for 1."""
    momentum: Tensor | None = None
    """η `[T, B, H]`; None without momentum, else S = 1."""
    C: Tensor | None = None
    """The averaged writes before the first step, like W; None without momentum."""


class AttentionForm(NamedTuple):
    """A step writes `u' = u - Σ e_i u'_i` over the N slots before it, then reads `y = Σ r_i u'_i`.

    Slots are the state's N, oldest first, then the T steps': step t sees slots t to t + N, of which the last
    is its own. Weights of what was written before a reset are 0.
    """

    read_weights: Tensor
    """r `[T, B, H, G, N + 1]`, for G queries that share a head's keys; 1 but for grouped DeltaFormers."""
    u: Tensor
    """Values by slot `[N + T, B, H, V]`."""
    reset: Tensor
    """Which steps begin an episode: bool `[T, B]`."""
    erase_weights: Tensor | None = None
    """e `[T, B, H, N]`; None where writes erase nothing."""


LinearForm: TypeAlias = DeltaForm | AttentionForm


def one_write(q: Tensor, k: Tensor, u: Tensor, e: Tensor, decay: Tensor) -> Writes:
    """Write once a step: all `[T, B, H, h]`."""
    return Writes(q, *(x.unsqueeze(3) for x in (k, u, e, decay)))


def stack_writes(*writes: Tensor) -> Tensor:
    """Stack one tensor `[T, B, H, h]` per write, in order, to `[T, B, H, S, h]`."""
    return torch.stack(writes, 3)


def sum_form(
    q: Tensor, k: Tensor, v: Tensor, W: Tensor, reset: Tensor, decay: Tensor | None = None
) -> DeltaForm:
    """`W = W diag(a) + v kᵀ`; q, k and the decay a `[T, B, H, K]`, by default 1, v `[T, B, H, V]`."""
    decay = torch.ones_like(k) if decay is None else decay
    return DeltaForm(one_write(q, k, v, torch.zeros_like(k), decay), W, reset)


def delta_form(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, W: Tensor, reset: Tensor, decay: Tensor | None = None
) -> DeltaForm:
    """`W = W diag(a)`, then `W += β (v - W k) kᵀ`; β `[T, B, H]`, the others as in `sum_form`."""
    decay, beta = torch.ones_like(k) if decay is None else decay, beta.unsqueeze(-1)
    return DeltaForm(one_write(q, k, beta * v, beta * k, decay), W, reset)


def concatenate(first: DeltaForm, second: DeltaForm) -> DeltaForm:
    """Two memories with one reading `W q + R p`, as one: `[W R]`, read by (q, p), written first to W, then R.

    Neither with a value_decay or momentum.
    """
    a, b = first.writes, second.writes
    before, behind = (a.q.shape[-1], 0), (0, b.q.shape[-1])
    padded = (
        torch.cat((F.pad(x, behind, value=fill), F.pad(y, before, value=fill)), 3)
        for x, y, fill in ((a.k, b.k, 0.0), (a.e, b.e, 0.0), (a.decay, b.decay, 1.0))
    )
    k, e, decay = padded
    writes = Writes(torch.cat((a.q, b.q), -1), k, torch.cat((a.u, b.u), 3), e, decay)
    return DeltaForm(writes, torch.cat((first.W, second.W), -1), first.reset)


def at_once(match: Tensor, v: Tensor, reset: Tensor) -> DeltaForm:
    """Read v times match in the same step alone: match `[T, B, H, 1]`, v `[T, B, H, V]`."""
    one, column = torch.ones_like(match), torch.zeros_like(v[0]).unsqueeze(-1)
    return sum_form(match, one, v, column, reset, decay=torch.zeros_like(one))


def join(forms: Sequence[LinearForm]) -> LinearForm:
    """Join one layer's forms of consecutive unrolls over time, such as those of an actor's single steps.

    The state before the first is the one that remains; all writes after it get shares of their own.

    Raises:
        ValueError: if there are no forms, or they are not of one layer.
    """
    if len({tuple(part is None for part in form) for form in forms}) != 1:  # the kinds differ in length, too
        raise ValueError("forms of no layer or of several; give those of one layer's consecutive unrolls")
    reset = torch.cat([form.reset for form in forms])
    match forms[0]:
        case DeltaForm() as first:
            deltas = [form for form in forms if isinstance(form, DeltaForm)]
            writes = Writes(*map(torch.cat, zip(*(form.writes for form in deltas), strict=True)))
            value_decay = _join(form.value_decay for form in deltas)
            momentum = _join(form.momentum for form in deltas)
            return DeltaForm(writes, first.W, reset, value_decay, momentum, first.C)
        case AttentionForm() as first:
            attentions = [form for form in forms if isinstance(form, AttentionForm)]
            slots = first.read_weights.shape[-1] - 1
            u = torch.cat([first.u[:slots], *(form.u[slots:] for form in attentions)])
            read_weights = torch.cat([form.read_weights for form in attentions])
            return AttentionForm(read_weights, u, reset, _join(form.erase_weights for form in attentions))


def _join(parts: Iterable[Tensor | None]) -> Tensor | None:
    present = [part for part in parts if part is not None]
    return torch.cat(present) if present else None


def last_outputs(y0: Tensor, y: Tensor, reset: Tensor) -> Tensor:
    """Return what each step reads of the one before, zeros where an episode begins: `[T, B, H, h]`.

    y0 `[B, H, h]` is the output before the first step, y `[T, B, H, h]` those of the steps.
    """
    return torch.cat((y0.unsqueeze(0), y[:-1])).masked_fill(reset[..., None, None], 0)
