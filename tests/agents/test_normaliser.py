"""Observations are normalised by the mean and deviation of all that was learned from, by whomever it was."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from random_batches import A, B, T, make_batch
from test_cached_updates import SHAPES, PictureEnv, anew, assert_small, gradients, plain, play, relative_error
from test_fused_actor import prepared

from deltabeast.agents import (
    Actor,
    Agent,
    AgentSpec,
    Learner,
    LearnerConfig,
    Unroll,
    WeightStore,
    load_agent,
    split,
)
from deltabeast.agents.accelerate import ALL, accelerate
from deltabeast.agents.checkpoint import export_agent, save_checkpoint
from deltabeast.agents.cpu.agent import FastAgent
from deltabeast.agents.cpu.cache import NO_CACHE, CacheSpec
from deltabeast.agents.cpu.verify import mismatches, verification_unroll
from deltabeast.agents.normaliser import (
    LIMIT,
    PIXEL_LIMIT,
    Normaliser,
    PixelNormaliser,
    make_normaliser,
    merge,
    moments,
)
from deltabeast.agents.weights import SharedWeights
from deltabeast.kernels.native.images import standardised
from deltabeast.launch.training.flat_parameters import flatten, unflatten

SPEC = AgentSpec((5,), A, core="lstm", stem="mlp", normalised=(0, 3))


def learner_of(spec: AgentSpec = SPEC) -> Learner:
    return Learner(Agent(spec), LearnerConfig(total_steps=10_000))


def batch_of(agent: Agent, scale: float = 1000.0) -> Unroll:
    batch = make_batch(agent)
    return replace(batch, observation=scale * batch.observation + 5 * scale)


def normaliser(agent: Agent) -> Normaliser:
    assert agent.normaliser is not None
    return agent.normaliser


@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_pieces_merge_to_the_moments_of_all(offset: float, seed: int) -> None:
    pieces = [torch.randn(n, 2, 3) * torch.tensor([1e-3, 1, 50]) + offset for n in (1, 20, 7)]
    merged = torch.zeros(3, 3, dtype=torch.float64)
    for piece in pieces:
        merged = merge(merged, moments(piece))
    all_rows = torch.cat(pieces).flatten(0, 1).double().numpy()
    np.testing.assert_allclose(merged[0], 56)
    np.testing.assert_allclose(merged[1], all_rows.mean(0), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(merged[2] / 56, all_rows.var(0), rtol=1e-6)


def test_chosen_entries_get_mean_0_and_deviation_1_and_others_stay(seed: int) -> None:
    layer = Normaliser(4, (0, 1, 3))
    seen = torch.randn(3000, 4) * torch.tensor([1e-4, 2000, 7, 0]) + torch.tensor([-3, 5e4, 1, 0.1])
    layer.update_stats([moments(seen)])
    out = layer(seen)
    assert out.dtype == torch.float32
    torch.testing.assert_close(out[:, :2].mean(0), torch.zeros(2), atol=1e-2, rtol=0)
    torch.testing.assert_close(out[:, :2].std(0), torch.ones(2), atol=1e-2, rtol=0)
    assert torch.equal(out[:, 2], seen[:, 2]), "not chosen"
    assert out[:, 3].abs().max() < 1e-6, "does not vary"


def test_what_is_fixed_stays_as_it_was(seed: int) -> None:
    layer, seen = Normaliser(4, (0, 3)), torch.randn(50, 4) * 7 + 3
    layer.update_stats([moments(seen)])
    before, fixed = layer(seen), layer.frozen_transform()
    layer.update_stats([moments(100 * seen)])
    assert torch.equal(fixed(seen), before) and not torch.equal(layer(seen), before)


def test_rounding_is_no_variation() -> None:
    """Float64's last digits, in which the mean of equal numbers differs from them, are not scaled up."""
    layer, seen = Normaliser(1, (0,)), torch.full((13, 1), 1e6 / 3)
    layer.update_stats([moments(seen)])
    layer.statistics[1] *= 1 + 2.0**-52
    layer.statistics[2] = 1e-20
    assert layer(seen).abs().max() < 1e-6


def test_before_anything_was_learned_numbers_are_only_cut_off() -> None:
    layer = Normaliser(3, (0, 1))
    assert layer(torch.tensor([[0.5, 4e6, 4e6], [-4e6, -2, 1]])).tolist() == [
        [0.5, LIMIT, 4e6],
        [-LIMIT, -2, 1],
    ]


def test_the_learner_takes_in_what_it_has_learned_from(seed: int) -> None:
    """Each step once, after the update: actor and learner read it by the same statistics."""
    learner = learner_of()
    batches = [batch_of(learner.agent) for _ in range(3)]
    first = copy.deepcopy(learner)
    for batch in batches:
        learner.update(batch)
    rows = torch.cat([batch.observation[:-1] for batch in batches]).flatten(0, 1).double().numpy()
    count, mean, squares = normaliser(learner.agent).statistics.numpy()
    assert (count == 3 * T * B).all()
    np.testing.assert_allclose(mean, rows.mean(0))
    np.testing.assert_allclose(squares / count, rows.var(0))
    loss = first.loss(batches[0])[0].item()
    assert first.update(batches[0])["total_loss"] == pytest.approx(loss, rel=1e-6)
    assert first.loss(batches[0])[0].item() != pytest.approx(loss, rel=1e-3)


def test_parts_of_a_batch_count_as_the_whole(seed: int) -> None:
    whole = learner_of()
    parts = copy.deepcopy(whole)
    batch = batch_of(whole.agent)
    whole.update(batch)
    partial_updates = [parts.backward(part) for part in split(batch, 1)]
    own, *others = partial_updates
    parts.step([own, *(replace(each, moments=np.asarray(each.moments)) for each in others)])
    torch.testing.assert_close(
        normaliser(parts.agent).statistics, normaliser(whole.agent).statistics, rtol=1e-12, atol=1e-6
    )


def test_steps_equal_the_unroll_and_acting_changes_nothing(seed: int) -> None:
    learner = learner_of()
    batch = batch_of(learner.agent)
    learner.update(batch)
    agent, before = learner.agent, normaliser(learner.agent).statistics.clone()
    with torch.no_grad():
        output, *_ = agent.unroll(batch.observation, batch.reward, batch.done, batch.state)
        state = batch.state
        for t in range(T + 1):
            step, state = agent.act(batch.observation[t], batch.reward[t], batch.done[t], state)
            torch.testing.assert_close(step.policy_logits, output.policy_logits[t], rtol=1e-4, atol=1e-5)
        far = agent.unroll(1e9 * batch.observation, batch.reward, batch.done, batch.state)[0]
    assert far.policy_logits.isfinite().all()
    assert torch.equal(normaliser(agent).statistics, before)


def test_what_an_actor_caches_is_what_the_learner_would_compute(seed: int) -> None:
    """The statistics change between two unrolls, never between an unroll and its update."""

    def errors() -> dict[str, float]:
        actor, learner, fast = play("mlp", seed=seed)
        learner.agent.normaliser = Normaliser(6, (0, 2, 5))
        for _ in range(2):
            learner.update(actor.collect())
        unroll = actor.collect()
        assert fast.cache.is_of(unroll) and fast.cache.core.t == 7
        return relative_error(gradients(learner, unroll), anew(learner, unroll))

    assert_small(errors)


def test_a_step_in_one_call_of_c_reads_normalised_numbers(seed: int) -> None:
    """It acts as separate calls do."""
    _, learner, _ = play("mlp", seed=seed)
    learner.agent.normaliser = Normaliser(6, (0, 2, 5))
    learner.agent.normaliser.update_stats([moments(50 * torch.randn(20, 6) + 100)])
    env = (3, 6, 1, 50), SHAPES["mlp"]
    one, other = (
        Actor(PictureEnv(*env), each.agent, SharedWeights(), 6, seed, inference=accelerate(each, spec=spec))
        for spec in (CacheSpec(projection=True, core=True), NO_CACHE)
        for each in [plain(learner)]
    )
    for _ in range(3):
        fused, separate = one.collect(), other.collect()
        assert prepared(one.agent, fused) is not None
        for x, y in zip(fused.tensors(), separate.tensors(), strict=True):
            torch.testing.assert_close(x, y, rtol=0, atol=0)


def test_statistics_go_wherever_weights_go(tmp_path: Path, seed: int) -> None:
    learner = learner_of()
    for _ in range(3):
        learner.update(batch_of(learner.agent, 1e5))
    expected = normaliser(learner.agent).statistics
    pulled, sent = Agent(SPEC), Agent(SPEC)
    WeightStore(learner.agent).pull(pulled)
    unflatten(sent, flatten(learner.agent))
    save_checkpoint(tmp_path / "run", 1, learner.agent, {"steps": 1})
    export_agent(tmp_path / "half", 1, learner.agent, half=True)
    for agent in (pulled, sent, load_agent(tmp_path / "run"), load_agent(tmp_path / "half")):
        assert torch.equal(normaliser(agent).statistics, expected), "bit for bit"
    assert torch.equal(sent.policy.weight, learner.agent.policy.weight)
    assert load_agent(tmp_path / "run").spec == SPEC


def test_entries_that_are_not_there_are_refused() -> None:
    with pytest.raises(ValueError, match="among 4, got"):
        Normaliser(4, (1, 4))
    with pytest.raises(ValueError, match="all of an image's 4 channels are normalised, or none; got"):
        make_normaliser((4, 8, 8), (0, 2))
    with pytest.raises(ValueError, match="stem 'small' reads pixels as categories"):
        Agent(AgentSpec((2, 7, 7), A, core="lstm", stem="small", normalised=(0, 1)))


def images(*shape: int) -> torch.Tensor:
    """Return random bytes `[..., 2, 9, 11]`, some pixels of which hardly change, or never."""
    pixels = torch.randint(256, (*shape, 2, 9, 11), dtype=torch.uint8)
    pixels[..., :3, :] = torch.where(torch.rand(*shape, 2, 3, 11) < 0.05, 200, 87)
    pixels[..., 3, :] = 87
    return pixels


def test_moments_of_pixels_merge_to_those_of_all(seed: int) -> None:
    """Of more images than are summed at once, in batches whose eighth steps count."""
    batches = [images(steps, 70) for steps in (33, 1, 8)]
    layer = make_normaliser((2, 9, 11), (0, 1))
    layer.update_stats([layer.moments(batch) for batch in batches])
    rows = torch.cat([batch[::8].flatten(0, 1) for batch in batches]).flatten(1).double().numpy()
    count, mean, squares = layer.statistics.numpy()
    assert (count == len(rows)).all() and len(rows) > 256
    np.testing.assert_allclose(mean, rows.mean(0), rtol=1e-12)
    np.testing.assert_allclose(squares / count, rows.var(0), rtol=1e-9, atol=1e-9)


def test_pixels_get_mean_0_and_deviation_1(seed: int) -> None:
    layer, seen = make_normaliser((2, 9, 11), (0, 1)), images(8 * 40, 5)
    torch.testing.assert_close(layer(seen[0]), seen[0] / 255, msg="as without, before anything is learned")
    layer.update_stats([layer.moments(seen)])
    rows = seen[::8].flatten(0, 1)
    out = layer(rows)
    assert out.dtype == torch.float32 and out.shape == rows.shape
    assert out.abs().max() <= PIXEL_LIMIT
    assert out[:, :, :3].max() == PIXEL_LIMIT or out[:, :, :3].max() > 3, "rare changes stand out"
    assert out[:, :, 3].eq(0).all(), "what never changes is at its mean"
    torch.testing.assert_close(out[:, :, 4:].mean(0), torch.zeros(2, 5, 11), atol=1e-3, rtol=0)
    torch.testing.assert_close(out[:, :, 4:].std(0), torch.ones(2, 5, 11), atol=0.01, rtol=0)
    changed = rows[:1].clone()
    changed[:, :, 3] = 187
    torch.testing.assert_close(layer(changed)[:, :, 3], torch.full((1, 2, 11), 100 / 255))


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
@pytest.mark.parametrize("stem", ["residual", "nature", "shallow"])
def test_c_normalises_pixels_as_pytorch(stem: str, dtype: torch.dtype | None, seed: int) -> None:
    """In one and in two threads' sizes, before and after statistics change in place."""
    agent = Agent(AgentSpec((3, 84, 84), A, core="lstm", stem=stem, normalised=(0, 1, 2)))
    agent.autocast_dtype = dtype
    fast, layer = FastAgent(agent), normaliser(agent)
    pixels = torch.randint(256, (17, 3, 84, 84), dtype=torch.uint8)
    for _ in range(3):
        with torch.no_grad():
            ours, theirs = (each.trunk_features(pixels[:5]).float() for each in (fast, agent))
        tolerance = 1e-5 if dtype is None else 2e-2
        assert torch.dist(ours, theirs) <= tolerance * theirs.norm()
        other = torch.randint(256, pixels.shape, dtype=torch.uint8) // 2
        layer.update_stats([layer.moments(other[None])])
        with torch.no_grad():
            assert torch.dist(agent.trunk_features(pixels[:5]).float(), theirs) > 0.02 * theirs.norm()


def test_the_kernel_has_pytorchs_bits(seed: int) -> None:
    layer, pixels = make_normaliser((2, 9, 11), (0, 1)), images(40, 3)
    assert isinstance(layer, PixelNormaliser)
    layer.update_stats([layer.moments(pixels)])
    by_pixel = torch.stack(layer.affine()).permute(0, 2, 3, 1).contiguous()
    for dtype in (torch.float32, torch.bfloat16):
        x = standardised(pixels[0], by_pixel, PIXEL_LIMIT, dtype)
        assert x.dtype is dtype and torch.equal(x, layer(pixels[0]).to(dtype))
    with pytest.raises(ValueError, match=r"give torch\.uint8"):
        standardised(pixels[0].float(), by_pixel, PIXEL_LIMIT, torch.float32)


@pytest.mark.parametrize("stem", ["shallow", "nature"])
def test_c_is_compared_where_a_picture_stands_still(stem: str, seed: int) -> None:
    """Still pixels are 0 once normalised: with biases of 0 rounding alone would decide a ReLU's gradient."""
    learner = learner_of(AgentSpec((4, 84, 84), A, core="feedforward", stem=stem, normalised=(0, 1, 2, 3)))
    picture = torch.full((3, 4, 84, 84), 87, dtype=torch.uint8)
    picture[:, :, 40:44, 40:44] = torch.randint(256, (3, 4, 4, 4), dtype=torch.uint8)
    before = copy.deepcopy(learner.agent.state_dict())
    unroll = verification_unroll(learner.agent, picture)
    assert mismatches(learner, unroll, ALL, FastAgent(learner.agent).cache_spec) == {}
    for name, tensor in learner.agent.state_dict().items():
        assert torch.equal(tensor, before[name]), name
