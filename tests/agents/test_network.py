"""The agent: published sizes, one arithmetic for actor and learner, resets, sampling."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

from deltabeast.agents import Agent, AgentSpec, default_stem
from deltabeast.cores import core_names

ATARI = (4, 84, 84)


def small_agent(core: str, **options: object) -> Agent:
    return Agent(AgentSpec((7,), 5, core=core, stem="mlp", core_options=options))


@pytest.mark.parametrize(
    ("core", "parameters"),
    [
        ("feedforward", 1_094_134),
        ("lstm", 1_621_475),
        ("linear_transformer", 1_520_227),
        ("delta_net", 1_521_251),
        ("rdn", 1_546_083),
        ("delta_rnn", 1_587_811),
        ("rdn_large", 3_372_003),
        ("gated_feedforward", 1_589_283),
    ],
)
def test_published_sizes_with_18_actions(core: str, parameters: int) -> None:
    agent = Agent(AgentSpec(ATARI, 18, core=core, stem="residual"))
    assert sum(p.numel() for p in agent.parameters()) == parameters


def test_the_residual_stem_has_fifteen_convolutions() -> None:
    agent = Agent(AgentSpec(ATARI, 6, core="feedforward", stem="residual"))
    convolutions = [m for m in agent.stem.modules() if isinstance(m, torch.nn.Conv2d)]
    assert len(convolutions) == 15
    assert agent.stem.fc.in_features == 32 * 11 * 11


@pytest.mark.parametrize("core", core_names())
def test_acting_and_learning_give_the_same_logits(core: str, seed: int) -> None:
    """With equal weights V-trace's ratios are 1: T acts equal one unroll, resets and state included."""
    # rounding turns the last digit of a score into a whole number's difference now and then
    agent = small_agent(core, **({"first": "softmax"} if core == "deltaformer" else {}))
    T, B = 9, 3
    observation, reward, done = torch.randn(T, B, 7), torch.randn(T, B) * 3, torch.rand(T, B) < 0.3
    # what is left of attention's weights, `[B, L, H, N]`, is from 0 to 1
    parts = [
        (part, torch.rand_like if part.dim() == 4 else torch.randn_like) for part in agent.initial_state(B)
    ]
    state = initial = tuple(draw(part) for part, draw in parts)
    with torch.no_grad():
        unrolled, last, _ = agent.unroll(observation, reward, done, initial)
        for t in range(T):
            output, state = agent.act(observation[t], reward[t], done[t], state)
            torch.testing.assert_close(output.policy_logits, unrolled.policy_logits[t], rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(output.baseline, unrolled.baseline[t], rtol=1e-4, atol=1e-5)
    for stepped, whole in zip(state, last, strict=True):
        torch.testing.assert_close(stepped, whole, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("stem", ["residual", "nature", "shallow"])
def test_the_stems_read_uint8_frames(stem: str, seed: int) -> None:
    """Frames are divided by 255 and the features do not depend on the batch around them."""
    agent = Agent(AgentSpec((4, 36, 36) if stem == "residual" else ATARI, 6, core="feedforward", stem=stem))
    observation = torch.randint(0, 256, (5, *agent.spec.observation_shape), dtype=torch.uint8)
    with torch.no_grad():
        features = agent.stem(observation)
        scaled = torch.relu(
            agent.stem.norm(agent.stem.fc(agent.stem.trunk(observation.float() / 255).flatten(1)))
        )
        torch.testing.assert_close(features, scaled, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(agent.stem(observation[2:3])[0], features[2], rtol=1e-4, atol=1e-5)
    assert features.shape == (5, 256) and (features.std(0) > 0).any()


def test_the_small_stem_embeds_each_value_of_each_channel(seed: int) -> None:
    agent = Agent(AgentSpec((3, 2, 5), 6, core="feedforward", stem="small"))
    observation = torch.randint(0, 256, (4, 3, 2, 5), dtype=torch.uint8)
    table = agent.stem.embedding.weight.view(3, 256, 16)
    with torch.no_grad():
        pixels = torch.zeros(4, 16, 2, 5)
        for n, channel, y, x in itertools.product(range(4), range(3), range(2), range(5)):
            pixels[n, :, y, x] += table[channel, observation[n, channel, y, x].long()]
        features = torch.relu(agent.stem.fc(torch.relu(agent.stem.conv(pixels)).flatten(1)))
        torch.testing.assert_close(agent.stem(observation), features, rtol=1e-4, atol=1e-5)
    assert features.shape == (4, 256)


def test_the_size_of_an_image_chooses_its_stem() -> None:
    sizes = {(7, 7): "small", (31, 31): "small", (32, 20): "residual", (84, 84): "residual"}
    assert {size: default_stem((4, *size)) for size in sizes} == sizes
    for size in ((1, 1), (7, 7), (36, 36)):  # runs of old may have the residual stem on images of any size
        for stem in ("small", "residual"):
            Agent(AgentSpec((3, *size), 6, core="feedforward", stem=stem))


def test_the_last_reward_is_an_input_and_is_clipped(seed: int) -> None:
    agent = Agent(replace(small_agent("feedforward").spec, reward_clip=1.0))
    observation, done = torch.randn(1, 7), torch.zeros(1, dtype=torch.bool)

    def value(reward: float) -> float:
        output, _ = agent.act(observation, torch.tensor([reward]), done, ())
        return float(output.baseline.detach())

    assert value(1.0) == value(50.0) != value(0.0) != value(-1.0) == value(-7.0)


@pytest.mark.parametrize("steps", [1, 100, 101, 250])
def test_what_the_core_reads_in_many_steps_is_what_it_reads_in_each(steps: int, seed: int) -> None:
    agent = Agent(AgentSpec((3,), 4, "lstm", "mlp", {"hidden_size": 4}))
    observation, reward = torch.randn(steps, 3), torch.randn(steps)
    with torch.no_grad():
        got = agent.core_inputs(observation, reward)
        assert len(got) == steps
        for t in {0, 99, 100, steps - 1} & {*range(steps)}:
            x = agent.core_input(agent.trunk_features(observation[t : t + 1]), reward[t : t + 1])
            torch.testing.assert_close(got[t], x[0])


def test_actions_are_drawn_from_the_policy_and_greedy_takes_the_best(seed: int) -> None:
    agent = small_agent("feedforward")
    observation = torch.randn(1, 7).expand(40_000, 7)
    reward, done = torch.zeros(40_000), torch.zeros(40_000, dtype=torch.bool)
    with torch.no_grad():
        agent.policy.weight.mul_(10)
        output, _ = agent.act(observation, reward, done, ())
        policy = output.policy_logits[0].softmax(-1)
        share = torch.bincount(output.action, minlength=5) / 40_000
        torch.testing.assert_close(share, policy, atol=0.015, rtol=0.0)
        greedy, _ = agent.act(observation[:1], reward[:1], done[:1], (), greedy=True)
    assert greedy.action.item() == policy.argmax()


def test_sampling_follows_its_generator(seed: int) -> None:
    agent = small_agent("feedforward")
    inputs = torch.randn(64, 7), torch.zeros(64), torch.zeros(64, dtype=torch.bool), ()

    def actions(seed: int) -> list[int]:
        output, _ = agent.act(*inputs, generator=torch.Generator().manual_seed(seed))
        return output.action.tolist()

    assert actions(seed) == actions(seed) != actions(seed + 1)


def test_per_step_cuts_the_memorys_gradient_and_full_does_not(seed: int) -> None:
    agent = small_agent("delta_net", hidden_size=16, num_heads=2)
    T, B = 4, 2
    done = torch.zeros(T, B, dtype=torch.bool)
    for bptt, flows in (("full", True), ("per_step", False)):
        observation = torch.randn(T, B, 7, requires_grad=True)
        output, *_ = agent.unroll(observation, torch.zeros(T, B), done, agent.initial_state(B), bptt=bptt)
        (gradient,) = torch.autograd.grad(output.baseline[-1].sum(), observation)
        assert bool((gradient[0] != 0).any()) == flows
        assert (gradient[-1] != 0).any()


def test_bfloat16_is_the_stems_alone(seed: int) -> None:
    agent = Agent(AgentSpec(ATARI, 6, core="rdn", stem="nature"))
    observation = torch.randint(0, 256, (3, *ATARI), dtype=torch.uint8)
    rest = torch.zeros(3), torch.ones(3, dtype=torch.bool), agent.initial_state(3)
    with torch.no_grad():
        full, _ = agent.act(observation, *rest, greedy=True)
        agent.autocast_dtype = torch.bfloat16
        half, state = agent.act(observation, *rest, greedy=True)
    assert half.policy_logits.dtype == torch.float32 and {part.dtype for part in state} == {torch.float32}
    assert not torch.equal(full.policy_logits, half.policy_logits)
    torch.testing.assert_close(full.policy_logits, half.policy_logits, atol=0.02, rtol=0.05)


def test_a_stem_that_does_not_fit_is_refused_in_one_line() -> None:
    assert default_stem(ATARI) == "residual" and default_stem((3,)) == "mlp"
    for shape, stem, remedy in (
        (ATARI, "mlp", "take residual or nature or shallow or small"),
        ((3,), "nature", "take mlp"),
        ((3,), "small", "take mlp"),
        (ATARI, "resnet", "take residual or nature or shallow or small"),
        ((4, 20, 20), "nature", "too small for stem 'nature'; take 'small', or 'auto'"),
    ):
        with pytest.raises(ValueError, match=remedy) as error:
            Agent(AgentSpec(shape, 6, core="lstm", stem=stem))
        assert "\n" not in str(error.value)
