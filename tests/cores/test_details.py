"""Sizes, options, the registry, and each architecture against its published description."""

from __future__ import annotations

import sys
import types

import pytest
import torch
import torch.nn.functional as F
from fastweight_helpers import assert_near, make_reset
from torch import Tensor, nn

from deltabeast.cores import Core, core_feature_size, core_names, make_core, register

CORE_PARAMETERS = {
    "feedforward": 0,
    "lstm": 527_360,
    "linear_transformer": 428_544,
    "delta_net": 429_568,
    "rdn": 454_400,
    "delta_rnn": 496_128,
    "rdn_large": 2_277_888,
}
# Agents with the residual stem and 18 actions.
AGENT_PARAMETERS = {
    "feedforward": 1_094_134,
    "gated_feedforward": 1_589_283,
    "lstm": 1_621_475,
    "linear_transformer": 1_520_227,
    "delta_net": 1_521_251,
    "rdn": 1_546_083,
    "delta_rnn": 1_587_811,
    "rdn_large": 3_372_003,
}


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def agent_size(name: str, actions: int, **options: object) -> int:
    features = core_feature_size(name)
    core = make_core(name, features + 1, **options)
    stem = 97_744 + (32 * 11 * 11 + 1) * features
    return stem + count(core) + (core.output_size + 1) * (actions + 1)


def test_names() -> None:
    assert set(core_names()) >= set(AGENT_PARAMETERS)


@pytest.mark.parametrize("name", CORE_PARAMETERS)
def test_core_parameters(name: str) -> None:
    assert count(make_core(name, 257)) == CORE_PARAMETERS[name]


@pytest.mark.parametrize("name", AGENT_PARAMETERS)
def test_agent_parameters(name: str) -> None:
    assert agent_size(name, 18) == AGENT_PARAMETERS[name]


def test_gated_feedforward_sizes() -> None:
    assert core_feature_size("gated_feedforward") == 320
    assert agent_size("gated_feedforward", 18, output_gate=True) == 1_671_715
    assert agent_size("gated_feedforward", 6, output_gate=True) == 1_668_631
    core = make_core("gated_feedforward", 5, output_gate=True)
    assert core.unroll(torch.zeros(2, 3, 5), (), make_reset("none", 2, 3))[0].shape == (2, 3, 256)


@pytest.mark.parametrize(
    ("name", "floats"),
    [
        ("feedforward", 0),
        ("lstm", 512),
        ("linear_transformer", 8_192),
        ("delta_net", 8_192),
        ("rdn", 8_448),
        ("delta_rnn", 16_640),
        ("rdn_large", 33_792),
    ],
)
def test_state_sizes(name: str, floats: int) -> None:
    state = make_core(name, 257).initial_state(3)
    assert sum(part.numel() for part in state) == 3 * floats
    assert all(part.shape[0] == 3 and not part.any() and part.dtype == torch.float32 for part in state)


def test_state_layout() -> None:
    def shapes(name: str) -> list[list[int]]:
        core = make_core(name, 9, **({} if name == "lstm" else {"num_layers": 3}))
        return [list(part.shape) for part in core.initial_state(5)]

    W, y = [5, 3, 4, 32, 32], [5, 3, 4, 32]
    assert shapes("linear_transformer") == shapes("delta_net") == [W]
    assert shapes("delta_rnn") == [W, W, y]
    assert shapes("rdn") == [W, y]
    assert shapes("lstm") == [[5, 1, 256], [5, 1, 256]]


def test_lstm_is_torch_lstm(seed: int) -> None:
    core, torch_lstm = make_core("lstm", 7, hidden_size=12), nn.LSTM(7, 12)
    assert [n for n, _ in core.named_parameters()] == [n for n, _ in torch_lstm.named_parameters()]
    core.load_state_dict(torch_lstm.state_dict())
    x, h, c = torch.randn(9, 4, 7), torch.randn(4, 1, 12), torch.randn(4, 1, 12)
    y, (h_T, c_T) = core.unroll(x, (h, c), make_reset("none", 9, 4))
    want, (h_want, c_want) = torch_lstm(x, (h.transpose(0, 1).contiguous(), c.transpose(0, 1).contiguous()))
    assert_near("y", y, want, 1e-5)
    assert_near("h", h_T.transpose(0, 1), h_want, 1e-5)
    assert_near("c", c_T.transpose(0, 1), c_want, 1e-5)


def naive_layer(name: str, memory: nn.Module, x: Tensor) -> Tensor:
    """The fast-weight part of a layer from zero state: per row and head, plain vectors."""
    T, B, d = x.shape
    H, h = memory.num_heads, memory.head_size
    packed = (x @ memory.slow_net.weight.T).view(T, B, H, -1)
    out = torch.zeros(T, B, H, h, dtype=x.dtype)

    def phi(z: Tensor) -> Tensor:
        positive = torch.where(z > 0, z + 1, z.exp())
        return positive / (positive.sum() + 1e-5)

    for b in range(B):
        for n in range(H):
            W, R = torch.zeros(2, h, h, dtype=x.dtype)
            y = torch.zeros(h, dtype=x.dtype)
            for t in range(T):
                p = packed[t, b, n]
                q, k, v, rest = p[:h], p[h : 2 * h], p[2 * h : 3 * h], p[3 * h :]
                if name == "linear_transformer":
                    W = W + torch.outer(v, phi(k))
                    y = W @ phi(q)
                elif name == "delta_net":
                    W = W + rest[0].sigmoid() * torch.outer(v - W @ phi(k), phi(k))
                    y = W @ phi(q)
                elif name == "delta_rnn":
                    kr, vr, (beta, beta_r) = rest[:h].softmax(0), rest[h : 2 * h], rest[2 * h :].sigmoid()
                    k = k.softmax(0)
                    W = W + beta * torch.outer(v - W @ k, k)
                    R = R + beta_r * torch.outer(vr - R @ kr, kr)
                    y = W @ q.softmax(0) + R @ y.softmax(0)
                else:
                    g = y.tanh()
                    k = (k + g @ memory.Rk[n]).softmax(0)
                    beta = (rest[0] + g @ memory.rb[n]).sigmoid()
                    W = W + beta * torch.outer(v + g @ memory.Rv[n] - W @ k, k)
                    y = W @ (q + g @ memory.Rq[n]).softmax(0)
                out[t, b, n] = y
    return out.view(T, B, d)


@pytest.mark.parametrize("name", ["linear_transformer", "delta_net", "delta_rnn", "rdn"])
def test_shell_against_a_naive_one(name: str, seed: int) -> None:
    """The whole core again, from its parameters, with loops over rows and heads: packing order included."""
    core = make_core(name, 7, hidden_size=12, num_heads=3, ff_size=10).double()
    inputs = torch.randn(5, 2, 7, dtype=torch.float64)
    x = core.input_proj(inputs)
    for layer in core.layers:
        x = x + naive_layer(name, layer.memory, F.layer_norm(x, (12,))) @ layer.out.weight.T
        x = x + layer.ff[2](layer.ff[0](F.layer_norm(x, (12,))).relu())
    y, _ = core.unroll(inputs, core.initial_state(2), make_reset("none", 5, 2))
    assert_near("y", y, x, 1e-12)


def test_rdn_recurrent_weights_are_normal() -> None:
    memory = make_core("rdn", 257).layers[0].memory
    for R in (memory.Rq, memory.Rk, memory.Rv, memory.rb):
        assert abs(R.std().item() * 32**0.5 - 1) < 0.25


def test_registry_speaks_clearly() -> None:
    with pytest.raises(ValueError, match=r"^unknown core 'delta_ned'; did you mean delta_net"):
        make_core("delta_ned", 7)
    with pytest.raises(
        ValueError, match=r"^hidden_size 128 is not divisible by num_heads 3; try hidden_size 126$"
    ):
        make_core("rdn", 7, num_heads=3)
    for name, option in (("rdn", "num_layers"), ("delta_net", "ff_size"), ("lstm", "hidden_size")):
        with pytest.raises(ValueError, match=rf"^{option} is 0; it must be at least 1$"):
            make_core(name, 7, **{option: 0})
    with pytest.raises(ValueError, match=r"^core 'rdn' is registered already"):
        register("rdn")(lambda input_size: make_core("lstm", input_size))


def test_core_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("somebody_elses_cores")

    class Mine(type(make_core("feedforward", 3))):  # type: ignore[misc]
        feature_size = 64

    module.Mine = Mine  # type: ignore[attr-defined]
    module.number = 3  # type: ignore[attr-defined]
    module.Linear = nn.Linear  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "somebody_elses_cores", module)
    assert isinstance(make_core("somebody_elses_cores:Mine", 9), Core)
    assert core_feature_size("somebody_elses_cores:Mine") == 64
    for path in (
        "somebody_elses_cores:Nobody",
        "no_such_module:Mine",
        "somebody_elses_cores:number",
        "somebody_elses_cores:Linear",
        "os:remove",
        ":Mine",
    ):
        with pytest.raises(ValueError, match=r"give package.module:Class$"):
            make_core(path, 9)


def test_rdn_write_strength_is_the_one_used(seed: int) -> None:
    core = make_core("rdn", 7, hidden_size=8, num_layers=1, num_heads=2)
    x, y0 = torch.randn(1, 3, 7), torch.randn(3, 1, 2, 4)
    *_, stats = core.measured_unroll(x, (torch.randn(3, 1, 2, 4, 4), y0), make_reset("none", 1, 3))
    layer = core.layers[0]
    raw = layer.memory.slow_net(layer.norm(core.input_proj(x))).view(3, 2, 13)[..., -1]
    want = (raw + (y0[:, 0].tanh() * layer.memory.rb).sum(-1)).sigmoid().mean()
    torch.testing.assert_close(stats["write_strength"], want.detach())
