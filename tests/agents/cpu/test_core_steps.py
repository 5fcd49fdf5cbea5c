"""Cores that C steps: each step is the unroll's in float64, and what somebody changed is not passed over."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from fastweight_helpers import assert_near, integer
from torch import Tensor

from deltabeast.agents.cpu.backbone import plan
from deltabeast.agents.cpu.cores import functions_of
from deltabeast.cores import make_core
from deltabeast.cores.attention import WindowMemory
from deltabeast.cores.short_conv import MAX_STEPS
from deltabeast.kernels.native import backbone as native
from deltabeast.kernels.native import compiling, dense, weight_transforms

pytestmark = pytest.mark.skipif(
    compiling.unsupported_reason("dense.c", "LANES=8") is not None, reason="no C compiler builds dense.c"
)


@pytest.fixture(autouse=True)
def _no_gradients() -> Any:
    with torch.no_grad():
        yield


def step_in_c(core: Any, x: Tensor, state: Any, reset: Tensor) -> Any:
    functions = functions_of(core)
    return functions and functions.step(core, x, state, reset, None)


def step(core: Any, x: Tensor, state: Any, reset: Tensor) -> Any:
    """As an actor does it."""
    return step_in_c(core, x, state, reset) or core.step(x, state, reset)


def test_a_changed_layer_is_not_passed_over(seed: int) -> None:
    """A hook, or a module in another's place, takes effect when actors step, too."""
    core = make_core("rdn", 5, hidden_size=8, num_layers=1, num_heads=2, ff_size=6)
    x, reset = torch.randn(3, 5), torch.zeros(3, dtype=torch.bool)
    before, _ = step(core, x, core.initial_state(3), reset)
    for module in (core.input_proj, core.layers[0].norm, core.layers[0].ff[0]):
        hook = module.register_forward_hook(lambda module, given, result: result + 1)
        assert not torch.allclose(step(core, x, core.initial_state(3), reset)[0], before)
        hook.remove()
    core.layers[0].ff[1] = torch.nn.GELU()
    assert not torch.allclose(step(core, x, core.initial_state(3), reset)[0], before)


FED: dict[str, object] = {"short_conv": 4, "head_norm": True, "output_gate": "silu"}
OTHERS: dict[str, tuple[str, dict[str, object]]] = {
    "root2": ("delta_net", {"feature_map": "root2", "normalise": "none"}),
    "unit": ("delta_net", {"feature_map": "unit", "normalise": "none", "beta_max": 2}),
    "softmax": ("linear_transformer", {"feature_map": "softmax", "normalise": "none"}),
    "elu": ("gated_delta_net", {"feature_map": "elu", "normalise": "sum", "decay_temperature": 3.0}),
    "one write": ("delta_product", {"writes": 1, "beta_max": 1}),
    "three writes": ("delta_product", {"writes": 3, "gated": True}),
    "sum, fed": ("linear_transformer", {**FED, "output_gate": "sigmoid"}),
    "decays, fed": ("gated_linear_attention", FED),
    "delta_rnn, fed": ("delta_rnn", FED),
    "rdn, fed": ("rdn", {**FED, "short_conv": 1}),
    "kda, fed": ("kda", FED),
    "rwkv7, fed": ("rwkv7", {**FED, "short_conv": 2, "head_norm": False}),
    "product, fed": ("delta_product", {**FED, "gated": True, "output_gate": "none"}),
    "time": ("delta_net", {"clock": 4, "feature_map": "unit", "normalise": "none"}),
    "gates": ("rdn", {"residual": "gate", "clock": 1}),
    "gtrxl, fed": ("gtrxl", {"window": 20, **FED}),
    "window of 5": ("softmax_attention", {"window": 5}),
    "gated scores": ("softmax_attention", {"window": 3, "gated": True, "normalise": False}),
    "ages": ("softmax_attention", {"window": 7, "positions": True, "gated": True}),
    "ages, fed": ("softmax_attention", {"window": 1, "positions": True, **FED}),
    **{
        f"{layers} layers": ("hybrid", {"layers": layers})
        for layers in ("kda,gtrxl", "gtrxl,rdn,delta_rnn", "rdn,rdn")
    },
    "layers with options, gates and the time": (
        "hybrid",
        {"layers": "kda:short_conv=3,gtrxl:window=5:head_norm=true,rdn", "residual": "gate", "clock": 2},
    ),
}
"""cores with options, by a name of their own"""
FAST_WEIGHTS = (
    *("linear_transformer", "delta_net", "delta_rnn", "rdn"),
    *("gated_linear_attention", "gated_delta_net", "momentum_delta_net"),
    *("kda", "gated_delta_net_2", "delta_product", "rwkv7", "gtrxl", "transformer", *OTHERS),
)


def made(name: str, **options: object) -> Any:
    """Make a core whose every weight matters: biases and norms are not at their first values."""
    name, more = OTHERS.get(name, (name, {}))
    if name == "hybrid":
        options.pop("num_layers", None)
    core = make_core(name, integer(1, 40), hidden_size=24, num_heads=3, ff_size=7, **options, **more)
    for parameter in core.parameters():
        parameter.add_(0.1 * torch.randn_like(parameter))
    return core


def arguments(core: Any, rows: int) -> tuple[Tensor, tuple[Tensor, ...], Tensor]:
    state = tuple(torch.randn_like(part) for part in core.initial_state(rows))
    if any(isinstance(memory, WindowMemory) for memory in core.modules()):
        # What is left of attention's weights is from 0 to 1.
        state = tuple(torch.rand_like(part) if part.dim() == 4 else part for part in state)
    if getattr(core, "clock", 0):
        state = (*state[:-1], torch.randint(3000, (rows, 1)).float())
    return torch.randn(rows, core.input_size), state, torch.rand(rows) < 0.3


@pytest.mark.parametrize("rows", [1, 3, 16, 17, 40])
@pytest.mark.parametrize("name", FAST_WEIGHTS)
def test_a_step_in_one_call_is_the_unroll_in_float64(
    name: str, rows: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = made(name, num_layers=3)
    x, state, reset = arguments(core, rows)
    before = [part.clone() for part in state]
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    y, after = step_in_c(core, x, state, reset)
    assert all(map(torch.equal, state, before))
    doubles = tuple(part.double() for part in state)
    want, want_after = core.double().unroll(x.double().unsqueeze(0), doubles, reset.unsqueeze(0))
    assert_near("y", y, want[0], 1e-5)
    for got, expected in zip(after, want_after, strict=True):
        assert_near("state", got, expected, 1e-5)
        assert got.transpose(0, 1).is_contiguous()  # as the next step needs it


def test_a_step_in_one_call_overflows_no_softmax(seed: int) -> None:
    core = made("delta_rnn", num_layers=1)
    core.layers[0].memory.slow_net.weight.mul_(300)  # logits of some hundreds
    x, state, reset = arguments(core, 17)
    y, _ = step_in_c(core, x, state, reset)
    want, _ = core.double().unroll(
        x.double().unsqueeze(0), tuple(s.double() for s in state), reset.unsqueeze(0)
    )
    assert_near("y", y, want[0], 1e-3)


@pytest.mark.parametrize("name", FAST_WEIGHTS)
def test_a_step_in_one_call_keeps_rows_apart(name: str, seed: int) -> None:
    core = made(name)
    x, state, reset = arguments(core, 19)
    want, _ = step_in_c(core, x, state, reset)
    x[7, 0] = torch.nan
    got, _ = step_in_c(core, x, state, reset)
    assert got[7].isnan().all()
    assert torch.equal(got[torch.arange(19) != 7], want[torch.arange(19) != 7])


@pytest.mark.parametrize("name", ["rdn", "gated_delta_net", "rwkv7, fed"])
def test_the_work_of_a_step_is_that_of_its_linear_layers(name: str, seed: int) -> None:
    for num_layers in (1, 3):
        core = made(name, num_layers=num_layers)
        functions, state = functions_of(core), core.initial_state(2)
        assert functions and functions.new_cache and functions.steps
        cache = functions.new_cache(core, 4, 2)
        assert cache is not None
        found = functions.steps(core, state, cache)
        layers = [module for module in core.modules() if type(module) is torch.nn.Linear]
        assert found and found.work == sum(layer.weight.numel() for layer in layers)


def test_what_is_not_stepped_in_one_call(seed: int) -> None:
    core = made("rdn")
    x, state, reset = arguments(core, 3)
    assert step_in_c(core, x, state, reset) is not None
    W, y = state
    for wrong in (
        (x[:, 1:] if core.input_size > 1 else x.repeat(1, 2), state, reset),
        (x.double(), state, reset),
        (x, (W, y[:, :1]), reset),
        (x, (W.double(), y), reset),
        (x, (W.contiguous(), y), reset),
        (x, state, reset[:2]),
        (x, state, reset.int()),
        (x[:0], tuple(part[:0] for part in state), reset[:0]),
    ):
        assert step_in_c(core, *wrong) is None
    with pytest.raises(ValueError, match=r"reset is \[1, 2\]"):
        core.step(x, state, reset[:2])
    layer = core.layers[1]
    for module in (layer, layer.memory, layer.memory.slow_net, layer.ff, layer.ff[1]):
        hook = module.register_forward_hook(lambda *_: None)
        assert step_in_c(core, x, state, reset) is None
        hook.remove()
    with torch.enable_grad():
        assert step_in_c(core, x, state, reset) is None
    for name, module in (
        ("norm", torch.nn.LayerNorm(24, elementwise_affine=False)),
        ("norm", torch.nn.LayerNorm(24, eps=0.1)),
        ("ff", torch.nn.Sequential(torch.nn.Linear(24, 9), torch.nn.ReLU(), torch.nn.Linear(9, 24))),
        ("memory", make_core("rdn", 5, hidden_size=24, num_heads=2).layers[0].memory),
        ("memory", made("delta_net", num_layers=1).layers[0].memory),
        ("out", torch.nn.Linear(24, 25)),
    ):
        kept, layer._modules[name] = layer._modules[name], module
        assert step_in_c(core, x, state, reset) is None, module
        layer._modules[name] = kept
    for each in core.layers:
        each.norm.eps = 0.1  # C has one for both
    assert step_in_c(core, x, state, reset) is None


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("elu", "features"),
        ("kda, fed", "short_conv"),
        ("kda, fed", "head_norm"),
        ("kda", "to_decay"),
        ("kda", "decay"),
        ("gtrxl", "to_ages"),
    ],
)
def test_what_somebody_changed_inside_a_memory_is_not_stepped_in_one_call(
    name: str, module: str, seed: int
) -> None:
    core = made(name)
    inputs, memory = arguments(core, 3), core.layers[1].memory
    assert step_in_c(core, *inputs) is not None
    inside = getattr(memory, module)
    with inside.register_forward_hook(lambda *_: None):
        assert step_in_c(core, *inputs) is None

    class Another(type(inside)):  # type: ignore[misc]
        pass

    inside.__class__ = Another
    assert step_in_c(core, *inputs) is None


@pytest.mark.parametrize("caches", [False, True])
def test_a_changed_gate_or_window_is_not_passed_over(
    caches: bool, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weight_transforms._own, "transforms", {} if caches else None)
    core = made("gtrxl")
    inputs, layer = arguments(core, 3), core.layers[1]
    assert step_in_c(core, *inputs) is not None
    for module in (layer.gate, layer.gate.from_y, layer.ff_gate.from_reset):
        with module.register_forward_hook(lambda *_: None):
            assert step_in_c(core, *inputs) is None

    class Another(type(layer.gate)):  # type: ignore[misc]
        pass

    for name, module in (("gate", Another(24)), ("ff_gate", torch.nn.Linear(24, 24))):
        before, layer._modules[name] = layer._modules[name], module
        assert step_in_c(core, *inputs) is None
        layer._modules[name] = before
    for gate, name, other in (
        (layer.gate, "from_x", torch.nn.Linear(24, 48)),  # with a bias
        (layer.gate, "bias", None),
        (layer.memory, "to_ages", torch.nn.Linear(24, 24)),
        (layer.memory, "age_bias", None),
        (layer.memory, "waves", layer.memory.waves[1:]),
        (layer.memory, "waves", layer.memory.waves[:, 1:]),
        (layer.memory, "window", layer.memory.window + 1),
    ):
        before = getattr(gate, name)
        setattr(gate, name, other)
        assert step_in_c(core, *inputs) is None, name
        setattr(gate, name, before)
    before, _ = step_in_c(core, *inputs)
    layer.memory.waves.add_(1.0)
    assert not torch.allclose(step_in_c(core, *inputs)[0], before)
    for change in (lambda layer: delattr(layer, "gate"), lambda layer: setattr(layer, "third", layer.gate)):
        edited = copy.deepcopy(core)
        change(edited.layers[0])
        assert step_in_c(edited, *inputs) is None


def test_gates_are_known_by_their_names(seed: int) -> None:
    """In whatever order they were put there."""
    core = made("gtrxl")
    inputs, layer = arguments(core, 3), core.layers[0]
    gate = layer.gate
    del layer.gate
    layer.gate = gate
    y, _ = step_in_c(core, *inputs)
    assert_near("y", y, core.step(*inputs)[0].double(), 1e-4)


@pytest.mark.parametrize("name", ["gtrxl", "transformer", "kda,gtrxl layers"])
def test_threads_change_nothing(name: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    core = made(name)
    inputs, found = arguments(core, 40), []
    for threads in (1, 2):
        monkeypatch.setattr(dense, "threads", lambda *_, threads=threads: threads)
        y, after = step_in_c(core, *inputs)
        found.append((y, *after))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def test_the_work_of_gates_and_of_a_window_counts() -> None:
    cores = [make_core("softmax_attention", 5, window=64, residual=each) for each in ("sum", "gate")]
    sums, gates = (native._work(plan(core)) for core in cores)
    assert gates - sums == sum(
        weight.numel()
        for layer in cores[1].layers
        for weight in (*layer.gate.parameters(), *layer.ff_gate.parameters())
        if weight.dim() == 2
    )
    shorter = make_core("softmax_attention", 5, window=32)
    assert sums - native._work(plan(shorter)) == 2 * 2 * 32 * 128


def test_a_window_too_long_for_a_stack_is_not_stepped_in_one_call() -> None:
    core = make_core("softmax_attention", 5, hidden_size=32, window=3000)
    inputs = arguments(core, 3)
    assert step_in_c(core, *inputs) is None
    assert step(core, *inputs)[0].isfinite().all()


def test_a_convolution_too_long_for_a_stack_is_not_stepped_in_one_call() -> None:
    core = make_core("kda", 5, hidden_size=32, short_conv=MAX_STEPS)
    inputs = arguments(core, 3)
    assert step_in_c(core, *inputs) is None
    assert step(core, *inputs)[0].isfinite().all()


@pytest.mark.parametrize("name", ["kda, fed", "rwkv7", "three writes", "rdn", "gtrxl", "ages"])
def test_weights_of_other_shapes_are_never_read(name: str, seed: int) -> None:
    core = made(name)
    inputs, memory = arguments(core, 3), core.layers[0].memory
    for path, weight in list(memory.named_parameters()):
        owner = memory.get_submodule(path.rpartition(".")[0])
        setattr(owner, path.rpartition(".")[2], torch.nn.Parameter(weight[:-1].clone()))
        assert step_in_c(core, *inputs) is None, path
        setattr(owner, path.rpartition(".")[2], weight)
    assert step_in_c(core, *inputs) is not None


@pytest.mark.parametrize("rows", [1, 3, 16, 17, 40])
@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_lstm_and_gru_step_as_their_unrolls_in_float64(
    name: str, rows: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The most rows have so many units that several threads share them."""
    core = make_core(name, integer(1, 40), hidden_size=integer(100, 120) if rows == 40 else integer(1, 40))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    x, state, reset = arguments(core, rows)
    for taken in (state, tuple(part.repeat(1, 2, 1)[:, 1:] for part in state)):
        y, after = step(core, x, taken, reset)
        doubles = tuple(part.double() for part in state)
        want, want_after = (
            copy.deepcopy(core).double().unroll(x.double().unsqueeze(0), doubles, reset.unsqueeze(0))
        )
        assert_near("y", y, want[0], 1e-5)
        for got, expected in zip(after, want_after, strict=True):
            assert_near("state", got, expected, 1e-5)
    with pytest.raises(ValueError, match=r"reset is \["):
        core.step(x, state, reset[:0])


def test_a_memory_of_another_unroll_is_not_passed_over(seed: int) -> None:
    core = made("rdn")
    x, state, reset = arguments(core, 3)

    class Still(type(core.layers[0].memory)):  # type: ignore[misc]
        def unroll(self, projections: Any, state: Any, reset: Any) -> Any:
            y, _ = super().unroll(projections, state, reset)
            return y, state

    core.layers[1].memory.__class__ = Still
    _, (W, _) = step(core, x, state, reset)
    assert torch.equal(W[:, 1], state[0][:, 1]) and not torch.equal(W[:, 0], state[0][:, 0])


@pytest.mark.parametrize("name", ["gated_delta_net", "gated_linear_attention"])
def test_a_root_of_what_is_next_to_nothing(name: str, seed: int) -> None:
    """A sigmoid below 1e-38 is still a decay of some size, for an actor as for a learner."""
    # Keys by softmax: ELU + 1 of what is far below zero cancels.
    keys = {"feature_map": "softmax", "normalise": "none"}
    sizes = {"hidden_size": 12, "num_heads": 2, "num_layers": 1, "ff_size": 8}
    core = make_core(name, 6, **sizes, **keys, decay_temperature=100.0)
    core.layers[0].memory.slow_net.weight.mul_(200)
    x, reset = torch.randn(1, 9, 6), torch.zeros(1, 9, dtype=torch.bool)
    state = tuple(torch.randn_like(part) for part in core.initial_state(9))
    (W,) = step_in_c(core, x[0], state, reset[0])[1]
    assert_near("W", W, core.unroll(x, state, reset)[1][0], 1e-3)  # weights of 200 enlarge rounding
    logits = core.layers[0].memory.slow_net(core.layers[0].norm(core.input_proj(x)))
    assert (logits.abs() > 87).any()
