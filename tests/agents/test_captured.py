"""On a GPU: inference in one CUDA graph acts as inference without."""

from __future__ import annotations

import pytest
import torch

from deltabeast.agents import Agent, AgentSpec
from deltabeast.agents.captured import CapturedAct

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("core", ["feedforward", "lstm", "delta_net", "delta_rnn", "rdn"])
@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
def test_a_captured_step_is_a_step(core: str, autocast: torch.dtype | None, seed: int) -> None:
    """With resets, with weights that change in between, and results that the next call leaves alone."""
    device, B = torch.device("cuda"), 5
    agent = Agent(AgentSpec((4, 84, 84), 6, core, "nature")).to(device)
    agent.autocast_dtype = autocast
    generators = [torch.Generator(device).manual_seed(seed) for _ in range(2)]
    state = expected_state = agent.initial_state(B)
    captured, kept = None, []
    for _ in range(8):
        frame = torch.randint(256, (B, 4, 84, 84), dtype=torch.uint8, device=device)
        reward, done = torch.randn(B, device=device), torch.rand(B, device=device) < 0.3
        if captured is None:
            captured = CapturedAct(agent, frame, reward, done, state, generators[0])
            generators[1].set_state(generators[0].get_state())
        output, state = captured(frame, reward, done, state)
        with torch.no_grad():
            expected, expected_state = agent.act(frame, reward, done, expected_state, generator=generators[1])
            for parameter in agent.parameters():
                parameter.mul_(1.01)
        torch.testing.assert_close(output.policy_logits, expected.policy_logits, rtol=1e-2, atol=1e-2)
        torch.testing.assert_close(output.baseline, expected.baseline, rtol=1e-2, atol=1e-2)
        for part, other in zip(state, expected_state, strict=True):
            torch.testing.assert_close(part, other, rtol=1e-2, atol=1e-2)
        kept.append((output.policy_logits, output.policy_logits.clone(), output.action, expected.action))
    assert all(torch.equal(now, then) for now, then, *_ in kept)
    agreed = torch.stack([a == b for *_, a, b in kept]).float().mean()
    assert agreed > 0.9, "the same random numbers choose the same actions, but for rounding"
