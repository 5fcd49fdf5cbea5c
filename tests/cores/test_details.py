"""Sizes, options, the registry, and each architecture against its published description."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from fastweight_helpers import assert_near, make_reset
from torch import Tensor, nn

from deltabeast.cores import Core, core_feature_size, core_names, make_core, register
from deltabeast.cores.hybrid import memories_by_core

CORE_PARAMETERS = {
    "feedforward": 0,
    "lstm": 527_360,
    "gru": 395_520,
    "linear_transformer": 428_544,
    "delta_net": 429_568,
    "rdn": 454_400,
    "delta_rnn": 496_128,
    "rdn_large": 2_277_888,
    "gated_linear_attention": 429_568,
    "gated_rule": 429_568,
    "gated_delta_net": 430_592,
    "momentum_delta_net": 430_592,
    "delta_delta_net": 496_128,
    "delta_mlp": 692_864,
    "delta_lstm": 827_904,
    "kda": 446_216,
    "gated_delta_net_2": 510_728,
    "delta_product": 496_128,
    "rwkv7": 462_592,
    "transformer": 431_104,
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


@pytest.mark.parametrize(
    ("name", "options", "parameters"),
    [
        ("gated_linear_attention", {"gate": "value"}, 461_312),
        ("delta_net", {"feature_map": "dpfp", "normalise": "attention"}, 429_568),
        ("delta_rnn", {"variant": "A"}, 496_128),
        ("delta_mlp", {"blocks": 2}, 1_022_720),
        ("delta_mlp", {"published": True}, 1_020_544),
        ("delta_mlp", {"blocks": 2, "published": True}, 1_678_080),
    ],
)
def test_core_parameters_with_options(name: str, options: dict[str, object], parameters: int) -> None:
    assert count(make_core(name, 257, **options)) == parameters


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
        ("gru", 256),
        ("linear_transformer", 8_192),
        ("delta_net", 8_192),
        ("rdn", 8_448),
        ("delta_rnn", 16_640),
        ("rdn_large", 33_792),
        ("gated_linear_attention", 8_192),
        ("gated_rule", 8_192),
        ("gated_delta_net", 8_192),
        ("momentum_delta_net", 16_384),
        ("delta_delta_net", 33_024),
        ("delta_mlp", 65_536),
        ("delta_lstm", 49_664),
        ("transformer", 133_121),
        *((name, 8_192) for name in ("kda", "gated_delta_net_2", "delta_product", "rwkv7")),
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


def test_gru_is_torch_gru(seed: int) -> None:
    core, torch_gru = make_core("gru", 7, hidden_size=12), nn.GRU(7, 12)
    assert [n for n, _ in core.named_parameters()] == [n for n, _ in torch_gru.named_parameters()]
    core.load_state_dict(torch_gru.state_dict())
    x, h = torch.randn(9, 4, 7), torch.randn(4, 1, 12)
    y, (h_T,) = core.unroll(x, (h,), make_reset("none", 9, 4))
    want, h_want = torch_gru(x, h.transpose(0, 1).contiguous())
    assert_near("y", y, want, 1e-5)
    assert_near("h", h_T.transpose(0, 1), h_want, 1e-5)


@pytest.mark.parametrize(("name", "stored"), [("lstm", 1), ("gru", 0)])
def test_chrono_units_forget_within_the_steps_that_are_said(name: str, stored: int, seed: int) -> None:
    def lifetimes(**options: int) -> Tensor:
        """Of each unit, by what it keeps of a large value in one step without input or recurrence."""
        core = make_core(name, 7, hidden_size=200, **options)
        with torch.no_grad():
            for weight in (core.weight_ih_l0, core.weight_hh_l0):
                weight.zero_()
        state = [torch.zeros(1, 1, 200) for _ in core.initial_state(1)]
        state[stored] += 1e6
        _, after = core.unroll(torch.zeros(1, 1, 7), tuple(state), torch.zeros(1, 1, dtype=torch.bool))
        return 1 / (1 - after[stored].double() / 1e6)

    found = lifetimes(chrono=40)
    assert 1.99 < found.min() < 5 and 36 < found.max() < 40.01
    assert abs(found.mean() - 21) < 4  # uniform
    assert lifetimes().max() < 3  # what PyTorch begins with
    with pytest.raises(ValueError, match="chrono is 1; it must be at least 2 steps"):
        make_core(name, 7, chrono=1)


def test_chrono_lets_in_as_little_as_it_keeps_much(seed: int) -> None:
    core = make_core("lstm", 7, hidden_size=8, chrono=100)
    bias = (core.bias_ih_l0 + core.bias_hh_l0).view(4, 8)
    assert torch.equal(bias[0], -bias[1]) and (bias[2:].abs() < 1).all()


def naive_delta(W: Tensor, k: Tensor, v: Tensor, beta: Tensor) -> Tensor:
    return W + beta * torch.outer(v - W @ k, k)


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
            M = torch.zeros(3 * h + 1, h, dtype=x.dtype)
            first, second = torch.zeros(2, 4 * h, h, dtype=x.dtype)
            Ws, Rs = ([torch.zeros(h, h, dtype=x.dtype)] * 3 for _ in range(2))
            cell = torch.zeros(h, dtype=x.dtype)
            y = torch.zeros(h, dtype=x.dtype)
            for t in range(T):
                p = packed[t, b, n]
                q, k, v, rest = p[:h], p[h : 2 * h], p[2 * h : 3 * h], p[3 * h :]
                if name == "linear_transformer":
                    W = W + torch.outer(v, phi(k))
                    y = W @ phi(q)
                elif name == "gated_linear_attention":
                    W = rest[0].sigmoid() ** (1 / 16) * W + torch.outer(v, phi(k))
                    y = W @ phi(q)
                elif name == "gated_rule":
                    beta = rest[0].sigmoid()
                    W = (1 - beta) * W + beta * torch.outer(v, phi(k))
                    y = W @ phi(q)
                elif name == "gated_delta_net":
                    beta, decay = rest[0].sigmoid(), rest[1].sigmoid() ** (1 / 16)
                    k = k / k.norm()
                    W = decay * W @ (
                        torch.eye(h, dtype=x.dtype) - beta * torch.outer(k, k)
                    ) + beta * torch.outer(v, k)
                    y = W @ (q / q.norm())
                elif name == "momentum_delta_net":
                    beta, momentum = rest.sigmoid()
                    R = momentum * R + beta * torch.outer(v, phi(k))
                    W = W - beta * torch.outer(W @ phi(k), phi(k)) + R
                    y = W @ phi(q)
                elif name == "delta_net":
                    W = W + rest[0].sigmoid() * torch.outer(v - W @ phi(k), phi(k))
                    y = W @ phi(q)
                elif name == "delta_delta_net":
                    v, beta = p[2 * h : 5 * h + 1], p[-1].sigmoid()
                    M = naive_delta(M, phi(k), v, beta)
                    q, k, v, beta = (M @ phi(q)).split((h, h, h, 1))
                    W = naive_delta(W, phi(k), v, beta.sigmoid())
                    y = W @ phi(q)
                elif name == "delta_mlp":
                    _, k1, v1, k2, v2, beta1, beta2 = p.split((h, h, 4 * h, 4 * h, h, 1, 1))
                    first = naive_delta(first, phi(k1), v1, beta1.sigmoid())
                    second = naive_delta(second.T, phi(k2), v2, beta2.sigmoid()).T
                    norm = memory.norms[0]
                    inner = first @ phi(F.layer_norm(q, (h,), norm.weight, norm.bias))
                    y = q + second.T @ phi(inner)
                elif name.startswith("delta_lstm"):
                    variant, betas = name[-1].upper(), p[15 * h :].sigmoid()
                    z, a = [], []
                    for gate in range(3):
                        q, k, v, kr, vr = p[5 * h * gate : 5 * h * (gate + 1)].split(h)
                        Ws[gate] = naive_delta(Ws[gate], phi(k), v, betas[2 * gate])
                        Rs[gate] = naive_delta(Rs[gate], kr.softmax(0), vr, betas[2 * gate + 1])
                        z.append(Ws[gate] @ phi(q))
                        a.append(z[-1] + Rs[gate] @ (y if variant == "A" else y.softmax(0)))
                    i, u, o = a[0].sigmoid(), a[1] if variant == "D" else a[1].sigmoid(), a[2].sigmoid()
                    cell = i * u + (1 - i) * cell
                    y = {"A": (cell * o).softmax(0), "C": cell * o + z[1]}.get(variant, cell * o)
                elif name == "delta_rnn_a":
                    kr, vr, (beta, beta_r) = rest[:h].softmax(0), rest[h : 2 * h], rest[2 * h :].sigmoid()
                    W, R = naive_delta(W, k.softmax(0), v, beta), naive_delta(R, kr, vr, beta_r)
                    y = (W @ q.softmax(0) + R @ y).softmax(0)
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


SHELLS = ("linear_transformer", "delta_net", "delta_rnn", "rdn")
GATED = ("gated_linear_attention", "gated_rule", "gated_delta_net", "momentum_delta_net")
VARIANTS = {"delta_rnn_a": ("delta_rnn", {"variant": "A"})} | {
    f"delta_lstm_{each.lower()}": ("delta_lstm", {"variant": each}) for each in "ABCD"
}
NESTED = ("delta_delta_net", "delta_mlp", *VARIANTS)


@pytest.mark.parametrize("name", [*SHELLS, *GATED, *NESTED])
def test_shell_against_a_naive_one(name: str, seed: int) -> None:
    """The whole core again, from its parameters, with loops over rows and heads: packing order included."""
    which, (name, options) = name, VARIANTS.get(name, (name, {}))
    core = make_core(name, 7, hidden_size=12, num_heads=3, ff_size=10, **options).double()
    inputs = torch.randn(5, 2, 7, dtype=torch.float64)
    x = core.input_proj(inputs)
    for layer in core.layers:
        x = x + naive_layer(which, layer.memory, F.layer_norm(x, (12,))) @ layer.out.weight.T
        x = x + layer.ff[2](layer.ff[0](F.layer_norm(x, (12,))).relu())
    y, _ = core.unroll(inputs, core.initial_state(2), make_reset("none", 5, 2))
    assert_near("y", y, x, 1e-12)


def test_a_transformer_is_softmax_attention_that_reads_the_time(seed: int) -> None:
    """It reads sines and cosines with ten periods of 4, 8, ... steps, and sees 256 earlier steps."""
    sizes = {"hidden_size": 8, "num_layers": 1, "num_heads": 2, "ff_size": 6}
    core = make_core("transformer", 3, **sizes).double()
    plain = make_core("softmax_attention", 3 + 20, **sizes, window=256).double()
    plain.load_state_dict(core.state_dict())
    x, reset = torch.randn(300, 2, 3, dtype=torch.float64), make_reset("none", 300, 2)
    reset[4, 1] = True
    time = torch.arange(300.0).double().unsqueeze(-1).repeat(1, 2)
    time[4:, 1] -= 4
    phases = [2 * torch.pi * time / 2**n for n in range(2, 12)]
    waves = torch.stack([*map(torch.cos, phases), *map(torch.sin, phases)], -1)
    y, _ = core.unroll(x, core.initial_state(2), reset)
    expected, _ = plain.unroll(torch.cat((x, waves), -1), plain.initial_state(2), reset)
    assert_near("y", y, expected, 1e-11)


@pytest.mark.parametrize(
    ("layers", "said"),
    [
        ("delta_net,transformer", "transformer has the memory of softmax_attention; give softmax_attention"),
        ("rdn-large", "rdn-large has the memory of rdn; give rdn"),
        ("kda,hybrid", "hybrid has no memory of its own in the backbone; choose from .*softmax_attention"),
        ("kda,lstm", "lstm has no memory of its own in the backbone; choose from .*gtrxl"),
        ("kda,gtrlx", r"unknown memory 'gtrlx'; did you mean gtrxl\?"),
        ("transfomer", "unknown memory 'transfomer'; (did you mean|choose from)"),
        ("xyz", "unknown memory 'xyz'; choose from .*gtrxl"),
        ("kda,,gtrxl", "a name is empty; give names with one comma between"),
        ("kda,", "a name is empty; give names with one comma between"),
        ("", "a name is empty; give names with one comma between"),
        ("kda:short_conv", "'kda:short_conv' is not NAME:OPTION=VALUE, such as kda:short_conv=4"),
        ("rdn, kda:=2", "'kda:=2' is not NAME:OPTION=VALUE"),
        ("kda:", "'kda:' is not NAME:OPTION=VALUE"),
        (":window=2", "a name is empty; give names with one comma between"),
        ("kda:short_conv=2:short_conv=3", "short_conv of kda is given twice; give one value for it"),
        ("kda:window=2,gtrxl", "kda has no option 'window'; it has short_conv"),
        ("kda,gtrxl:windw=2", r"gtrxl has no option 'windw'; did you mean window\?"),
        ("kda,gtrxl:window=two", "gtrxl: window is 'two'; it takes a whole number"),
        ("kda:hidden_size=8", "hidden_size is of the whole core; give it beside layers: hidden_size 8"),
        (
            "kda,short_conv=4",
            "short_conv=4 is an option; join it to its layer by a colon, as in kda:short_conv=4",
        ),
        ("KDA,gtrxl", r"unknown memory 'KDA'; did you mean kda\?"),
        ("kda,gtrxl:window=0", "gtrxl: window is 0; it must be at least 1"),
    ],
)
def test_a_hybrid_says_what_is_wrong_with_its_layers(layers: str, said: str) -> None:
    with pytest.raises(ValueError, match=f"^core 'hybrid': layers: {said}"):
        make_core("hybrid", 7, layers=layers)


def test_rdn_recurrent_weights_are_normal() -> None:
    memory = make_core("rdn", 257).layers[0].memory
    for R in (memory.Rq, memory.Rk, memory.Rv, memory.rb):
        assert abs(R.std().item() * 32**0.5 - 1) < 0.25


def test_registry_speaks_clearly() -> None:
    with pytest.raises(ValueError, match=r"^unknown core 'delta_ned'; did you mean delta_net"):
        make_core("delta_ned", 7)
    with pytest.raises(ValueError, match=r"^unknown core 'my_cores.Mine'; did you mean my_cores:Mine\?"):
        make_core("my_cores.Mine", 7)
    indivisible = r"^core 'rdn': hidden_size 128 is not divisible by num_heads 3; try hidden_size 126$"
    with pytest.raises(ValueError, match=indivisible):
        make_core("rdn", 7, num_heads=3)
    for name, option in (("rdn", "num_layers"), ("delta_net", "ff_size"), ("lstm", "hidden_size")):
        with pytest.raises(ValueError, match=rf"^core '{name}': {option} is 0; it must be at least 1$"):
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
    *_, stats = core.unroll_with_stats(x, (torch.randn(3, 1, 2, 4, 4), y0), make_reset("none", 1, 3))
    layer = core.layers[0]
    raw = layer.memory.slow_net(layer.norm(core.input_proj(x))).view(3, 2, 13)[..., -1]
    want = (raw + (y0[:, 0].tanh() * layer.memory.rb).sum(-1)).sigmoid().mean()
    torch.testing.assert_close(stats["write_strength"], want.detach())


def test_a_hybrid_takes_each_memory_once_under_one_name() -> None:
    names = memories_by_core()
    assert {"kda", "gtrxl", "softmax_attention", "rdn"} <= names.keys()
    assert len({*names.values()}) == len(names) and "rdn_large" not in names
    delta, ages = make_core("hybrid", 5, layers="kda, gtrxl", hidden_size=8, ff_size=8).memories()  # type: ignore[attr-defined]
    assert type(delta) is names["kda"] and type(ages) is names["gtrxl"]


def test_each_layer_of_a_hybrid_has_its_own_options() -> None:
    layers = "kda:short_conv=3 : head_norm=true, gtrxl:window=7,kda"
    core = make_core("hybrid", 5, layers=layers, hidden_size=8, ff_size=8)
    first, ages, last = core.memories()  # type: ignore[attr-defined]
    assert len(first.short_conv.weight) == 3 and first.head_norm is not None
    assert ages.window == 7 and ages.short_conv is None
    assert last.short_conv is None and last.head_norm is None


def test_a_hybrid_of_equal_layers_is_that_core(seed: int) -> None:
    """With all that surrounds a memory: options, gates, the time."""
    sizes: dict[str, Any] = {"hidden_size": 8, "num_heads": 2, "ff_size": 8, "residual": "gate", "clock": 3}
    one = make_core("kda", 5, short_conv=2, output_gate="silu", **sizes)
    options = "kda:short_conv=2:output_gate=silu"
    hybrid = make_core("hybrid", 5, layers=f"{options},{options}", **sizes)
    hybrid.load_state_dict(one.state_dict())
    x, reset = torch.randn(6, 3, 5), make_reset("random", 6, 3)
    y, (W, cache, time) = one.unroll(x, one.initial_state(3), reset)
    z, state = hybrid.unroll(x, hybrid.initial_state(3), reset)
    torch.testing.assert_close(z, y, rtol=0, atol=0)
    for part, want in zip(state, (W[:, :1], cache[:, :1], W[:, 1:], cache[:, 1:], time), strict=True):
        torch.testing.assert_close(part, want, rtol=0, atol=0)
