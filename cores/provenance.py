"""Where a reading comes from: the share of every past write, exactly, erasures and decay included.

In a memory's linear form (`linear_form.py`) what step t reads is a sum over the writes before it. The query,
taken back through time, meets each key as decays and erasures since have left it:

    p = q_t; for each write j from the last one back: share of j = u_j (k_j·p), p = a_j ⊙ (p - e_j (k_j·p))

and W p of the first W is the share of the initial state. This holds for keys, strengths and queries as they
were realised, also where they depend on earlier readings.

    forms = linear_forms(core, x, state, reset)
    layer = shares(forms[0], t)              # of what layer 0 read at step t
    fractions(layer).steps                   # of every step, `[t + 1, B, H]`
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from ..kernels.reference import mask_resets, read, write
from .base import Core, State
from .fast_weights import FastWeights, MemoryTrace
from .linear_form import AttentionForm, DeltaForm, LinearForm
from .observe import watch_traces


class Shares(NamedTuple):
    """A reading as a sum: of what each write adds to it, and the state before the first step."""

    writes: Tensor
    """Of each write of steps 0 to t, zero before the last reset: `[t + 1, B, H, S, V]`."""
    initial: Tensor
    """Of the initial state `[B, H, V]`."""

    @property
    def reading(self) -> Tensor:
        """What step t reads, their sum: `[B, H, V]`."""
        return self.writes.sum((0, 3)) + self.initial


class Fractions(NamedTuple):
    """Shares projected on the reading y, (share·y) / (y·y): signed, with sum 1.

    All 0 where y is 0; nan where it is not finite.
    """

    steps: Tensor
    """Of each past step, all its writes together: `[t + 1, B, H]`, over heads `[t + 1, B]`."""
    initial: Tensor
    """Of the initial state `[B, H]`, over heads `[B]`."""


@torch.no_grad()
def linear_forms(core: Core, x: Tensor, state: State, reset: Tensor) -> list[LinearForm | None]:
    """Return what each layer did in an unroll, in linear form; arguments as those of `core.unroll`.

    None for a memory of your own that has none. Empty for cores outside the backbone: LSTM and GRU change
    their state by nonlinear functions of it, `feedforward` and `gated_feedforward` have no memory. Each layer
    is explained by its own writes; those of deeper layers were computed from what the ones above read.
    Writes that decide only by which numbers others write or read get no share: of `delta_delta_net` those to
    M, of `delta_mlp` those to W1.

    To explain an actor, `linear_form.join` joins a layer's forms of single steps over time.
    """
    forms: list[LinearForm | None] = []

    def collect(_: int, memory: FastWeights, trace: MemoryTrace) -> None:
        forms.append(memory.linear_form(trace))

    with watch_traces(core, collect):
        core.unroll(x, state, reset)
    return forms


def core_shares(core: Core, x: Tensor, state: State, reset: Tensor, t: int) -> list[Shares | None]:
    """Return for each layer where its reading at step t of an unroll comes from; see `linear_forms`.

    To explain several readings of one unroll, call `linear_forms` once and `shares` for each.

    Takes 1.4 to 2.7 times as long as that unroll alone, which is part of it (PyTorch without C on a CPU, two
    layers, 1,000 steps, one row; the most for `momentum_delta_net`).

    Raises:
        ValueError: if the unroll has no step t.
    """
    _check_step(reset, t)
    forms = linear_forms(core, x, state, reset)
    return [None if form is None else shares(form, t) for form in forms]


@torch.no_grad()
def shares(form: LinearForm, t: int) -> Shares:
    """Return where the reading of step t comes from.

    A few operations a write: of a `DeltaForm` on vectors of K numbers a head, without a matrix or a pair of
    steps; of attention whose writes erase, on N weights.
    Takes 0.2 to 1.5 times as long as the unroll, measured as for `core_shares`.

    Raises:
        ValueError: if the unroll has no step t, or the form has momentum and several writes a step.
    """
    _check_step(form.reset, t)
    u, episode, age = _values(form), form.reset[: t + 1].cumsum(0), torch.arange(t, -1, -1)
    *weights, (_, initial) = _walk_back(form, t, t)
    weight = torch.cat([each for _, each in reversed(weights)])
    written = (u[: len(weight)] * weight).unflatten(0, (t + 1, -1)).movedim(1, 3)
    # Selects, since what an earlier episode wrote, or what has left the window, may be nan.
    visible = (episode == episode[-1]) & (age <= _reach(form)).unsqueeze(1).to(episode.device)
    begun = episode[-1] > 0
    return Shares(
        torch.where(visible[:, :, None, None, None], written, 0.0),
        torch.where(begun[:, None, None], 0.0, initial[0]),
    )


def fractions(parts: Shares, over_heads: bool = False) -> Fractions:
    """Project shares on the reading, head by head, or on that of all heads together.

    The latter are the former weighted by each head's y·y, and sum to 1 with the initial state's, too.
    """
    axes = _axes(over_heads)
    of_reading = *_direction(parts.reading, axes), axes
    return Fractions(_project(parts.writes.sum(3), *of_reading), _project(parts.initial, *of_reading))


@torch.no_grad()
def fraction_matrix(form: LinearForm, over_heads: bool = False, first: int = 0) -> Fractions:
    """Return the fractions of the R readings from step `first` on.

    Steps `[R, T, B, H]`: entry (r, j) is that of step j in the reading of step first + r, 0 for later j.
    Initial `[R, B, H]`. Over heads without H.

    Costs a replay and one walk back with all later readings at once: O(R T) operations and numbers; for all
    readings as long as 5 to 18 unrolls at 1,000 steps, measured as for `core_shares`.

    Raises:
        ValueError: as `readings`, or if the unroll has no step `first`.
    """
    _check_step(form.reset, first)
    y, u, episode, axes = readings(form), _values(form), form.reset.cumsum(0), _axes(over_heads)
    T, S, size = len(y), len(u) // len(y), y.shape[1:2] if over_heads else y.shape[1:3]
    direction, scale = _direction(y[first:], axes)
    steps, initial = y.new_zeros(T - first, T, *size), y.new_zeros(T - first, *size)
    for n, weight in _walk_back(form, first, T - 1):
        if n < 0:
            initial = _project(weight, direction, scale, axes)
        else:
            j = n // S
            later = slice(max(j - first, 0), None)
            steps[later, j] += _project(u[n] * weight, direction[later], scale[later], axes)
    age = torch.arange(first, T).unsqueeze(1) - torch.arange(T)
    near = (age <= _reach(form)).unsqueeze(2).to(episode.device)
    visible = (episode[first:].unsqueeze(1) == episode) & near
    whole = episode[first:] == 0
    if not over_heads:
        visible, whole = visible.unsqueeze(-1), whole.unsqueeze(-1)
    return Fractions(torch.where(visible, steps, 0.0), torch.where(whole, initial, 0.0))


@torch.no_grad()
def readings(form: LinearForm) -> Tensor:
    """Replay an unroll from its linear form: what each step reads, `[T, B, H, V]`.

    Raises:
        ValueError: if the form has momentum and several writes a step.
    """
    if isinstance(form, AttentionForm):
        return torch.stack([*_replay_attention(form)])
    return torch.stack([read(W, q) for (W, _), q in zip(_replay_delta(form), form.writes.q, strict=True)])


@torch.no_grad()
def last_state(form: DeltaForm) -> tuple[Tensor, Tensor | None]:
    """Replay an unroll from its linear form: W and C after the last step, `[B, H, V, K]`.

    Raises:
        ValueError: as `readings`.
    """
    *_, last = _replay_delta(form)
    return last


def without_write(form: LinearForm, step: int, index: int | None = None) -> Tensor:
    """Replay an unroll with u = 0 in one step, all else as realised: readings `[T, B, H, V]`.

    Each reading misses exactly the share of what was left out. This is not the effect that leaving it out
    would have on the agent, whose later keys, strengths and queries, and actions, would then be others.

    Args:
        form: what the memory did in the unroll.
        step: at which step nothing is written.
        index: which of the step's S writes is left out, from 0; None for all.

    Raises:
        ValueError: if the unroll has no such step, or the step no such write; and as `readings`.
    """
    _check_step(form.reset, step)
    S = form.writes.u.shape[3] if isinstance(form, DeltaForm) else 1
    if index is not None and not 0 <= index < S:
        raise ValueError(f"index is {index}; give 0 to {S - 1}, or None for all writes of a step")
    if isinstance(form, AttentionForm):
        u = form.u.clone()
        u[step - len(form.read_weights)] = 0
        return readings(form._replace(u=u))
    u = form.writes.u.clone()
    u[step, :, :, slice(None) if index is None else index] = 0
    return readings(form._replace(writes=form.writes._replace(u=u)))


def _check_step(reset: Tensor, t: int) -> None:
    if not 0 <= t < len(reset):
        raise ValueError(f"step is {t}; the unroll has steps 0 to {len(reset) - 1}")


def _axes(over_heads: bool) -> tuple[int, ...]:
    return (-2, -1) if over_heads else (-1,)


def _direction(y: Tensor, axes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Return z / (z·z) like y and s, where y = s z and the largest |z_i| is 1: no square underflows.

    s lacks the axes that are summed: V or, over heads, H and V. 0 and 1 where y is 0.
    """
    scale = y.abs().amax(axes, keepdim=True)
    scale = scale.masked_fill(scale == 0, 1)
    z = y / scale
    square = z.square().sum(axes, keepdim=True)
    return z / square.masked_fill(square == 0, 1), scale.squeeze(axes)


def _project(part: Tensor, direction: Tensor, scale: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Compute (part·y) / (y·y), with y's `_direction`."""
    return (part * direction).sum(axes) / scale


def _reach(form: LinearForm) -> int:
    """Return for how many steps a write is read: N for attention whose writes erase nothing."""
    if isinstance(form, AttentionForm) and form.erase_weights is None:
        return form.read_weights.shape[-1] - 1
    return len(form.reset)


def _values(form: LinearForm) -> Tensor:
    """Return u of all writes, in order: `[T S, B, H, V]`; of attention for each query of a head of keys."""
    if isinstance(form, DeltaForm):
        return form.writes.u.movedim(3, 1).flatten(0, 1)
    steps, groups = len(form.read_weights), form.read_weights.shape[3]
    return form.u[-steps:].repeat_interleave(groups, 2)


def _walk_back(form: LinearForm, first: int, last: int) -> Iterator[tuple[int, Tensor]]:
    """Yield the number of each write, from the last one back, and its weight in the readings after it.

    Of readings first to last: `[R, B, H, 1]`, or `[R, B, H, V]` where values decay each at its own rate. In
    the end -1 and the share of the initial state `[R, B, H, V]`. Resets are left to the caller.
    """
    if isinstance(form, DeltaForm):
        return _walk_delta(form, first, last)
    return _walk_attention(form, first, last)


def can_be_replayed(form: LinearForm) -> bool:
    """Return whether `readings` and `shares` take a form: not one of momentum with several writes a step."""
    return not isinstance(form, DeltaForm) or form.momentum is None or form.writes.k.shape[3] == 1


def _check_momentum(form: DeltaForm) -> None:
    if not can_be_replayed(form):
        S = form.writes.k.shape[3]
        raise ValueError(f"momentum with {S} writes a step; give each write a step of its own")


def _walk_delta(form: DeltaForm, first: int, last: int) -> Iterator[tuple[int, Tensor]]:
    """p is the reading's query for W, c that for C, `left` what is left of each value: `[R, B, H, ...]`.

    With momentum `W q = W_before diag(a) (q - e (k·q)) + C q`, and `C x = C_before η x + u (k·x)`.
    """
    _check_momentum(form)
    S = form.writes.k.shape[3]
    k, e, a = (
        x.movedim(3, 1).flatten(0, 1).unbind(0) for x in (form.writes.k, form.writes.e, form.writes.decay)
    )
    p = form.writes.q[first : last + 1].clone()
    c, left = torch.zeros_like(p), torch.ones_like(form.W[..., 0]).repeat(len(p), 1, 1, 1)
    for n in range((last + 1) * S - 1, -1, -1):
        later = slice(max(n // S - first, 0), None)
        now = p[later]
        weight = match = (k[n] * now).sum(-1, keepdim=True)
        if form.momentum is not None:
            c[later] += now
            weight = (k[n] * c[later]).sum(-1, keepdim=True)
            c[later] *= form.momentum[n].unsqueeze(-1)
        if form.value_decay is not None:
            weight = left[later] * weight
            if n % S == 0:  # rows decay before a step's first write
                left[later] *= form.value_decay[n // S]
        yield n, weight
        now.addcmul_(e[n], match, value=-1).mul_(a[n])
    yield -1, left * (read(form.W, p) if form.C is None else read(form.W, p) + read(form.C, c))


def _walk_attention(form: AttentionForm, first: int, last: int) -> Iterator[tuple[int, Tensor]]:
    """What a write erases of an earlier one, the reading misses by the weight of that write."""
    slots = form.read_weights.shape[-1] - 1
    sizes = last + 1 - first, *form.read_weights.shape[1:4]
    weights = form.read_weights.new_zeros(slots + last + 1, *sizes)  # [.., R, B, H, G]
    for t in range(first, last + 1):
        weights[t : t + slots + 1, t - first] = form.read_weights[t].movedim(-1, 0)
    erase = (
        None
        if form.erase_weights is None
        else form.erase_weights.movedim(-1, 1)[:, :, None, ..., None].unbind(0)
    )
    for j in range(last, -1, -1):
        later = slice(max(j - first, 0), None)
        weight = weights[slots + j, later]
        if erase is not None:
            weights[j : j + slots, later].addcmul_(erase[j], weight, value=-1)
        yield j, weight.flatten(2).unsqueeze(-1)
    initial = weights[:slots].unsqueeze(-1) * form.u[:slots, None, :, :, None]
    if erase is None:  # slots that have left the window, where u may be nan
        expired = torch.arange(first, last + 1) > torch.arange(slots).unsqueeze(1)
        initial = initial.masked_fill(expired[..., None, None, None, None].to(initial.device), 0)
    yield -1, initial.sum(0).flatten(2, 3)


def _replay_delta(form: DeltaForm) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Yield W and C after each step."""
    _check_momentum(form)
    (_, k, u, e, a), W, C = form.writes, form.W, form.C
    for t, reset in enumerate(form.reset):
        W = mask_resets(W, reset)
        if form.value_decay is not None:
            W = form.value_decay[t].unsqueeze(-1) * W
        for i in range(k.shape[3]):
            key, value = k[t, :, :, i], u[t, :, :, i]
            W = W * a[t, :, :, i].unsqueeze(-2)
            erased = -read(W, e[t, :, :, i])
            if C is None or form.momentum is None:
                W = write(W, value + erased, key)
            else:
                C = write(form.momentum[t][..., None, None] * mask_resets(C, reset), value, key)
                W = write(W, erased, key) + C
        yield W, C


def _replay_attention(form: AttentionForm) -> Iterator[Tensor]:
    slots = form.read_weights.shape[-1] - 1
    values = form.u.clone()
    for t, (weights, reset) in enumerate(zip(form.read_weights, form.reset, strict=True)):
        values[t : t + slots, reset] = 0
        if form.erase_weights is not None:
            values[slots + t] -= (
                form.erase_weights[t].movedim(-1, 0).unsqueeze(-1) * values[t : t + slots]
            ).sum(0)
        visible = values[t : t + slots + 1].movedim(0, -1).unsqueeze(2)
        yield read(visible, weights).flatten(1, 2)
