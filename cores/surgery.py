"""Surgery on a running memory: what a step wrote taken back, scaled or blurred; another's memory.

One implementation for all cores, on states alone: what a memory declares of its state says what writes go to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..kernels.reference import mask_resets
from .backbone import FastWeightCore
from .base import Core, State
from .fast_weights import StatePart

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
        factor: `[B]`; other numbers than 0 and 1 are meaningless for a window, which moves by a step.
    """

    def scale(old: Tensor, new: Tensor) -> Tensor:
        old, by = mask_resets(old, reset), _per_row(factor, new)
        return torch.where(by == 1, new, torch.where(by == 0, old, old + by * (new - old)))

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


def transplant(core: Core, state: State, donor: State) -> State:
    """Put the memory of another agent's state in place of one's own: both of cores made alike.

    The memory is what `scale_writes` scales; last outputs, the inputs of `short_conv` and the time stay one's
    own.

    Raises:
        ValueError: if the states differ in their shapes.
    """
    ours, theirs = ([tuple(part.shape) for part in each] for each in (state, donor))
    if ours != theirs:
        raise ValueError(f"a state of shapes {theirs} for one of {ours}; give that of a core made alike")
    return _change(core, donor, state, lambda theirs, _: theirs, _WRITTEN)


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
