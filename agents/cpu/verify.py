"""Whether C computes what the eager code does: by its source, and on a run's own observations."""

from __future__ import annotations

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...kernels import sources
from ..inference import EagerInference
from ..learner import Learner, Optimizer, UpdateOps
from ..network import Agent
from ..normaliser import Normaliser, PixelNormaliser
from ..sampling import sample
from ..unroll import Unroll
from .agent import PARTS, FastAgent
from .cache import CacheSpec
from .inference import FastInference
from .loss import eager_term
from .ops import fused_ops

DIGESTS = Path(__file__).with_name("digests.json")
_METHODS = (
    *("act", "unroll", "trunk_features", "core_input", "append_reward", "unroll_core", "heads"),
    *("autocast", "true_values", "core_reward", "training_reward", "reward_limit"),
)
"""Names of the methods and properties with which an `Agent` acts and is evaluated."""
NUM_STEPS, NUM_ENVS = 5, 3
"""Size of the unroll on which C and the eager code are compared."""
_DECAYS: dict[Optimizer, Any] = {"rmsprop": 0.99, "adam": (0.9, 0.999)}
"""The decays with which the optimizers' steps are compared."""
_TOLERANCE = 1e-3
"""Largest difference relative to a gradient's norm: a pre-activation near 0 can flip a ReLU."""
_BF16_ERROR_FACTOR = 7
"""Largest difference under bfloat16, as a multiple of the eager code's own error."""


def eager_counterparts(part: str, agent: Agent, ops: UpdateOps) -> list[Any]:
    """List the functions and classes that a part replaces; `ops` are the eager ones."""
    match part:
        case "loss":
            return [ops.actor_critic]
        case "rmsprop":
            return [ops.rmsprop]
        case "adam":
            return [ops.adam]
        case "heads":
            return [*_methods(agent), EagerInference, sample]
    module = agent.core if part == "core" else agent.stem
    classes = sorted(classes_of(module), key=lambda kind: kind.__qualname__)
    return [*_methods(agent), EagerInference, Normaliser, PixelNormaliser, ops.unroll, *classes]


def _methods(agent: Agent) -> list[Any]:
    methods = [getattr(type(agent), name) for name in _METHODS]
    return [each.fget if isinstance(each, property) else each for each in methods]


def classes_of(module: torch.nn.Module) -> set[type]:
    """Return the classes of a module and of those inside, except PyTorch's."""
    return {type(each) for each in module.modules() if not type(each).__module__.startswith("torch.")}


def find_edited(part: str, agent: Agent, ops: UpdateOps) -> str | None:
    """Return why a part cannot take the place of the eager code: what was edited or replaced, in words."""
    if part in PARTS and (name := _replaced_on_instance(agent)):
        return f"{name} was replaced"
    reasons = (sources.find_edited(_recorded(), eager) for eager in eager_counterparts(part, agent, ops))
    return next(filter(None, reasons), None)


def _replaced_on_instance(agent: Agent) -> str | None:
    """Return the name of a method that a module of the agent has of its own, in place of its class's."""
    for path, module in agent.named_modules():
        for name in vars(module):
            if callable(getattr(type(module), name, None)):
                return ".".join(filter(None, ("agent", path, name)))
    return None


@cache
def _recorded() -> dict[str, str]:
    digests: dict[str, str] = json.loads(DIGESTS.read_text())
    return digests


def mismatches(learner: Learner, unroll: Unroll, parts: Collection[str], spec: CacheSpec) -> dict[str, str]:
    """Return which of these parts differ from the eager code on an unroll, each with what differs.

    With parameters that are all 0 drawn at random meanwhile: where a convolution's bias is 0 and so are its
    pixels (those that have never changed, normalised), rounding alone decides the gradient of a ReLU.
    """
    tensors = [*learner.agent.buffers(), *learner.agent.parameters()]
    before = [x.detach().clone() for x in tensors]
    generator = torch.Generator().manual_seed(0)
    try:
        with torch.no_grad():
            for parameter in learner.agent.parameters():
                if not parameter.any():
                    parameter.uniform_(-0.1, 0.1, generator=generator)
        if learner.agent.normaliser is not None:  # without statistics, as in a new run, it would only clip
            learner.agent.normaliser.update_stats([learner.agent.normaliser.moments(unroll.observation)])
        if not (combined_diff := _difference(learner, unroll, parts, spec)):
            return {}
        per_part_diffs = {
            part: what for part in parts if (what := _difference(learner, unroll, {part}, spec))
        }
    finally:
        with torch.no_grad():
            for x, was in zip(tensors, before, strict=True):
                x.copy_(was)
    return per_part_diffs or dict.fromkeys(parts, combined_diff)


def supported_parts(parts: Collection[str], learner: Learner) -> tuple[list[str], list[str]]:
    """Return the parts that C has for a learner and whose source is unedited, and notes for the rest."""
    config, agent = learner.config, learner.agent
    term = eager_term(config.clip_ratio, config.replay_max_kl, agent.value_normaliser is not None)
    reasons = {part: find_edited(part, agent, learner.ops) for part in parts}
    if "loss" in reasons and term is not None:
        reasons["loss"] = term
    return _split(reasons)


def _split(reasons: Mapping[str, str | None]) -> tuple[list[str], list[str]]:
    """Return the parts without a reason to run in eager code, and a note for each of the others."""
    notes = [fallback_message(part, reason) for part, reason in reasons.items() if reason]
    return [part for part, reason in reasons.items() if reason is None], notes


def fallback_message(part: str, why: str) -> str:
    return f"{part}: the eager code runs, since {why}"


def verified_for_acting(agent: Agent, observation: Tensor) -> tuple[list[str], list[str]]:
    """Return which parts of a saved agent's steps C may compute, and notes for the rest.

    They are compared on two steps, observation `[B, ...]` both times, the second of which reads a memory.
    """
    parts, notes = _split({part: find_edited(part, agent, UpdateOps()) for part in PARTS})
    if not parts or _acts_alike(agent, FastAgent(agent, parts), observation):
        return parts, notes
    return [], notes + [fallback_message(part, "C differs from it in the first steps") for part in parts]


@torch.no_grad()
def _acts_alike(agent: Agent, fast: FastAgent, observation: Tensor) -> bool:
    """Return whether both compute the same logits and values in two steps."""
    B = len(observation)
    outputs = []
    for each in (agent, fast):
        state, done = agent.initial_state(B), torch.ones(B, dtype=torch.bool)
        for _ in range(2):
            output, state = each.act(observation, torch.ones(B), done, state, greedy=True)
            done = ~done
        outputs.append(torch.cat([output.policy_logits, output.baseline.unsqueeze(-1)], -1))
    return _near(outputs[1], outputs[0], _TOLERANCE)


def verification_unroll(agent: Agent, observation: Tensor) -> Unroll:
    """Return an unroll of a few steps and environments in which no term of the loss is zero.

    Its observations are a run's first ones `[B, ...]`, rolled by one element per step. All else is random; an
    episode is truncated, an action forced.
    """
    first, A = observation[:NUM_ENVS], agent.spec.num_actions
    T, B, generator = NUM_STEPS, len(first), torch.Generator().manual_seed(0)
    truncation_bootstrap, forced = torch.zeros(T, B), torch.zeros(T, B, dtype=torch.bool)
    done = torch.zeros(T + 1, B, dtype=torch.bool)
    done[T // 2, 0] = forced[-1, -1] = True
    truncation_bootstrap[T // 2 - 1, 0] = 0.5
    return replace(
        Unroll.empty(T, first, A, agent.initial_state(B), version=0),
        observation=torch.stack([first.roll(t, -1) for t in range(T + 1)]),
        reward=torch.randn(T + 1, B, generator=generator),
        done=done,
        action=torch.randint(A, (T, B), generator=generator),
        behavior_logits=torch.randn(T, B, A, generator=generator),
        forced=forced,
        truncation_bootstrap=truncation_bootstrap,
    )


def _difference(learner: Learner, unroll: Unroll, parts: Collection[str], spec: CacheSpec) -> str | None:
    """Act on an unroll's observations and learn from it; name what differs from the eager code, else None."""
    agent, eager_ops = learner.agent, learner.ops
    fast = FastAgent(agent, set(PARTS) & set(parts), spec)
    acted_unroll = unroll.map(lambda _, x: x.clone())  # the same, with the actions that C samples
    with torch.no_grad():
        _act(FastInference(fast, torch.Generator().manual_seed(0)), acted_unroll)
    acted = acted_unroll.behavior_logits.clone()
    acted_unroll.behavior_logits.copy_(unroll.behavior_logits)
    ops = fused_ops(fast, parts, eager_ops)
    fused = _outputs_and_gradients(learner, acted_unroll, ops)
    eager = _outputs_and_gradients(learner, acted_unroll, eager_ops)
    fused["the logits"] = acted  # of C's steps beside the eager unroll's; those of C's unroll decide its loss
    rounding = dict.fromkeys(eager, 0.0)
    if agent.autocast_dtype is not None:
        rounding = _errors(eager, _outputs_and_gradients(learner, acted_unroll, eager_ops, in_float32=True))
    for name, wanted in eager.items():
        if not _near(fused[name], wanted, _TOLERANCE, _BF16_ERROR_FACTOR * rounding[name]):
            return name
    gradients = [eager[_gradient_of(name)] for name, p in agent.named_parameters() if p.requires_grad]
    optimizer = learner.config.optimizer
    steps = getattr(eager_ops, optimizer), getattr(ops, optimizer)
    if optimizer in parts and not _same_weights_after(*steps, agent, gradients, optimizer):
        return "the optimizer's step"
    return None


def _act(inference: FastInference, unroll: Unroll) -> None:
    inference.state = unroll.state
    with inference.constant_weights():
        inference.start_unroll(unroll)
        for t in range(len(unroll.action)):
            inference.select_actions(unroll, t)
        inference.finish_unroll(unroll)


def _gradient_of(name: str) -> str:
    return f"the gradient of {name}"


def _outputs_and_gradients(
    learner: Learner, batch: Unroll, ops: UpdateOps, in_float32: bool = False
) -> dict[str, Tensor]:
    """Return a batch's logits, loss, statistics and gradients by name; the learner does not change."""
    agent, before = learner.agent, (learner.ops, learner.agent.autocast_dtype)
    named = {name: p for name, p in agent.named_parameters() if p.requires_grad}
    learner.ops = ops
    if in_float32:
        agent.autocast_dtype = None
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # a core of somebody's own may draw from it
            with torch.no_grad():
                output, stats = ops.unroll(agent, batch, learner.config.bptt)
            loss, _ = learner.loss(batch)
    finally:
        learner.ops, agent.autocast_dtype = before
    gradients = torch.autograd.grad(loss, [*named.values()], allow_unused=True, materialize_grads=True)
    outputs = {"the logits": output.policy_logits[:-1], "the loss": loss.detach()}
    outputs |= {f"the statistic {name}": value.detach() for name, value in stats.items()}
    return {**outputs, **dict(zip(map(_gradient_of, named), gradients, strict=True))}


def _errors(rounded: Mapping[str, Tensor], exact: Mapping[str, Tensor]) -> dict[str, float]:
    """Return how far outputs and gradients are from `exact`, in norm; a gradient's error is at least what it
    would be with the root mean square of the relative errors in its part of the agent: stem, core or a head.

    A ReLU that rounding flips changes some gradients many times as much as others, and C flips others than
    the eager code. Parts differ: a stem computes in bfloat16, what comes after it in float32.
    """
    errors = {name: float(torch.dist(value, exact[name])) for name, value in rounded.items()}
    norms = {name: float(torch.linalg.vector_norm(value)) for name, value in rounded.items()}
    parts: dict[str, list[str]] = defaultdict(list)
    for name in rounded:
        if name.startswith(_gradient_of("")) and norms[name] > 0:
            parts[name.partition(".")[0]].append(name)
    for gradients in parts.values():
        typical = math.sqrt(statistics.fmean((errors[name] / norms[name]) ** 2 for name in gradients))
        for name in gradients:
            errors[name] = max(errors[name], typical * norms[name])
    return errors


def _near(actual: Tensor, expected: Tensor, tolerance: float, rounding: float = 0.0) -> bool:
    """Return whether their distance is at most `tolerance` times the norm of `expected`, plus `rounding`."""
    allowed = tolerance * float(torch.linalg.vector_norm(expected)) + rounding + 1e-6
    return float(torch.dist(actual, expected)) <= allowed


def _same_weights_after(
    eager: Callable[..., None],
    fused: Callable[..., None],
    agent: Agent,
    gradients: list[Tensor],
    optimizer: Optimizer,
) -> bool:
    """Return whether both forms of an optimizer's step change copies of the weights and its state alike."""
    parameters = [parameter.detach().clone() for parameter in agent.parameters() if parameter.requires_grad]
    results = []
    for step in (eager, fused):
        weights, grads = ([x.clone() for x in several] for several in (parameters, gradients))
        squares, counts = [w.square() + 1e-4 for w in weights], [torch.zeros(()) for _ in weights]
        means = [[0.1 * w for w in weights]] if optimizer == "adam" else []
        rate, scale = torch.tensor(1e-3), torch.tensor(0.5)
        step(
            torch.tensor(True), weights, grads, *means, squares, counts, rate, scale, _DECAYS[optimizer], 0.01
        )
        results.append([*weights, *squares, *counts, *(x for xs in means for x in xs)])
    return all(_near(x, y, 1e-5) for x, y in zip(*results, strict=True))
