"""Activations that an actor caches for its learner: the same update as if the eager code computed them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from counting_env import CountingEnv
from gymnasium import spaces
from gymnasium.vector.utils import batch_space
from random_batches import CORES
from torch import Tensor

from deltabeast.agents import Actor, Agent, AgentSpec, Learner, LearnerConfig, Unroll, join
from deltabeast.agents.accelerate import accelerate
from deltabeast.agents.cpu.agent import FastAgent
from deltabeast.agents.cpu.cache import CacheSpec
from deltabeast.agents.cpu.cores import functions_of
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
    stem: str = "nature",
    core: str = "lstm",
    *,
    dtype: torch.dtype | None = None,
    T: int = 6,
    seed: int = 1,
    unrolls: int = 1,
    spec: CacheSpec | None = None,
) -> tuple[Actor, Learner, FastAgent]:
    """Make a learner, which learns from so many `unrolls`, and an actor in turns with it.

    Episodes end at the first, the last and every step. `core` may be "hybrid" and its layers.
    """
    name, _, layers = core.partition(" ")
    options = {"layers": layers} if layers else {}
    agent = Agent(AgentSpec(SHAPES[stem], 4, core=name, stem=stem, core_options=options))
    agent.autocast_dtype = dtype
    learner = Learner(agent, LearnerConfig(total_steps=10_000))
    everything = CacheSpec(unrolls * (stem != "mlp"), projection=True, core=True)
    inference = accelerate(learner, spec=spec or everything)
    env = PictureEnv((3, T, 1, 50), SHAPES[stem])
    return Actor(env, agent, SharedWeights(), T, seed, inference=inference), learner, fast_of(learner)


def fast_of(learner: Learner) -> FastAgent:
    fast: FastAgent = learner.ops.unroll.__self__
    return fast


def gradients(learner: Learner, unroll: Unroll, bptt: str = "full") -> dict[str, Tensor]:
    learner.config = replace(learner.config, bptt=bptt)
    learner.backward(unroll)
    return {name: p.grad.clone() for name, p in learner.agent.named_parameters() if p.grad is not None}


def plain(learner: Learner) -> Learner:
    """Return a copy that runs the eager code."""
    return Learner(copy.deepcopy(learner.agent), learner.config)


def anew(learner: Learner, unroll: Unroll, bptt: str = "full") -> dict[str, Tensor]:
    """Return the gradients of the eager code."""
    return gradients(plain(learner), unroll, bptt)


def relative_error(found: dict[str, Tensor], expected: dict[str, Tensor]) -> dict[str, float]:
    """Return each gradient's error in norms of it; of one that is next to nothing beside the largest, in 1e-4
    of that: a policy that is all but certain has a gradient of rounding errors."""
    assert found.keys() == expected.keys()
    least = max(1e-6, 1e-4 * max(float(g.norm()) for g in expected.values()))
    return {
        name: ((found[name] - g).norm() / g.norm().clamp(min=least)).item() for name, g in expected.items()
    }


CACHED = (
    *("lstm", "linear_transformer", "delta_net", "gated_delta_net", "delta_rnn", "rdn"),
    *("kda", "gated_delta_net_2", "delta_product", "rwkv7"),
    *("softmax_attention", "transformer", "hybrid kda,gtrxl", "hybrid delta_net,rdn,rdn"),
)
"""cores whose steps C computes and caches"""


@pytest.mark.parametrize("bptt", ["full", "per_step"])
@pytest.mark.parametrize("core", [*CORES, "transformer", "gtrxl", "hybrid delta_net,rdn,rdn"])
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
    actor, learner, fast = play(core=core, seed=seed)
    actor.collect()  # so that the state is not zero
    unroll = actor.collect()
    assert unroll.done.any() and unroll.forced.any() and not unroll.done.all()
    cache = fast.cache
    assert cache.is_of(unroll) and len(cache.trunk) == 7
    assert cache.trunk[0].requires_grad and not cache.trunk[-1].requires_grad
    assert cache.projection.t == 7
    assert cache.core.t == 7 if core in CACHED else cache.core is None
    expected = anew(learner, unroll, bptt)
    assert all(g.abs().max() > 0 for name, g in expected.items() if name.startswith("stem.trunk"))
    return relative_error(gradients(learner, unroll, bptt), expected)


@pytest.mark.parametrize("core", CACHED)
def test_the_log_is_the_same_for_every_core_that_is_cached(core: str, seed: int) -> None:
    actor, learner, _ = play(core=core, seed=seed)
    actor.collect()
    unroll = actor.collect()
    found = {**learner.backward(unroll).metrics}
    expected = plain(learner).backward(unroll).metrics
    assert found == {name: pytest.approx(float(v), rel=1e-3, abs=1e-5) for name, v in expected.items()}
    most = 2 if core == "delta_product" else 1
    writes_alike = ("lstm", "linear_transformer", "softmax_attention", "transformer")
    assert core in writes_alike or 0 < found["write_strength"] < most


@pytest.mark.parametrize("T", [1, 7])
@pytest.mark.parametrize("stem", SHAPES)
def test_the_update_is_the_same_for_every_stem(stem: str, T: int, seed: int) -> None:
    def errors() -> dict[str, float]:
        actor, learner, _ = play(stem, T=T, seed=seed)
        unroll = actor.collect()
        expected = anew(learner, unroll)
        return relative_error(gradients(learner, unroll), expected)

    assert_small(errors)


@pytest.mark.parametrize(
    "spec", [CacheSpec(trunk=1), CacheSpec(projection=True), CacheSpec(core=True), CacheSpec(1, core=True)]
)
def test_the_update_is_the_same_whatever_is_cached(spec: CacheSpec, seed: int) -> None:
    def errors() -> dict[str, float]:
        actor, learner, fast = play(seed=seed, spec=spec)
        unroll = actor.collect()
        cached = len(fast.cache.trunk), fast.cache.projection is not None, fast.cache.core is not None
        assert cached == (7 * spec.trunk, spec.projection, spec.core)
        expected = anew(learner, unroll)
        return relative_error(gradients(learner, unroll), expected)

    assert_small(errors)


@pytest.mark.parametrize("stem", ["residual", "nature", "shallow"])
def test_bfloat16_gradients_of_many_steps_are_added_up_in_float32(stem: str, seed: int) -> None:
    actor, learner, fast = play(stem, dtype=torch.bfloat16, T=60, seed=seed)
    unroll, arrived = actor.collect(), dict[int, Tensor]()
    for t, features in enumerate(fast.cache.trunk[:-1]):
        features.register_hook(lambda gradient, t=t: arrived.update({t: gradient}))
    found = gradients(learner, unroll)
    # The steps one by one: over many frames some CPUs add up in bfloat16, whoever asks.
    agent, sums = copy.deepcopy(learner.agent), {name: torch.zeros_like(g) for name, g in found.items()}
    for t, gradient in arrived.items():
        agent.zero_grad()
        FastAgent(agent).trunk_features(unroll.observation[t]).backward(gradient)
        for name, parameter in agent.stem.trunk.named_parameters(prefix="stem.trunk"):
            sums[name] += parameter.grad
    assert len(arrived) == 60
    for name, error in relative_error(found, sums).items():
        # Were they added up in bfloat16, it would be 0.006.
        if name.startswith("stem.trunk"):
            assert error < 1e-5, name


def test_it_acts_as_the_plain_code(seed: int) -> None:
    actor, learner, fast = play("residual", seed=seed)
    env = PictureEnv((3, 6, 1, 50), SHAPES["residual"])
    other = Actor(env, copy.deepcopy(learner.agent), SharedWeights(), 6, seed)
    for _ in range(2):
        cached, expected = actor.collect(), other.collect()
        assert fast.cache.is_of(cached) and not fast.cache.is_of(expected)
        for x, y in zip(cached.tensors(), expected.tensors(), strict=True):
            torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5)
            assert not x.requires_grad


def test_weights_of_convolutions_are_transformed_once_an_unroll(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    actor, learner, _ = play(seed=seed)
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


def test_a_batch_of_other_weights_is_computed_anew(seed: int) -> None:
    """One from before the last update: its activations are gone, those of the next are not its own."""
    actor, learner, fast = play(seed=seed)
    first, second = actor.collect(), actor.collect()
    assert fast.cache.is_of(second) and not fast.cache.is_of(first)
    errors = relative_error(gradients(learner, first), anew(learner, first))
    assert max(errors.values()) < 1e-2, errors


@pytest.mark.parametrize("name", ["observation", "reward", "done", "state"])
@pytest.mark.parametrize("in_place", [False, True])
def test_a_batch_that_was_changed_is_computed_anew(name: str, in_place: bool, seed: int) -> None:
    """As augmentation between acting and learning would."""
    actor, learner, _ = play(seed=seed)
    actor.collect()
    unroll = actor.collect()
    before = gradients(learner, unroll)
    actor, learner, _ = play(seed=seed)
    actor.collect()
    unroll = actor.collect()
    if name == "state":
        changed = tuple(part + 1 for part in unroll.state)
        parts = zip(unroll.state, changed, strict=True)
    else:
        changed = getattr(unroll, name).flip(0)
        parts = iter([(getattr(unroll, name), changed)])
    if in_place:
        for part, value in parts:
            part.copy_(value)
    else:
        unroll = replace(unroll, **{name: changed})
    found = gradients(learner, unroll)
    assert max(relative_error(found, anew(learner, unroll)).values()) < 1e-2
    assert max(relative_error(found, before).values()) > 1e-2


@pytest.mark.parametrize("part", ["trunk", "projection"])
def test_a_stem_of_other_weights_computes_anew(part: str, seed: int) -> None:
    """And with it what reads from it."""
    actor, learner, _ = play(core="rdn", seed=seed)
    unroll = actor.collect()
    for parameter in getattr(learner.agent.stem, part).parameters():
        torch.nn.init.normal_(parameter, std=0.05)
    assert max(relative_error(gradients(learner, unroll), anew(learner, unroll)).values()) < 1e-2


@pytest.mark.parametrize("core", ["lstm", "delta_net", "rdn"])
def test_a_core_of_other_weights_or_a_changed_one_computes_anew(core: str, seed: int) -> None:
    def same() -> bool:
        errors = relative_error(gradients(learner, unroll), anew(learner, unroll))
        return max(errors.values()) < 1e-2

    actor, learner, _ = play("mlp", core, seed=seed)
    unroll = actor.collect()
    for parameter in learner.agent.core.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    assert same()
    unroll = actor.collect()
    if core != "lstm":
        learner.agent.core.layers[0].ff[1].register_forward_hook(lambda module, given, result: 2 * result)
        assert same()


@pytest.mark.parametrize("core", ["lstm", "rdn"])
def test_steps_beyond_what_there_is_room_for_are_steps_all_the_same(core: str, seed: int) -> None:
    agent = Agent(AgentSpec((5,), 4, core=core, stem="mlp"))
    with torch.no_grad():
        for rows, room in ((3, 1), (2, 0)):  # as there is room for, and too few rows
            functions = functions_of(agent.core)
            cache = functions.new_cache(agent.core, 1, 3)
            x, done, state = (
                torch.randn(rows, 257),
                torch.ones(rows, dtype=torch.bool),
                agent.initial_state(rows),
            )
            for _ in range(2):
                y, _ = functions.step(agent.core, x, state, done, cache) or agent.core.step(x, state, done)
                torch.testing.assert_close(y, agent.core.step(x, state, done)[0])
            assert cache.t == room


@pytest.mark.parametrize("part", ["projection", "core"])
def test_what_is_cached_is_taken(part: str, seed: int) -> None:
    """To rounding it is what would be computed, so it is changed to see."""
    actor, learner, fast = play(seed=seed)
    actor.collect()
    unroll = actor.collect()
    expected = anew(learner, unroll)
    for tensor in getattr(fast.cache, part).tensors:
        tensor.mul_(0.5)
    assert max(relative_error(gradients(learner, unroll), expected).values()) > 0.05


@pytest.mark.parametrize("stem", ["nature", "mlp"])
def test_an_unroll_that_broke_off_leaves_nothing_behind(
    stem: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    actor, learner, fast = play(stem, seed=seed)
    step = actor.env.step

    def breaks(actions: np.ndarray) -> object:
        monkeypatch.setattr(actor.env, "step", step)
        raise RuntimeError("power cut")

    monkeypatch.setattr(actor.env, "step", breaks)
    with pytest.raises(RuntimeError, match="power cut"):
        actor.collect()
    unroll = actor.collect()
    assert len(fast.cache.trunk) == (7 if stem == "nature" else 0)
    assert fast.cache.core.t == fast.cache.projection.t == 7
    assert max(relative_error(gradients(learner, unroll), anew(learner, unroll)).values()) < 1e-2


def test_an_unroll_that_broke_off_before_it_began_is_none_of_a_batch(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    actor, learner, _ = play(seed=seed, unrolls=2)
    monkeypatch.setattr(actor.inference, "record", Mock(side_effect=RuntimeError("power cut")))
    with pytest.raises(RuntimeError, match="power cut"):
        actor.collect()
    monkeypatch.undo()
    unroll = actor.collect()
    assert max(relative_error(gradients(learner, unroll), anew(learner, unroll)).values()) < 1e-2


def test_casts_of_weights_end_with_an_unroll_that_broke_off(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    actor, learner, _ = play(dtype=torch.bfloat16, seed=seed)
    monkeypatch.setattr(actor.inference, "finish_unroll", Mock(side_effect=RuntimeError("power cut")))
    with pytest.raises(RuntimeError, match="power cut"):
        actor.collect()
    monkeypatch.undo()
    assert not torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") is torch.bfloat16
    with torch.no_grad():
        for parameter in learner.agent.stem.parameters():
            parameter.mul_(-2)
    unroll = actor.collect()
    logits = learner.agent.unroll(unroll.observation, unroll.reward, unroll.done, unroll.state)[
        0
    ].policy_logits
    torch.testing.assert_close(unroll.behavior_logits, logits[:-1], rtol=0.1, atol=0.02)


@pytest.mark.parametrize(
    ("unrolls", "order", "taken"),
    [(2, (0, 1), True), (2, (1, 0), False), (1, (0, 1), False), (3, (0, 1), False)],
)
def test_trunk_features_are_cached_of_all_unrolls_of_a_batch(
    unrolls: int, order: tuple[int, int], taken: bool, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    actor, learner, fast = play(seed=seed, unrolls=unrolls)
    actor.collect()
    both = [actor.collect(), actor.collect()]
    batch, computed = join([both[i] for i in order]), []
    trunk_features = fast.trunk_features
    monkeypatch.setattr(fast, "trunk_features", lambda x: computed.append(x) or trunk_features(x))
    found = gradients(learner, batch)
    assert not fast.cache.is_of(batch) and bool(computed) != taken
    assert max(relative_error(found, anew(learner, batch)).values()) < 1e-2
