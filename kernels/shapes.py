"""What each rule takes, checked for all backends: C reads as far as a shape says, PyTorch would broadcast.

A rule's sizes are those of its first input and the last size of one other. They give the shapes of all.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Shapes = dict[str, tuple[int, ...]]


def _sum_rule(T: int, B: int, H: int, K: int, V: int) -> Shapes:
    return {"q": (T, B, H, K), "k": (T, B, H, K), "v": (T, B, H, V), "W": (B, H, V, K)}


def _delta_rule(T: int, B: int, H: int, K: int, V: int) -> Shapes:
    x = (T, B, H, K)
    return {"q": x, "k": x, "v": (T, B, H, V), "beta": (T, B, H), "W": (B, H, V, K)}


def _delta_rnn(T: int, B: int, H: int, V: int, _: int) -> Shapes:
    x = (T, B, H, V)
    return {"z": x, "k": x, "v": x, "beta": (T, B, H), "R": (B, H, V, V), "y0": (B, H, V)}


def _recurrent_delta(T: int, B: int, H: int, K: int, V: int) -> Shapes:
    slow = {"Rq": (H, V, K), "Rk": (H, V, K), "Rv": (H, V, V), "rb": (H, V)}
    x = (T, B, H, K)
    return {"q": x, "k": x, "v": (T, B, H, V), "beta": (T, B, H), **slow, "W": (B, H, V, K), "y0": (B, H, V)}


def _lstm(T: int, B: int, _: int, N: int) -> Shapes:
    return {"gates": (T, B, 4 * N), "weight": (4 * N, N), "h0": (B, N), "c0": (B, N)}


# The first input, the number of the other, and the shapes of all floats, in the order of the rule.
_RULES: dict[str, tuple[str, int, Callable[..., Shapes]]] = {
    "sum_rule": ("q [T, B, H, K]", 2, _sum_rule),
    "delta_rule": ("q [T, B, H, K]", 2, _delta_rule),
    "delta_rnn": ("z [T, B, H, V]", 2, _delta_rnn),
    "recurrent_delta": ("q [T, B, H, K]", 2, _recurrent_delta),
    "lstm": ("gates [T, B, 4 N]", 1, _lstm),
}


def check(rule: str, inputs: tuple[Tensor, ...]) -> None:
    """Raises ValueError in one line unless the inputs, reset last, agree in shape, device and, floats, dtype.

    No size may be 0: of no steps none is the last, and without rows or heads there is nothing to compute.
    """
    first, number, shapes_of = _RULES[rule]
    x, other = inputs[0], inputs[number]
    if x.dim() != first.count(",") + 1:
        raise ValueError(f"{rule}: give {first}, not {list(x.shape)}")
    sizes = (*x.shape, other.shape[-1] if other.dim() else 1)
    shapes = shapes_of(*sizes)
    shapes["reset"] = sizes[:2]
    if 0 in sizes or [x.shape for x in inputs] != list(shapes.values()):
        raise ValueError(f"{rule}: {_disagreement(shapes, inputs, number)}")
    *floats, reset = inputs
    dtypes, devices = {x.dtype for x in floats}, {x.device for x in inputs}
    if reset.dtype is not torch.bool or len(dtypes) > 1 or len(devices) > 1:
        raise ValueError(f"{rule}: {_mixture(shapes, inputs)}")


def widest(inputs: tuple[Tensor, ...]) -> int:
    """Rows or columns of fast weights, whichever are more: all rules take keys second and values third."""
    return max(inputs[1].shape[-1], inputs[2].shape[-1])


def _disagreement(shapes: Shapes, inputs: tuple[Tensor, ...], number: int) -> str:
    given = {name: list(x.shape) for name, x in zip(shapes, inputs, strict=True)}
    for name, shape in given.items():
        if 0 in shape:
            return f"{name} is {shape}; every size must be at least 1"
    name, wanted = next((name, list(shape)) for name, shape in shapes.items() if given[name] != list(shape))
    names = list(given)
    beside = " and ".join(f"{one} {given[one]}" for one in (names[0], names[number]) if one != name)
    return f"{name} is {given[name]}; with {beside} give {wanted}"


def _mixture(shapes: Shapes, inputs: tuple[Tensor, ...]) -> str:
    device = inputs[0].device
    dtypes = {name: torch.bool if name == "reset" else inputs[0].dtype for name in shapes}
    return next(
        f"{name} is {x.dtype} on {x.device}; give {dtype} on {device}"
        for x, (name, dtype) in zip(inputs, dtypes.items(), strict=True)
        if x.dtype is not dtype or x.device != device
    )
