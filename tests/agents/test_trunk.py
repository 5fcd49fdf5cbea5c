"""What an actor keeps of trunk and core for its learner: the same update as if it were computed anew."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from counting_env import CountingEnv
from gymnasium import spaces
from gymnasium.vector.utils import batch_space
from random_batches import CORES
from torch import Tensor

from deltabeast.agents import Actor, Agent, AgentSpec, Learner, LearnerConfig, Unroll, join, split
from deltabeast.agents.inference import Keep
from deltabeast.agents.known import UNKNOWN
from deltabeast.agents.weights import SharedWeights
from deltabeast.kernels.native import compiling

SHAPES = {
    **{"residual": (4, 20, 20), "nature": (4, 36, 36), "shallow": (4, 20, 20)},
    **{"small": (3, 5, 5), "mlp": (6,)},
}


class PictureEnv(CountingEnv):
    """Shows a random observation for each environment, episode and step: an image, or a vector of numbers."""

    def __init__(self, lengths: tuple[int, ...], shape: tuple[int, ...]) -> None:
        super().__init__(lengths)
        kind = np.uint8 if len(shape) == 3 else np.float32
        self.single_observation_space = spaces.Box(0, 255, shape, kind)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self._pictures = np.random.default_rng(0).integers(0, 256, (97, *shape), np.uint8).astype(kind)

    def _observe(self) -> np.ndarray:
        return self._pictures[(37 * np.arange(self.num_envs) + 11 * self.episode + self.count) % 97]


def play(
    stem: str = "nature", core: str = "lstm", *, dtype: torch.dtype | None = None, T: int = 6, seed: int = 1
) -> tuple[Actor, Learner]:
    """Make a learner and an actor in turns with it. Episodes end at the first, the last and every step."""
    keep = Keep(trunk=stem != "mlp", projection=True, core=True)
    agent = Agent(AgentSpec(SHAPES[stem], 4, core=core, stem=stem))
    agent.autocast_dtype = dtype
    env = PictureEnv((3, T, 1, 50), SHAPES[stem])
    actor = Actor(env, agent, SharedWeights(), T, seed, keep=keep)
    return actor, Learner(agent, LearnerConfig(total_steps=10_000))


def gradients(learner: Learner, unroll: Unroll, bptt: str = "full") -> dict[str, Tensor]:
    learner.config = replace(learner.config, bptt=bptt)
    learner.backward(unroll)
    return {name: p.grad.clone() for name, p in learner.agent.named_parameters() if p.grad is not None}


def anew(learner: Learner, unroll: Unroll, bptt: str = "full") -> dict[str, Tensor]:
    """Return the gradients of a learner that computes everything itself."""
    return gradients(copy.deepcopy(learner), replace(unroll, known=UNKNOWN), bptt)


def relative_error(kept: dict[str, Tensor], expected: dict[str, Tensor]) -> dict[str, float]:
    assert kept.keys() == expected.keys()
    return {name: ((kept[name] - g).norm() / g.norm().clamp(min=1e-6)).item() for name, g in expected.items()}


KEEPERS = ("lstm", "linear_transformer", "delta_net", "gated_delta_net", "delta_rnn", "rdn")
"""the cores that C steps"""


@pytest.mark.parametrize("bptt", ["full", "per_step"])
@pytest.mark.parametrize("core", CORES)
def test_the_update_is_the_same_for_every_core(core: str, bptt: str, seed: int) -> None:
    assert_small(lambda: errors_of_update(core, bptt, seed))


def assert_small(errors_of: Callable[[], dict[str, float]]) -> None:
    """Assert that two computations of gradients agree, of an agent with new random weights at each call.

    A number next to zero may be rectified in one of them and not in the other, which changes gradients by
    some thousandths. That is luck: with other weights it does not happen again.
    """
    for _ in range(3):
        errors = errors_of()
        if max(errors.values()) < 1e-4:
            return
        assert max(errors.values()) < 1e-2, errors
    raise AssertionError(f"three times in a row: {errors}")


def errors_of_update(core: str, bptt: str, seed: int) -> dict[str, float]:
    actor, learner = play(core=core, seed=seed)
    actor.collect()  # so that the state is not zero
    unroll = actor.collect()
    assert unroll.done.any() and unroll.forced.any() and not unroll.done.all()
    trunk, projection, kept = unroll.known
    assert len(trunk) == 7 and trunk[0].requires_grad and not trunk[-1].requires_grad
    assert projection.t == 7
    assert kept.t == 7 if core in KEEPERS else kept is None
    expected = anew(learner, unroll, bptt)
    assert all(g.abs().max() > 0 for name, g in expected.items() if name.startswith("stem.trunk"))
    return relative_error(gradients(learner, unroll, bptt), expected)


@pytest.mark.parametrize("core", KEEPERS)
def test_the_log_is_the_same_for_every_core_kept(core: str, seed: int) -> None:
    actor, learner = play(core=core, seed=seed)
    actor.collect()
    unroll = actor.collect()
    kept = {**learner.backward(unroll).metrics}
    expected = learner.backward(replace(unroll, known=UNKNOWN)).metrics
    assert kept == {name: pytest.approx(float(value), rel=1e-3, abs=1e-5) for name, value in expected.items()}
    assert core in ("lstm", "linear_transformer") or 0 < kept["write_strength"] < 1


@pytest.mark.parametrize("T", [1, 7])
@pytest.mark.parametrize("stem", SHAPES)
def test_the_update_is_the_same_for_every_stem(stem: str, T: int, seed: int) -> None:
    def errors() -> dict[str, float]:
        actor, learner = play(stem, T=T, seed=seed)
        unroll = actor.collect()
        expected = anew(learner, unroll)
        return relative_error(gradients(learner, unroll), expected)

    assert_small(errors)


@pytest.mark.parametrize("stem", ["residual", "nature", "shallow"])
def test_bfloat16_gradients_of_many_steps_are_added_up_in_float32(stem: str, seed: int) -> None:
    actor, learner = play(stem, dtype=torch.bfloat16, T=60, seed=seed)
    unroll, arrived = actor.collect(), dict[int, Tensor]()
    for t, features in enumerate(unroll.known.trunk[:-1]):
        features.register_hook(lambda gradient, t=t: arrived.update({t: gradient}))
    kept = gradients(learner, unroll)
    # The steps one by one: over many frames some CPUs add up in bfloat16, whoever asks.
    agent, sums = copy.deepcopy(learner.agent), {name: torch.zeros_like(g) for name, g in kept.items()}
    for t, gradient in arrived.items():
        agent.zero_grad()
        agent.trunk_features(unroll.observation[t]).backward(gradient)
        for name, parameter in agent.stem.trunk.named_parameters(prefix="stem.trunk"):
            sums[name] += parameter.grad
    assert len(arrived) == 60
    for name, error in relative_error(kept, sums).items():
        # Were they added up in bfloat16, it would be 0.006.
        if name.startswith("stem.trunk"):
            assert error < 1e-5, name


def test_it_acts_as_an_actor_that_keeps_nothing(seed: int) -> None:
    actor, learner = play("residual", seed=seed)
    other = Actor(
        PictureEnv((3, 6, 1, 50), SHAPES["residual"]), copy.deepcopy(learner.agent), SharedWeights(), 6, seed
    )
    for _ in range(2):
        kept, plain = actor.collect(), other.collect()
        assert all(kept.known) and not any(plain.known)
        for x, y in zip(kept.tensors(), plain.tensors(), strict=True):
            torch.testing.assert_close(x, y, rtol=0, atol=0)
            assert not x.requires_grad


def test_weights_of_convolutions_are_transformed_once_an_unroll(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    actor, learner = play(seed=seed)
    made, call = [], compiling.call

    def counted(source: str, define: str, name: str, *rest: object) -> None:
        made.append(name)
        call(source, define, name, *rest)

    monkeypatch.setattr(compiling, "call", counted)
    for _ in range(2):
        made.clear()
        unroll = actor.collect()
        assert made.count("convolve") == 3 * 7 and made.count("transform_weights") == 3
        made.clear()
        learner.update(unroll)  # the first convolution's observations need no gradient
        assert made.count("differentiate") == 3 * 6 and made.count("transform_weights") == 2


def test_features_of_other_weights_are_refused(seed: int) -> None:
    """A batch from before the last update would teach a mixture of two policies: autograd notices."""
    actor, learner = play(seed=seed)
    first, second = actor.collect(), actor.collect()
    learner.update(first)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        learner.backward(second)


def without_trunk(learner: Learner, unroll: Unroll) -> dict[str, Tensor]:
    return gradients(learner, replace(unroll, known=unroll.known._replace(trunk=())))


@pytest.mark.parametrize("core", ["lstm", "delta_net", "rdn"])
def test_a_core_of_other_weights_or_a_changed_one_computes_anew(core: str, seed: int) -> None:
    actor, learner = play(core=core, seed=seed)
    first, second, third = (actor.collect() for _ in range(3))
    other = copy.deepcopy(learner)
    for parameter in other.agent.core.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    errors = relative_error(without_trunk(other, first), anew(other, first))
    assert max(errors.values()) < 1e-6, errors
    learner.update(first)
    errors = relative_error(without_trunk(learner, second), anew(learner, second))
    assert max(errors.values()) < 1e-6, errors
    if core != "lstm":
        learner.agent.core.layers[0].ff[1].register_forward_hook(lambda module, given, result: 2 * result)
        errors = relative_error(without_trunk(learner, third), anew(learner, third))
        assert max(errors.values()) < 1e-6, errors


@pytest.mark.parametrize("core", ["lstm", "rdn"])
def test_steps_beyond_what_there_is_room_for_are_steps_all_the_same(core: str, seed: int) -> None:
    agent = Agent(AgentSpec((5,), 4, core=core, stem="mlp"))
    with torch.no_grad():
        for rows, room in ((3, 1), (2, 0)):  # as there is room for, and too few rows
            kept = agent.core.new_kept(1, 3)
            x, done, state = (
                torch.randn(rows, 257),
                torch.ones(rows, dtype=torch.bool),
                agent.initial_state(rows),
            )
            for _ in range(2):
                y, _ = agent.core.keeping_step(x, state, done, kept)
                torch.testing.assert_close(y, agent.core.step(x, state, done)[0])
            assert kept.t == room


@pytest.mark.parametrize("part", ["projection", "core"])
def test_what_is_known_is_taken(part: str, seed: int) -> None:
    """To rounding it is what would be computed, so it is changed to see."""
    actor, learner = play(seed=seed)
    actor.collect()
    unroll = actor.collect()
    expected = anew(learner, unroll)
    for tensor in getattr(unroll.known, part).tensors:
        tensor.mul_(0.5)
    assert max(relative_error(gradients(learner, unroll), expected).values()) > 0.05


@pytest.mark.parametrize("stem", ["nature", "mlp"])
def test_an_unroll_that_broke_off_leaves_nothing_behind(
    stem: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    actor, learner = play(stem, seed=seed)
    step = actor.env.step

    def breaks(actions: np.ndarray) -> object:
        monkeypatch.setattr(actor.env, "step", step)
        raise RuntimeError("power cut")

    monkeypatch.setattr(actor.env, "step", breaks)
    with pytest.raises(RuntimeError, match="power cut"):
        actor.collect()
    unroll = actor.collect()
    assert len(unroll.known.trunk) == (7 if stem == "nature" else 0)
    assert unroll.known.core.t == unroll.known.projection.t == 7
    assert max(relative_error(gradients(learner, unroll), anew(learner, unroll)).values()) < 1e-2


def test_joined_unrolls_keep_their_features_and_cut_ones_do_not(seed: int) -> None:
    def errors() -> dict[str, float]:
        actor, learner = play(seed=seed)
        both = join([actor.collect(), actor.collect()])
        assert len(both.known.trunk) == 7
        expected = anew(learner, both)
        return relative_error(gradients(learner, both), expected)

    assert_small(errors)
    actor, _ = play(seed=seed)
    one, other = actor.collect(), actor.collect()
    assert not join([one, replace(other, version=1)]).known.trunk
    assert not join([one, replace(other, known=UNKNOWN)]).known.trunk
    assert [any(part.known) for part in split(one, 2)] == [False, False]
    assert all(split(one, 4)[0].known)
