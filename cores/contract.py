"""Whether a core does as `Core` promises: an unroll is its steps, resets begin anew, rows are their own."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from .base import Core, State

_ALLOWED, _ALLOWED_64, _ALLOWED_ROUNDING = 1e-3, 1e-7, 0.1
"""Differences relative to the largest number of what is compared: in float32 alone, in float64, and in
float32 of a core that is right in float64, since a memory may amplify rounding."""

Result = tuple[Tensor, State]
"""Outputs `[T, B, output_size]`, and the state after the last step, tensors `[B, ...]`."""


@torch.no_grad()
def violations(core: Core, x: Tensor) -> list[str]:
    """Return what a core does otherwise than `Core` promises, a line each; empty for nothing.

    The truth is each episode of each row by itself, step by step from the initial state. Steps and unrolls of
    all rows, with resets, are compared with it, in float64 where the core can, and in float32. They begin
    with states of random numbers and of nan, which the first reset ends.

    Args:
        core: the core, which does not change.
        x: what it reads in play, float32 `[T, B, input_size]`, with T >= 4 and B >= 2. No two rows are equal.

    Raises:
        ValueError: for fewer steps or rows.
    """
    if len(x) < 4 or x.shape[1] < 2:
        raise ValueError(f"the core's input is {list(x.shape)}; give at least 4 steps and 2 rows")
    try:
        in_float64 = copy.deepcopy(core).double()
        _each_episode_alone(in_float64, x[:1].double(), torch.ones_like(x[:1, :, 0], dtype=torch.bool))
    except Exception:  # whatever a core of one's own raises that is for float32 alone
        return _violations(core, x, _ALLOWED)
    return _violations(in_float64, x.double(), _ALLOWED_64) or _violations(core, x, _ALLOWED_ROUNDING)


def resets(steps: int, rows: int) -> Tensor:
    """Return bool `[T, B]`: an episode begins in all rows at step 0, in the first one at steps 1 and 2, too.

    In each row another one begins, the later the row the later, in the last row at the last step.
    """
    reset = torch.zeros(steps, rows, dtype=torch.bool)
    reset[0] = reset[1:3, 0] = True
    for row in range(rows):
        reset[(steps - 1) * (row + 1) // rows, row] = True
    return reset


def _violations(core: Core, x: Tensor, allowed: float) -> list[str]:
    reset = resets(*x.shape[:2]).to(x.device)
    truth = _each_episode_alone(core, x, reset)
    if not all(part.isfinite().all() for part in (truth[0], *truth[1])):
        return ["its outputs or states are not finite"]
    ways: dict[str, Callable[[Core, Tensor, Tensor], Result]] = {
        "the same steps, computed again, differ": _each_episode_alone,
        "a row's steps differ from those of its episodes alone": _each_row_alone,
        "steps of several rows differ from those of each alone": _steps,
        "an unroll differs from its steps": partial(_unrolls, cut=len(x)),
        "an unroll in two parts differs from its steps": partial(_unrolls, cut=len(x) // 2),
        "an unroll of one step differs from the step": partial(_unrolls, cut=1),
        "steps after a state that was nan differ from an episode's": partial(_steps, broken=True),
        "an unroll after a state that was nan differs from an episode's": partial(
            _unrolls, cut=len(x), broken=True
        ),
    }
    faults = [
        f"{what}{where}"
        for what, way in ways.items()
        if (where := _difference(way(core, x, reset), truth, allowed))
    ]
    return faults + _of_states(core, x, truth)


def _of_states(core: Core, x: Tensor, truth: Result) -> list[str]:
    y, state = truth
    B = len(y[0])
    initial = _initial_state(core, B, x)
    faults = []
    if any(part.any() for part in initial):
        faults.append("its initial state is not zero")
    for row in range(B):
        if state and all(
            torch.equal(part[row], begin[row]) for part, begin in zip(state, initial, strict=True)
        ):
            faults.append(f"its state stays what it was (row {row})")
            break
    before = tuple(part.clone() for part in state)
    nothing = torch.zeros(B, dtype=torch.bool, device=x.device)
    remembering, _ = core.step(x[-1], before, nothing)
    if not all(map(torch.equal, before, state)):
        faults.append("a step writes into the state that it is given")
    core.unroll(x, before := tuple(part.clone() for part in state), nothing.expand(len(x), B))
    if not all(map(torch.equal, before, state)):
        faults.append("an unroll writes into the state that it is given")
    if state and torch.equal(remembering, core.step(x[-1], initial, nothing)[0]):
        faults.append("its output does not depend on its state")
    return faults


def _each_episode_alone(core: Core, x: Tensor, reset: Tensor) -> Result:
    """Begin each episode of each row with the initial state, where no step has a reset."""
    no_reset = torch.zeros(1, dtype=torch.bool, device=x.device)
    outputs, ends = [], []
    for row in range(x.shape[1]):
        for t, begins in enumerate(reset[:, row].tolist()):
            if begins:
                state = _initial_state(core, 1, x)
            y, state = core.step(x[t, row : row + 1], state, no_reset)
            outputs.append(y)
        ends.append(state)
    y = torch.cat(outputs).unflatten(0, (x.shape[1], len(x))).transpose(0, 1)
    return y, tuple(map(torch.cat, zip(*ends, strict=True)))


def _each_row_alone(core: Core, x: Tensor, reset: Tensor) -> Result:
    rows = [_steps(core, x[:, row : row + 1], reset[:, row : row + 1]) for row in range(x.shape[1])]
    return torch.cat([y for y, _ in rows], 1), tuple(
        map(torch.cat, zip(*(end for _, end in rows), strict=True))
    )


def _steps(core: Core, x: Tensor, reset: Tensor, broken: bool = False) -> Result:
    state, outputs = _noise(core, x, broken), []
    for x_t, reset_t in zip(x, reset, strict=True):
        y, state = core.step(x_t, state, reset_t)
        outputs.append(y)
    return torch.stack(outputs), state


def _unrolls(core: Core, x: Tensor, reset: Tensor, cut: int, broken: bool = False) -> Result:
    """Unroll `cut` steps, then the others."""
    state, outputs = _noise(core, x, broken), []
    for part in (slice(cut), slice(cut, None)):
        if len(x[part]):
            y, state = core.unroll(x[part], state, reset[part])
            outputs.append(y)
    return torch.cat(outputs), state


def _noise(core: Core, x: Tensor, broken: bool) -> State:
    """Return a state of random numbers from 0 to 3, or nan, of which the first reset must leave nothing."""
    generator = torch.Generator(x.device).manual_seed(0)
    initial = _initial_state(core, x.shape[1], x)
    numbers = (3 * torch.rand(part.shape, generator=generator, device=x.device) for part in initial)
    noise = [each.to(part.dtype) for each, part in zip(numbers, initial, strict=True)]
    if broken:
        noise = [part.fill_(torch.nan) if part.is_floating_point() else part for part in noise]
    return tuple(noise)


def _initial_state(core: Core, rows: int, x: Tensor) -> State:
    """Return the initial state, its floating-point numbers in x's dtype, whatever the core makes them in."""
    initial = core.initial_state(rows, x.device)
    return tuple(part.to(x.dtype) if part.is_floating_point() else part for part in initial)


def _difference(result: Result, truth: Result, allowed: float) -> str:
    """Say where a result first differs from the truth, and by how much; nothing if it does not."""
    shapes, expected = ([[*part.shape] for part in (y, *state)] for y, state in (result, truth))
    if shapes != expected:
        return f" (shapes of output and state are {shapes}, not {expected})"
    excess = _excess(result[0], truth[0], allowed, dims=2)
    if bool((excess > 1).any()):
        t, row = (excess > 1).nonzero()[0].tolist()
        return f" (step {t}, row {row}, by {float(excess[t, row]):,.0f} times what is allowed)"
    for number, (part, of_truth) in enumerate(zip(result[1], truth[1], strict=True)):
        excess = _excess(part, of_truth, allowed, dims=1)
        if bool((excess > 1).any()):
            row = int((excess > 1).nonzero()[0])
            by = f"{float(excess[row]):,.0f} times what is allowed"
            return f" (last state, tensor {number}, row {row}, by {by})"
    return ""


def _excess(x: Tensor, truth: Tensor, allowed: float, dims: int) -> Tensor:
    """Return |x - truth| relative to what is allowed, the most over all but the first dimensions; infinite
    where x is not finite. Whole numbers are to be equal."""
    largest = truth.double().abs().max().clamp(min=1e-12) if truth.is_floating_point() else 1e-12
    error = (x.double() - truth.double()).abs() / (allowed * largest)
    return error.nan_to_num(torch.inf, torch.inf).reshape(*x.shape[:dims], -1).amax(-1)
