"""V-trace against its definition: the explicit sum of products, in float64, and a case by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from deltabeast.agents import vtrace_from_logits
from deltabeast.agents.vtrace import action_log_probs, vtrace_from_log_rhos


def definition(log_rhos, discounts, rewards, values, bootstrap, rho_bar, pg_rho_bar, lambda_=1.0):
    """v_s = V_s + sum_t (prod of discounts and c) rho_t delta_t, as the paper's equation 1 writes it."""
    T, B = values.shape
    rhos = np.exp(log_rhos)
    next_values = np.concatenate([values[1:], bootstrap[None]])
    vs = np.array(values)
    for b in range(B):
        for s in range(T):
            for t in range(s, T):
                delta = min(rho_bar, rhos[t, b]) * (
                    rewards[t, b] + discounts[t, b] * next_values[t, b] - values[t, b]
                )
                weight = np.prod([discounts[i, b] * lambda_ * min(1.0, rhos[i, b]) for i in range(s, t)])
                vs[s, b] += weight * delta
    next_vs = np.concatenate([vs[1:], bootstrap[None]])
    next_vs = lambda_ * next_vs + (1 - lambda_) * next_values
    advantages = np.minimum(pg_rho_bar, rhos) * (rewards + discounts * next_vs - values)
    return vs, advantages


@pytest.mark.parametrize("T", [1, 2, 17])
@pytest.mark.parametrize("thresholds_and_lambda", [(1.0, 1.0, 1.0), (2.5, 0.7, 0.6)])
def test_equals_the_definition(T: int, thresholds_and_lambda: tuple[float, ...], seed: int) -> None:
    rng = np.random.default_rng(seed)
    B, A = 3, 5
    behavior, target = rng.normal(size=(2, T, B, A)) * 2
    actions = rng.integers(A, size=(T, B))
    discounts = 0.9 * (rng.random((T, B)) > 0.2)
    rewards, values = rng.normal(size=(2, T, B))
    bootstrap = rng.normal(size=B)

    def log_probs(logits):
        logits = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        return np.take_along_axis(logits, actions[..., None], -1)[..., 0]

    log_rhos = log_probs(target) - log_probs(behavior)
    expected = definition(log_rhos, discounts, rewards, values, bootstrap, *thresholds_and_lambda)
    got = vtrace_from_logits(
        *(torch.from_numpy(x) for x in (behavior, target, actions, discounts, rewards, values, bootstrap)),
        *thresholds_and_lambda,
    )
    np.testing.assert_allclose(got.log_rhos, log_rhos, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(got.vs, expected[0], rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(got.pg_advantages, expected[1], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("lambda_", [0.0, 0.7, 1.0])
def test_lambda_is_the_definitions(lambda_: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    log_rhos, rewards, values = rng.normal(size=(3, 9, 4))
    discounts, bootstrap = 0.9 * (rng.random((9, 4)) > 0.2), rng.normal(size=4)
    inputs = log_rhos, discounts, rewards, values, bootstrap
    vs, advantages = definition(*inputs, 1.0, 1.0, lambda_)
    got = vtrace_from_log_rhos(*map(torch.from_numpy, inputs), lambda_=lambda_)
    np.testing.assert_allclose(got.vs, vs, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(got.pg_advantages, advantages, rtol=1e-10, atol=1e-12)


def test_on_policy_lambda_gives_generalised_advantages(seed: int) -> None:
    """A_t = sum_l (gamma lambda)^l delta_{t+l} (Schulman et al. 2016, equation 16) until an episode ends."""
    rng = np.random.default_rng(seed)
    rewards, values = rng.normal(size=(2, 12, 3))
    discounts, bootstrap = 0.97 * (rng.random((12, 3)) > 0.15), rng.normal(size=3)
    next_values = np.concatenate([values[1:], bootstrap[None]])
    advantage, expected = np.zeros(3), np.empty((12, 3))
    for t in reversed(range(12)):
        delta = rewards[t] + discounts[t] * next_values[t] - values[t]
        advantage = expected[t] = delta + discounts[t] * 0.95 * advantage
    inputs = np.zeros((12, 3)), discounts, rewards, values, bootstrap
    got = vtrace_from_log_rhos(*map(torch.from_numpy, inputs), lambda_=0.95)
    np.testing.assert_allclose(got.advantages, expected, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(got.vs, expected + values, rtol=1e-10, atol=1e-12)


def test_two_steps_by_hand() -> None:
    """rho = (2 clipped to 1, 1/2), gamma = 1/2, r = (1, 2), V = (3, 4), bootstrap 6.

    delta_1 = 1/2 (2 + 3 - 4) = 1/2, v_1 = 4.5; delta_0 = 1 + 2 - 3 = 0, v_0 = 3 + 0 + 1/2 (1/2) = 3.25;
    advantages: 1 (1 + 4.5/2 - 3) = 0.25 and 1/2 (2 + 3 - 4) = 0.5.
    """
    column = lambda *x: torch.tensor(x).unsqueeze(1)  # noqa: E731
    got = vtrace_from_log_rhos(
        column(2.0, 0.5).log(), column(0.5, 0.5), column(1.0, 2.0), column(3.0, 4.0), torch.tensor([6.0])
    )
    torch.testing.assert_close(got.vs, column(3.25, 4.5))
    torch.testing.assert_close(got.pg_advantages, column(0.25, 0.5))


def test_on_policy_targets_are_n_step_returns(seed: int) -> None:
    rewards, values = torch.randn(2, 6, 2)
    bootstrap = torch.randn(2)
    zeros = torch.zeros(6, 2)
    got = vtrace_from_log_rhos(zeros, torch.full((6, 2), 0.9), rewards, values, bootstrap)
    expected = bootstrap
    for t in reversed(range(6)):
        expected = rewards[t] + 0.9 * expected
        torch.testing.assert_close(got.vs[t], expected)


def test_an_ended_episode_shuts_the_future_out(seed: int) -> None:
    log_rhos, rewards, values = torch.randn(3, 8, 2)
    discounts = torch.full((8, 2), 0.99)
    discounts[3] = 0.0
    first = vtrace_from_log_rhos(log_rhos, discounts, rewards, values, torch.randn(2))
    rewards[4:] += 100.0
    second = vtrace_from_log_rhos(log_rhos, discounts, rewards, values, torch.randn(2))
    torch.testing.assert_close(first.vs[:4], second.vs[:4])
    assert (first.vs[4:] != second.vs[4:]).any()


def test_extreme_ratios_stay_finite() -> None:
    log_rhos = torch.tensor([[200.0], [-200.0]])
    got = vtrace_from_log_rhos(log_rhos, torch.ones(2, 1), torch.ones(2, 1), torch.ones(2, 1), torch.ones(1))
    assert all(torch.isfinite(x).all() for x in (got.vs, got.pg_advantages))


def test_wrong_shapes_are_named() -> None:
    x = torch.zeros(4, 2)
    with pytest.raises(ValueError, match="same shape"):
        vtrace_from_log_rhos(x, x[:3], x, x, torch.zeros(2))
    with pytest.raises(ValueError, match="bootstrap_value"):
        vtrace_from_log_rhos(x, x, x, x, torch.zeros(3))


def test_action_log_probs_by_hand() -> None:
    logits = torch.tensor([[1.0, 1.0, 1.0, 1.0], [0.0, 100.0, 0.0, 0.0]])
    got = action_log_probs(logits, torch.tensor([2, 1]))
    torch.testing.assert_close(got, torch.tensor([0.25, 1.0]).log())
