"""Imported agents compute what the released networks compute, and nothing else is imported."""

from __future__ import annotations

import random

import pytest
import reference_torchbeast as reference
import torch
from torch import Tensor

from deltabeast.agents import Agent
from deltabeast.launch.training.torchbeast import agent_spec, convert, mean_squares, our_name

CORES = ("feedforward", "lstm", "linear_transformer", "delta_net", "delta_rnn", "rdn")
FAST = CORES[2:]


def imported(weights: dict[str, Tensor], num_heads: int | None = None) -> Agent:
    agent = Agent(agent_spec(weights, num_heads))
    agent.load_state_dict(convert(weights))
    return agent


def random_state(agent: Agent, core: str, rows: int) -> tuple[tuple[Tensor, ...], reference.State]:
    """A state in our layout and in theirs."""
    ours = tuple(torch.randn_like(part) for part in agent.initial_state(rows))
    if core == "lstm":
        return ours, {"h": ours[0][:, 0].double(), "c": ours[1][:, 0].double()}
    names = {"delta_rnn": ("fast", "recurrent", "last"), "rdn": ("fast", "last")}.get(core, ("fast",))
    theirs = {}
    for name, part in zip(names, ours, strict=False):
        for layer in range(part.shape[1]):
            for head in range(part.shape[2]):
                key = f"core.fwm_layers.{layer}.{head}.{name}"
                theirs[key] = (part[:, layer, head] if name == "last" else part[:, layer, head].mT).double()
    return ours, theirs


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("more", range(2))
def test_logits_over_an_unroll_with_resets(core: str, more: int, seed: int) -> None:
    random.seed(seed + more)
    torch.manual_seed(seed + more)
    # At least 8 units: where the two of a layer norm are nearly equal, it makes anything of their rounding.
    heads, size = random.choice(((1, 8), (1, 11), (2, 4), (2, 8), (4, 2), (4, 3), (4, 8)))
    actions, layers, ff = random.randint(3, 18), random.randint(1, 3), random.randint(1, 20)
    weights = reference.random_weights(core, actions, heads * size, layers, heads, ff)
    agent = imported(weights, heads)
    T, B = 5, 2
    frame = (torch.rand(T, B, 1, 1, 1) * torch.randint(0, 256, (T, B, 4, 84, 84))).byte()
    reward, done = 3 * torch.randn(T, B), torch.rand(T, B) < 0.3
    state, their_state = random_state(agent, core, B)
    expected, baselines, last = reference.unroll(weights, heads, frame, reward, done, their_state)
    with torch.no_grad():
        output, our_last, _ = agent.unroll(frame, reward, done, state)
    scale = max(1.0, float(expected.abs().max()))
    assert (output.policy_logits - expected).abs().max() < 1e-4 * scale
    assert (output.baseline - baselines).abs().max() < 1e-4 * max(1.0, float(baselines.abs().max()))
    assert expected.std(0).mean() > 1e-3, "the logits must depend on what is seen"
    if core in FAST:
        ours = our_last[0][:, -1, -1].mT
        assert torch.allclose(
            ours.double(), last[f"core.fwm_layers.{layers - 1}.{heads - 1}.fast"], atol=1e-3
        )


@pytest.mark.parametrize(
    ("core", "name", "sizes", "options"),
    [
        ("rdn", "rdn", {"d": 128, "heads": 4, "ff": 512}, {}),
        ("rdn", "rdn_large", {"d": 256, "heads": 8, "ff": 512, "layers": 4}, {}),
        ("rdn", "rdn", {"d": 64, "heads": 8, "ff": 512, "layers": 1},
         {"hidden_size": 64, "num_layers": 1, "num_heads": 8}),
        ("delta_net", "delta_net", {"d": 64, "heads": 16, "ff": 512},
         {"hidden_size": 64, "num_heads": 16}),
        ("delta_rnn", "delta_rnn", {"d": 128, "heads": 2, "ff": 512}, {"num_heads": 2}),
        ("linear_transformer", "linear_transformer", {"d": 64, "heads": 2, "ff": 7},
         {"hidden_size": 64, "num_heads": 2, "ff_size": 7}),
        ("lstm", "lstm", {"d": 256}, {}),
        ("lstm", "lstm", {"d": 20}, {"hidden_size": 20}),
        ("feedforward", "feedforward", {}, {}),
    ],
)  # fmt: skip
def test_core_and_sizes_are_read_from_the_tensors(
    core: str, name: str, sizes: dict[str, int], options: dict[str, int]
) -> None:
    spec = agent_spec(reference.random_weights(core, 9, **sizes))
    assert (spec.core, spec.core_options, spec.num_actions, spec.stem) == (name, options, 9, "residual")


def test_heads_of_a_linear_transformer_are_taken_as_told() -> None:
    weights = reference.random_weights("linear_transformer", 6, d=64, heads=8)
    assert agent_spec(weights, 8).core_options["num_heads"] == 8
    with pytest.raises(ValueError, match="7 heads"):
        agent_spec(weights, 7)


@pytest.mark.parametrize("core", CORES)
def test_the_optimizer_keeps_a_parameters_mean_square_with_it(core: str) -> None:
    """Every entry is marked by where it stands in theirs; dummy axes aside, order within is kept."""
    weights = reference.random_weights(core, 4)
    parameters = [torch.nn.Parameter(tensor) for tensor in weights.values()]
    theirs = torch.optim.RMSprop(parameters, lr=1e-3)
    for parameter in parameters:
        parameter.grad = torch.rand_like(parameter)
    theirs.step()
    squares = mean_squares(theirs.state_dict(), weights)
    for name, parameter in zip(weights, parameters, strict=True):
        assert torch.equal(squares[our_name(name)].flatten(), theirs.state[parameter]["square_avg"].flatten())
    shapes = {name: tensor.shape for name, tensor in imported(weights, 2).named_parameters()}
    assert {name: tensor.shape for name, tensor in squares.items()} == shapes


def broken(core: str = "rdn", **changes: object) -> dict[str, Tensor]:
    weights = reference.random_weights(core, 6)
    for name, value in changes.items():
        name = name.replace("__", ".")
        if value is None:
            del weights[name]
        else:
            weights[name] = value  # type: ignore[assignment]
    return weights


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (broken(**{"conv1__weight": torch.zeros(3)}), "MonoBeast's AtariNet, whose core also reads the last"),
        (broken("lstm", **{"core__weight_ih_l1": torch.zeros(3)}), "'core.weight_ih_l1' is in none of"),
        (broken(**{"core__fwm_layers__0__W_y": torch.zeros(3)}), "W_y' is in none of"),
        (broken(**{"fc__bias": None}), "lacks what is stem.fc.bias"),
        (broken(**{"fc__weight": torch.zeros(256, 100)}), r"stem.fc.weight has the shape \[256, 100\]"),
        (broken(**{"core__fwm_layers__1__R_v": None}), "lacks what is core.layers.1.memory.Rv"),
        (
            broken("delta_net", **{"core__fwm_layers__1__r_b": torch.zeros(1, 2, 1, 4)}),
            "does not go with a delta",
        ),
        (broken("feedforward", **{"policy__bias": None}), "no policy head"),
        (broken(**{"fc__bias": torch.full((256,), float("nan"))}), "stem.fc.bias is not finite"),
        (broken(**{"core__fwm_layers__0__slow_net__weight": torch.zeros(27, 8)}), "slow net of 27 outputs"),
        (broken(**{"core__input_proj__bias": None}), "lacks core.input_proj.bias"),
        ({}, "no policy head"),
    ],
)
def test_what_no_released_agent_has_is_refused(weights: dict[str, Tensor], message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        agent_spec(weights)
    assert "\n" not in str(error.value)
