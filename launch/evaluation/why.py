"""The moments of play at which the memory mattered most, and the past steps that it drew on: no drawing.

All is computed from recorded inputs of the agent. The moments are the steps with the largest
KL(p ‖ p_wiped), where p is the policy and p_wiped that with the core's whole state as an episode begins.
Of what the memory reads at such a step each past step has a *share* (cores/provenance.py): what its writes
add to the reading, with all keys, strengths and queries as realised. The *effect* of its writes is another
number: they are taken out of the state right after the step (`surgery.step_without_writes`), and the core
computes all later steps again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...agents import Agent
from ...cores import Core
from ...cores.observe import replaced_readings, watch_traces
from ...cores.provenance import Shares, core_shares, fractions, linear_forms
from ...cores.surgery import nearly_equal, step_without_writes
from .examination import Behaviour, Examination, behaviour

SOURCES = 3
"""Past steps that are shown of each moment."""


@dataclass(frozen=True)
class Source:
    """A past step of which a reading has a share."""

    step: int
    fraction: float
    """Its share as a signed fraction of the readings of all layers, (share·y) / (y·y)."""
    by_layer: list[float]
    """The same of each layer's reading alone."""
    minus_share: Behaviour | None
    """With the step's share taken out of every layer's reading, else as realised; None for a memory whose
    output is a nonlinear function of what its linear form reads."""
    without_writes: Behaviour | None
    """The effect: without the step's writes, and with all later steps computed again; None for a memory whose
    state does not follow from its linear form."""


@dataclass(frozen=True)
class Moment:
    step: int
    begin: int
    """The first step of its episode."""
    kl: float
    """KL(p ‖ p_wiped) in nats."""
    remembering: Behaviour
    wiped: Behaviour
    sources: list[Source]
    """The past steps of the episode with the largest fractions in size, largest first."""
    own: float
    """Fraction of what this very step writes before it reads."""
    others: float
    """Fractions of all other steps of the episode, summed."""


def check_core(agent: Agent) -> None:
    """Raise ValueError for a core without memory, and, naming cores that would do, for one whose readings are
    no sums of past writes."""
    device = agent.policy.weight.device
    x = torch.zeros(1, 1, agent.core.input_size, device=device)
    begins = torch.ones(1, 1, dtype=torch.bool, device=device)
    if not agent.initial_state(1):
        raise ValueError(f"--why: {agent.spec.core} has no memory; evaluate an agent that has one")
    forms = linear_forms(agent.core, x, agent.initial_state(1), begins)
    if not forms or None in forms:
        raise ValueError(
            f"--why: what {agent.spec.core} remembers is no sum of what it wrote; omit it, or train a core "
            "with fast weights or attention, such as delta_net, rdn, gated_delta_net or transformer"
        )


@torch.inference_mode()
def explain(agent: Agent, examination: Examination, count: int) -> list[Moment]:
    """Explain the `count` steps with the largest KL, largest first; fewer if there are fewer to choose among.

    A step that begins an episode, where there is nothing to wipe, is none of them.
    """
    steps = largest(examination.kl, examination.inputs.begins, count)
    return [_explain_step(agent, examination, t) for t in steps]


def largest(kl: Tensor, begins: Tensor, count: int) -> list[int]:
    """Return the steps with the largest values, earlier ones first among equals, but for those that begin."""
    order = kl.masked_fill(begins, -torch.inf).argsort(descending=True, stable=True).tolist()
    first = begins.tolist()
    return [t for t in order if not first[t]][:count]


def _explain_step(agent: Agent, examination: Examination, t: int) -> Moment:
    inputs, x = examination.inputs, examination.x
    begin = int(inputs.begins[: t + 1].nonzero()[-1])
    episode, reset = x[begin : t + 1].unsqueeze(1), inputs.begins[begin : t + 1].unsqueeze(1)
    allowed = None if inputs.allowed is None else inputs.allowed[t]
    outputs: list[Tensor] = []
    with watch_traces(agent.core, lambda layer, memory, trace: outputs.append(trace.y[-1])):
        found = core_shares(agent.core, episode, agent.initial_state(1), reset, t - begin)
    parts = [each for each in found if each is not None]
    by_layer, total = layer_fractions(parts)
    order = strongest(total[:-1])
    linear = all(nearly_equal(part.reading, y) for part, y in zip(parts, outputs, strict=True))
    minus = _minus_shares(agent, episode, reset, parts, order, allowed) if linear else None
    sources = []
    for n, j in enumerate(order):
        y = _without_writes(agent.core, episode, reset, j)
        without = None if y is None else behaviour(agent, y[0], allowed)
        minus_share = None if minus is None else minus.at(n)
        sources.append(Source(begin + j, float(total[j]), by_layer[:, j].tolist(), minus_share, without))
    own = float(total[-1])
    others = float(total.sum() - total[-1] - total[order].sum())
    both = examination.remembering.at(t), examination.wiped.at(t)
    return Moment(t, begin, float(examination.kl[t]), *both, sources, own, others)


def layer_fractions(parts: Sequence[Shares]) -> tuple[Tensor, Tensor]:
    """Return each past step's fractions of each layer's reading `[L, t + 1]`, and of all together `[t + 1]`.

    The latter are those of the layers weighted by their y·y, as `fractions` does over heads: the readings
    side by side as one vector.
    """
    by_layer = torch.stack([fractions(part, over_heads=True).steps[:, 0] for part in parts]).double()
    squares = torch.stack([part.reading.double().square().sum() for part in parts])
    return by_layer, (squares / squares.sum().clamp(min=1e-300)) @ by_layer


def strongest(fractions: Tensor) -> list[int]:
    """Return the steps with the largest fractions in size, earlier ones first among equals."""
    return fractions.abs().argsort(descending=True, stable=True)[:SOURCES].tolist()


def _minus_shares(
    agent: Agent,
    x: Tensor,
    reset: Tensor,
    parts: Sequence[Shares],
    steps: Sequence[int],
    allowed: Tensor | None,
) -> Behaviour:
    """Act at the last step of x `[t + 1, 1, n]`, a row for each of `steps` whose share no layer reads."""
    rows = len(steps)
    readings = [part.reading - part.writes[steps, 0].sum(2) for part in parts]
    _, state = agent.core.unroll(x[:-1], agent.initial_state(1), reset[:-1])  # time features count on
    state = tuple(part.repeat_interleave(rows, 0) for part in state)
    with replaced_readings(agent.core, readings):
        y, _ = agent.core.step(x[-1].repeat(rows, 1), state, reset[-1].repeat(rows))
    return behaviour(agent, y, allowed)


def _without_writes(core: Core, x: Tensor, reset: Tensor, j: int) -> Tensor | None:
    """Return the core's last output in an unroll of x `[T, 1, n]` without the writes of step j `[1, n]`.

    Step j itself is as it was; T is beyond it. None where `step_without_writes` returns it.
    """
    state = core.initial_state(1, x.device)
    if j:
        _, state = core.unroll(x[:j], state, reset[:j])
    after = step_without_writes(core, x[j], state, reset[j])
    return None if after is None else core.unroll(x[j + 1 :], after, reset[j + 1 :])[0][-1]
