"""`eval --certificate`: does the memory work, does the agent use it, how far back, and does it recover?

Four answers that are independent of each other. Whether it *works* is what the core promises
(cores/contract.py), on inputs of play. Whether it is *used* is what a wiped memory costs in return. How far
back it *reads* is of cores with a linear form (cores/reading_age.py). How fast it *recovers* is asked of the
same inputs with another moment's memory in place of its own.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...agents import Agent
from ...cores import State
from ...cores.contract import violations
from ...cores.provenance import can_be_replayed, linear_forms
from ...cores.reading_age import median_age, reading_ages, share_beyond
from ...cores.surgery import replace_memory
from .answers import HORIZON, LEAST_PAIRS, Recovery
from .examination import Examination, Inputs, behaviour, divergence
from .returns import Difference

BEYOND = (10, 100, 1000)
"""Ages of which it is said what part of the readings is older."""
_ROWS, _STEPS = 4, 64
"""Size of the unroll on which the core's contract is checked."""
_READINGS = 200
"""The last steps of the stretch, of whose readings the ages are."""
_MOMENTS, _LEAST_STEPS = 20, 10
"""How often another memory is put in, and how many steps of its episode follow, at least."""
_SMALLEST_KL = 1e-6
"""In nats: a change of the policy below this is rounding."""
_RECOVERED = 0.1
"""The part of the largest change of the policy below which it counts as recovered."""


@dataclass(frozen=True)
class Certificate:
    violations: list[str]
    """In which the core breaks its contract."""
    cost: Difference | None
    """What an episode returns with the memory wiped at each step, less what it returns with it; None where
    episodes cannot be paired."""
    pairs: int
    """Number of episodes that are paired."""
    kl_wiped: float | None
    """Mean KL(π ‖ π with the memory wiped) of a step, in nats; None if a policy is not finite."""
    read_age: float | None
    """Median age of what is read, in steps; None for a core without a linear form."""
    read_beyond: dict[int, float]
    """Which part of what is read is older than so many steps."""
    recovery: Recovery | None
    """None for a core without a state, and where no episode has a moment with enough steps after it."""

    @property
    def correct(self) -> bool:
        return not self.violations

    @property
    def used(self) -> bool | None:
        """Whether a wiped memory costs return: the 95% interval is below 0. None below `LEAST_PAIRS`."""
        if self.cost is None or self.cost.interval is None or self.pairs < LEAST_PAIRS:
            return None
        return self.cost.interval[1] < 0

    def as_json(self) -> dict[str, Any]:
        return {"correct": self.correct, "used": self.used, **asdict(self)}


@torch.inference_mode()
def certify(
    agent: Agent,
    examination: Examination,
    cost: Difference | None,
    pairs: int,
    tell: Callable[[str], None] = lambda question: None,
) -> Certificate:
    """Examine an agent's memory on a stretch of its play; `cost` and `pairs` as in `Certificate`.

    `tell` hears each question, which may take a minute, before it is asked.
    """
    inputs, x = examination.inputs, examination.x
    tell("does the core do what it promises?")
    faults = violations(agent.core, _in_rows(x))
    tell("how far back does it read?")
    age, beyond = _ages(agent, x, inputs.begins)
    if examination.remembering.log_policy.isnan().any() or examination.wiped.log_policy.isnan().any():
        faults.append("the agent's policy is not finite")
        return Certificate(faults, cost, pairs, None, age, beyond, None)
    kl = float(examination.kl.mean())
    tell("how soon does it recover?")
    return Certificate(faults, cost, pairs, kl, age, beyond, recovery(agent, x, inputs))


def _in_rows(x: Tensor) -> Tensor:
    """Cut core inputs `[N, n]` into rows that follow each other, `[T, B, n]`; repeat them if they are few."""
    least = 4 * _ROWS
    x = x.repeat(-(-least // len(x)), 1) if len(x) < least else x
    steps = min(_STEPS, len(x) // _ROWS)
    return x[: steps * _ROWS].unflatten(0, (_ROWS, steps)).transpose(0, 1).contiguous()


def _ages(agent: Agent, x: Tensor, begins: Tensor) -> tuple[float | None, dict[int, float]]:
    forms = linear_forms(agent.core, x.unsqueeze(1), agent.initial_state(1), begins.unsqueeze(1))
    some = [form for form in forms if form is not None and can_be_replayed(form)]
    if not some:
        return None, {}
    by_age = reading_ages(some, max(0, len(x) - _READINGS))
    if not by_age.isfinite().all():
        return None, {}
    starts = [*begins.nonzero().flatten().tolist(), len(x)]
    longest = max(end - start for start, end in pairwise(starts))
    return median_age(by_age), {age: share_beyond(by_age, age) for age in BEYOND if age < longest}


def recovery(agent: Agent, x: Tensor, inputs: Inputs) -> Recovery | None:
    """Put another moment's memory in place of an agent's own, at moments spread over core inputs `[N, n]`.

    The other moments are drawn at random, always the same. Only steps of the same episode are looked at.
    """
    if not agent.initial_state(1):
        return None
    begins = inputs.begins.tolist()
    candidates = [t for t in range(len(x)) if len(_following(begins, t)) >= _LEAST_STEPS]
    if not candidates:
        return None
    moments = sorted({candidates[i * len(candidates) // _MOMENTS] for i in range(_MOMENTS)})
    others = np.random.default_rng(0).integers(len(x), size=len(moments)).tolist()
    after = _states_after(agent, x, inputs.begins, {*moments, *others})
    own, other = (
        tuple(torch.cat(parts) for parts in zip(*(after[t] for t in steps), strict=True))
        for steps in (moments, others)
    )
    rows = [_following(begins, t) for t in moments]
    steps = max(map(len, rows))
    index = torch.tensor([[*row, *[row[-1]] * (steps - len(row))] for row in rows], device=x.device).T
    allowed = None if inputs.allowed is None else inputs.allowed[index]
    no_reset = torch.zeros(index.shape, dtype=torch.bool, device=x.device)
    clean, changed = (
        behaviour(agent, agent.core.unroll(x[index], state, no_reset)[0], allowed).log_policy
        for state in (own, replace_memory(agent.core, own, other))
    )
    kl = divergence(clean, changed).T.tolist()
    curves = [curve[: len(row)] for curve, row in zip(kl, rows, strict=True)]
    curves = [curve for curve in curves if max(curve) >= _SMALLEST_KL]
    return Recovery([*map(_steps_until, curves)], statistics.fmean([max(curve) for curve in curves] or [0.0]))


def _following(begins: list[bool], t: int) -> list[int]:
    """Return the steps after t in its episode, at most `HORIZON`."""
    last = min(len(begins), t + 1 + HORIZON)
    return [*range(t + 1, next((n for n in range(t + 1, last) if begins[n]), last))]


def _steps_until(curve: list[float]) -> int | None:
    """Return after how many steps a curve stays below `_RECOVERED` of its largest value, if it does."""
    above = [n for n, value in enumerate(curve, 1) if value > _RECOVERED * max(curve)]
    return above[-1] if above[-1] < len(curve) else None


def _states_after(agent: Agent, x: Tensor, begins: Tensor, steps: set[int]) -> dict[int, State]:
    """Return the state after each of these steps of a stretch, with a batch of one."""
    state, begun, found = agent.initial_state(1), 0, {}
    for t in sorted(steps):
        part = slice(begun, t + 1)
        _, state = agent.core.unroll(x[part].unsqueeze(1), state, begins[part].unsqueeze(1))
        begun, found[t] = t + 1, state
    return found
