"""Surgery on a running memory: writes undone, scaled or made again, keys erased, values put under keys.

One implementation for all cores, on states alone: what a memory declares of its state says what writes go to.
Keys and values are those of a linear form (`linear_form.py`), which `provenance.linear_forms` returns:

    forms = linear_forms(core, x, state, reset)
    keys = [form.writes.k[t] for form in forms]   # of step t, by layer
    state = erase(core, state, keys)              # a reading under them is now 0
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..kernels.reference import mask_resets, read, write
from .attention import WindowMemory
from .backbone import FastWeightCore
from .base import Core, State
from .fast_weights import FastWeights, MemoryTrace, StatePart
from .linear_form import AttentionForm, DeltaForm, LinearForm
from .observe import watch_traces
from .provenance import can_be_replayed, last_state, linear_forms

_WRITTEN = ("fast weights", "momentum", "normaliser")


def writes_fast_weights(core: Core) -> bool:
    """Return whether every layer of a core has fast weights, which alone can be scaled and blurred."""
    return isinstance(core, FastWeightCore) and all(
        "fast weights" in _kinds(memory.state_parts()) for memory in core.memories()
    )


def scale_writes(core: Core, before: State, after: State, reset: Tensor, factor: Tensor) -> State:
    """Scale what a step wrote into the memory M: `M = M_before + factor (M_after - M_before)`.

    What a step wrote is the whole change of M, decay and erasure included: with factor 0 the memory stands
    still. The step itself has read M_after; only later steps read what this returns. Factors 0 and 1 select
    M_before and M_after, bit for bit.

    M are a layer's fast weights, with momentum and normaliser; of a layer without fast weights, such as
    attention's window, and of a core outside the backbone the whole state. All else is as after the step:
    last outputs, the inputs of `short_conv`, the time in the episode.

    Args:
        core: the core whose step it was.
        before: the state that `step` took, tensors `[B, ...]`.
        after: the state that it returned.
        reset: bool `[B]`, which rows began an episode, from M_before = 0.
        factor: `[B]`; other numbers than 0 and 1 are meaningless for a window, which moves by a step, and for
            flags and whole numbers, which are then as after the step.
    """

    def scale(old: Tensor, new: Tensor) -> Tensor:
        old, by = mask_resets(old, reset), factor.view(-1, *(1,) * (new.dim() - 1))
        between = old + by.to(new) * (new - old) if new.is_floating_point() else new
        return torch.where(by == 1, new, torch.where(by == 0, old, between))

    return _change(core, before, after, scale, _WRITTEN)


def add_noise(core: Core, state: State, amount: Tensor, normal: Callable[[Tensor], Tensor]) -> State:
    """Add noise to each matrix of fast weights: `W = W + amount rms(W) ε`, with its root mean square.

    Args:
        core: a core of which `writes_fast_weights` is true.
        state: its state, tensors `[B, ...]`.
        amount: `[B]`; rows with 0 stay as they are, bit for bit.
        normal: draws ε ~ N(0, 1) like the tensor that it is given, `[B, ...]`; called layer by layer.
    """

    def blur(_: Tensor, W: Tensor) -> Tensor:
        by = _per_row(amount, W)
        return torch.where(by == 0, W, W + by * W.square().mean((-2, -1), keepdim=True).sqrt() * normal(W))

    return _change(core, state, state, blur, ("fast weights",))


def replace_memory(core: Core, state: State, other: State, rows: Tensor | None = None) -> State:
    """Put the memory of another state of the same core in place of a state's, bit for bit.

    Which tensors that are, `scale_writes` says; all else goes on.

    Args:
        core: the core of both.
        state: a state, tensors `[B, ...]`.
        other: one of the same shapes, such as a former one of this core, or one of other weights.
        rows: bool `[B]`, in which rows; None for all.

    Raises:
        ValueError: if the states differ in shape.
    """
    if [part.shape for part in state] != [part.shape for part in other]:
        raise ValueError("the states differ in shape; give two of the same core, sizes and batch")
    return _change(core, other, state, lambda theirs, own: in_rows(rows, theirs, own), _WRITTEN)


def insert_values(W: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Put values under keys: `W = W + (v - W k) kᵀ / |k|²`, the delta rule at strength 1 with a unit key.

    Then `W k = v`, and W x is as before for every x orthogonal to the keys. Of several keys one after the
    other is written: a later one changes what is read under an earlier one unless they are orthogonal. Keys
    of zeros, and such that are not finite, write nothing.

    Args:
        W: fast weights `[..., V, K]`.
        k: S keys `[..., S, K]`.
        v: their values `[..., S, V]`.
    """
    now = W.double()  # which has the square of every key in single precision
    for key, value in zip(_finite(k).unbind(-2), v.double().unbind(-2), strict=True):
        square = key.square().sum(-1, keepdim=True)
        missing = torch.where(square > 0, value - (now @ key.unsqueeze(-1)).squeeze(-1), 0)
        now = now + missing.unsqueeze(-1) * (key / square.masked_fill(square == 0, 1)).unsqueeze(-2)
    return now.to(W.dtype)


def erase_keys(W: Tensor, k: Tensor) -> Tensor:
    """Erase what is stored under keys: `W = W (I - K⁺ K)`, of one key `W (I - k kᵀ / |k|²)`.

    Then `W k = 0` for each key, and W x is as before for every x orthogonal to all of them. A key of zeros
    erases nothing, nor does one that is not finite.

    Args:
        W: fast weights `[..., V, K]`.
        k: S keys `[..., S, K]`, the rows of the matrix K.
    """
    keys = _finite(k)
    largest = keys.abs().amax(-1, keepdim=True)  # or the pseudoinverse would take a small key for nothing
    keys = keys / torch.where(largest > 0, largest, 1)
    return (W.double() - W.double() @ torch.linalg.pinv(keys) @ keys).to(W.dtype)


def _finite(k: Tensor) -> Tensor:
    return torch.where(k.isfinite().all(-1, keepdim=True), k, 0).double()


@torch.no_grad()
def writes_under_keys(core: Core) -> bool:
    """Return whether every layer writes its fast weights under keys, which `erase` and `insert` need.

    Then they are those of its linear form, where `form_columns` says.
    """
    if not writes_fast_weights(core) or not isinstance(core, FastWeightCore):
        return False
    state = tuple(torch.arange(float(x.numel())).view_as(x).to(x) / x.numel() for x in core.initial_state(1))
    forms, weights = _one_step(core, state, begins=False), _fast_weights(core, state)
    return all(
        isinstance(form, DeltaForm)
        and max(columns := _columns(memory)) < form.W.shape[-1]
        and torch.equal(form.W[..., columns], W)
        for memory, form, W in zip(core.memories(), forms, weights, strict=True)
    )


def empty_forms(core: Core, rows: int, device: torch.device | str | None = None) -> list[LinearForm | None]:
    """Return the linear forms of one step from an empty state, which have the shapes of any; B is `rows`."""
    return _one_step(core, core.initial_state(rows, device), begins=True)


def _one_step(core: Core, state: State, begins: bool) -> list[LinearForm | None]:
    rows, device = len(state[0]), state[0].device
    x = torch.zeros(1, rows, core.input_size, dtype=next(core.parameters()).dtype, device=device)
    return linear_forms(core, x, state, torch.full((1, rows), begins, device=device))


@torch.no_grad()
def step_without_writes(core: Core, x: Tensor, state: State, reset: Tensor) -> State | None:
    """Take a step, as `core.step`, and return the state after it, had it written nothing: u = 0.

    u are the values of all writes in each layer's linear form. The step itself reads them; it decays and
    erases as it did, what it adds to a normaliser stays, and everything else in the state is as after the
    step. `scale_writes` with factor 0 is another operation: it takes back decay and erasure, too.

    * With momentum u kᵀ is missing from W and from the average writes C, so that no later step gets it.
    * Of `delta_delta_net` W misses it, of `delta_mlp` each W2, whose writes have shares. What the step writes
      to M and W1 stays.
    * In attention's window the slot of the step is empty: its key and value are masked out from then on. The
      other slots age as they do; weights that are divided by their sum are divided by what is left of it. A
      DeltaFormer's later writes subtract nothing of what the slot had.

    Args:
        core: a core in the backbone.
        x: its input `[B, input_size]`.
        state: the state before the step, tensors `[B, ...]`.
        reset: bool `[B]`.

    Returns:
        That state, tensors `[B, ...]`; None where a layer has no linear form, or one from which its state
        after the step does not follow, and for a core outside the backbone.
    """
    layers: list[State | None] = []
    with watch_traces(core, lambda _, memory, trace: layers.append(_without_writes(memory, trace))):
        _, after = core.step(x, state, reset)
    states = [layer for layer in layers if layer is not None]
    if not isinstance(core, FastWeightCore) or len(states) < len(layers):
        return None
    of_layers = core.join(states)
    return (*of_layers, *after[len(of_layers) :])


def _without_writes(memory: FastWeights, trace: MemoryTrace) -> State | None:
    """Return a layer's state after a traced step, had it written nothing."""
    form = memory.linear_form(trace)
    if isinstance(memory, WindowMemory) and isinstance(form, AttentionForm):
        return (*memory.empty_newest(trace.after), *trace.conv_state)
    if not isinstance(form, DeltaForm) or not can_be_replayed(form):
        return None
    as_it_was = _tensors_after(memory, form)
    if not as_it_was or any(not nearly_equal(x, trace.after[i]) for i, x in as_it_was.items()):
        return None
    nothing = form.writes._replace(u=torch.zeros_like(form.writes.u))
    without = _tensors_after(memory, form._replace(writes=nothing))
    return (*(without.get(i, x) for i, x in enumerate(trace.after)), *trace.conv_state)


def _tensors_after(memory: FastWeights, form: DeltaForm) -> dict[int, Tensor]:
    """Return which of a layer's state tensors its form has after the last step, by index.

    None at all if only one of the two, the form or the state, has momentum's average writes.
    """
    W, C = last_state(form)
    momentum = _momentum(memory)
    if (C is None) != (momentum is None):
        return {}
    parts, columns = memory.state_parts(), memory.form_columns()
    tensors = {i: W[..., first : first + parts[i].shape[-1]] for i, first in columns.items()}
    return tensors if C is None or momentum is None else {**tensors, momentum: C}


def nearly_equal(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors of one shape differ by no more than 0.1% of each number and 0.01% of the
    largest: `|one - other| <= 1e-3 |other| + 1e-4 max |other|`. False with nan.

    So it says whether two computations are of the same rule. Rounding is far within: what a linear form
    replays of 1,000 steps in single precision differs by less than a hundredth of that from the unroll.
    """
    return one.shape == other.shape and torch.allclose(
        one, other, rtol=1e-3, atol=1e-4 * float(other.abs().max())
    )


@torch.no_grad()
def erase(core: Core, state: State, keys: Sequence[Tensor], rows: Tensor | None = None) -> State:
    """Erase what is stored under keys in every layer and head: `W = W (I - k kᵀ / |k|²)`.

    W are the fast weights that the linear form reads: of `delta_delta_net` W, of `delta_mlp` each W2. Average
    writes C of momentum lose their keys, too, else they would be back in the next step. A normaliser, which
    counts keys, goes on: what it divides is 0.

    Args:
        core: a core of which `writes_under_keys` is true.
        state: its state, tensors `[B, ...]`.
        keys: for each layer S keys a head, `[B, H, S, K]`, as `Writes.k` has them of a step.
        rows: bool `[B]`, in which rows; None for all.

    Raises:
        ValueError: if the layers, or the shapes of one, are not the core's; for a core without fast weights
            in every layer. Whether it writes them under keys is not checked.
    """

    def wipe(W: Tensor, C: Tensor | None, k: Tensor) -> tuple[Tensor, Tensor | None]:
        return erase_keys(W, k), None if C is None else erase_keys(C, k)

    return _change_weights(core, state, [(k,) for k in keys], [() for _ in keys], wipe, rows)


@torch.no_grad()
def insert(
    core: Core, state: State, keys: Sequence[Tensor], values: Sequence[Tensor], rows: Tensor | None = None
) -> State:
    """Put values under keys in every layer and head: `W = W + (v - W k) kᵀ / |k|²`; then `W k = v`.

    Several keys of a head are written one after the other (`insert_values`). Of momentum's C all are erased,
    which so adds nothing to v. Where a reading is divided by a normaliser, v is what is divided.

    Args:
        core, state, keys, rows: as of `erase`.
        values: for each layer, one for each key, `[B, H, S, V]`.

    Raises:
        ValueError: as `erase`.
    """

    def put(W: Tensor, C: Tensor | None, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor | None]:
        return insert_values(W, k, v), None if C is None else erase_keys(C, k)

    if len(keys) != len(values):
        raise ValueError(f"keys of {len(keys)} layers and values of {len(values)}; give both for each layer")
    return _change_weights(core, state, [(k,) for k in keys], [(v,) for v in values], put, rows)


@torch.no_grad()
def write_again(
    core: Core, state: State, forms: Sequence[LinearForm | None], t: int, rows: Tensor | None = None
) -> State:
    """Make the writes of a step once more, as they were realised: `W = W + (u - W e) kᵀ` for each, in order.

    Nothing decays. With momentum C gets u kᵀ, too.

    Args:
        core, state, rows: as of `erase`.
        forms: of each layer, such as `provenance.linear_forms` returns of an unroll of this core.
        t: the step of that unroll.

    Raises:
        ValueError: as `erase`; if the unroll has no step t.
    """

    def repeat(
        W: Tensor, C: Tensor | None, keys: Tensor, erased: Tensor, values: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        for k, e, u in zip(keys.unbind(2), erased.unbind(2), values.unbind(2), strict=True):
            W = write(W, u - read(W, e), k)
            C = None if C is None else write(C, u, k)
        return W, C

    writes = [form.writes for form in forms if isinstance(form, DeltaForm)]
    if writes and not 0 <= t < len(writes[0].q):
        raise ValueError(f"step is {t}; the unroll has steps 0 to {len(writes[0].q) - 1}")
    return _change_weights(
        core, state, [(w.k[t], w.e[t]) for w in writes], [(w.u[t],) for w in writes], repeat, rows
    )


def _change_weights(
    core: Core,
    state: State,
    keys: Sequence[tuple[Tensor, ...]],
    values: Sequence[tuple[Tensor, ...]],
    change: Callable[..., tuple[Tensor, Tensor | None]],
    rows: Tensor | None,
) -> State:
    """Put `change(W, C, *keys, *values)` in place of each layer's W, side by side, and of momentum's C.

    Of a layer's keys it gets those numbers that are columns of W, not of what its form has besides.
    """
    weights = _fast_weights(core, state)
    if rows is not None and rows.shape != weights[0].shape[:1]:
        raise ValueError(f"rows are {[*rows.shape]}; give {[*weights[0].shape[:1]]}")
    if len(keys) != len(weights):
        raise ValueError(f"keys of {len(keys)} layers; give those of all {len(weights)}")
    assert isinstance(core, FastWeightCore)
    count = len(state) - bool(core.clock)
    changed = []
    for n, (memory, layer) in enumerate(zip(core.memories(), core.split(state[:count]), strict=True)):
        W = weights[n]
        _check_shapes(n, memory, W, keys[n], values[n])
        columns = torch.tensor(_columns(memory), device=W.device)
        momentum = _momentum(memory)
        C = None if momentum is None else layer[momentum]
        W, C = change(W, C, *(k[..., columns] for k in keys[n]), *values[n])
        indices = [*memory.form_columns()]
        parts = dict(zip(indices, W.split([layer[i].shape[-1] for i in indices], -1), strict=True))
        if momentum is not None and C is not None:
            parts[momentum] = C
        changed.append(tuple(in_rows(rows, parts[i], x) if i in parts else x for i, x in enumerate(layer)))
    return (*core.join(changed), *state[count:])


def _fast_weights(core: Core, state: State) -> list[Tensor]:
    """Return of each layer the fast weights that its linear form reads, side by side: `[B, H, V, K]`."""
    if not writes_fast_weights(core):
        raise ValueError(
            f"{type(core).__name__} does not have fast weights in every layer; give a core that does"
        )
    assert isinstance(core, FastWeightCore)
    layers = core.split(state[: len(state) - bool(core.clock)])
    return [
        torch.cat([layer[i] for i in memory.form_columns()], -1)
        for memory, layer in zip(core.memories(), layers, strict=True)
    ]


def _columns(memory: FastWeights) -> list[int]:
    """Return which of the columns of its linear form the state has, in the state's order."""
    shapes = [part.shape for part in memory.state_parts()]
    return [
        column
        for index, first in memory.form_columns().items()
        for column in range(first, first + shapes[index][-1])
    ]


def _momentum(memory: FastWeights) -> int | None:
    """Return which state tensor has the average writes, if any."""
    return next((i for i, part in enumerate(memory.state_parts()) if part.kind == "momentum"), None)


def _check_shapes(
    layer: int, memory: FastWeights, W: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor]
) -> None:
    (B, H, V, _), K, shape = W.shape, max(_columns(memory)) + 1, keys[0].shape
    if any(k.dim() != 4 or k.shape != shape or shape[:2] != (B, H) or shape[-1] < K for k in keys):
        raise ValueError(f"layer {layer}: keys are {list(shape)}; give [{B}, {H}, S, {K}]")
    if any(v.shape != (*shape[:3], V) for v in values):
        raise ValueError(f"layer {layer}: values are {list(values[0].shape)}; give {[*shape[:3], V]}")


def in_rows(rows: Tensor | None, new: Tensor, old: Tensor) -> Tensor:
    """Select `new` in some rows, bool `[B]`, and `old` in the others, both `[B, ...]`; None for all rows."""
    return new if rows is None else torch.where(_per_row(rows, old) > 0, new, old)


def _change(
    core: Core,
    before: State,
    after: State,
    change: Callable[[Tensor, Tensor], Tensor],
    kinds: Sequence[str],
) -> State:
    """Put `change(old, new)` in place of tensors of these kinds, of all in layers without fast weights."""
    if not isinstance(core, FastWeightCore):
        return tuple(map(change, before, after))
    count = len(after) - bool(core.clock)  # the time comes last
    layers = zip(core.memories(), core.split(before[:count]), core.split(after[:count]), strict=True)
    changed = []
    for memory, old, new in layers:
        parts = memory.state_parts()  # the inputs of short_conv follow
        some = "fast weights" in _kinds(parts)
        chosen = [i for i, part in enumerate(parts) if part.kind in kinds or not some]
        changed.append(tuple(change(old[i], x) if i in chosen else x for i, x in enumerate(new)))
    return (*core.join(changed), *after[count:])


def _kinds(parts: Sequence[StatePart]) -> set[str]:
    return {part.kind for part in parts}


def _per_row(x: Tensor, like: Tensor) -> Tensor:
    return x.to(like).view(-1, *(1,) * (like.dim() - 1))
