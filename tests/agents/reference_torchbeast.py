"""The released networks, written plainly: weights by their original names, one loop over time, float64.

PolyBeast's residual network (Küttler et al. 2019) and the agents of Irie et al. (2021). It shares nothing
with the package: fast weights are `[key, value]`, heads are a loop, states are masked before each step.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

Weights = dict[str, Tensor]
State = dict[str, Tensor]


def random_weights(
    core: str, actions: int, d: int = 8, layers: int = 2, heads: int = 2, ff: int = 12
) -> Weights:
    """Weights in the order and the shapes of a model of theirs; large enough for every part to matter."""
    shapes: dict[str, tuple[int, ...]] = {}

    def linear(name: str, rows: int, columns: int, bias: bool = True) -> None:
        shapes[f"{name}.weight"] = (rows, columns)
        if bias:
            shapes[f"{name}.bias"] = (rows,)

    def conv(name: str, rows: int, columns: int) -> None:
        shapes[f"{name}.weight"], shapes[f"{name}.bias"] = (rows, columns, 3, 3), (rows,)

    for i, channels in enumerate(((4, 16), (16, 32), (32, 32))):
        conv(f"feat_convs.{i}.0", channels[1], channels[0])
    for block in ("resnet1", "resnet2"):
        for i, channels in enumerate((16, 32, 32)):
            conv(f"{block}.{i}.1", channels, channels)
            conv(f"{block}.{i}.3", channels, channels)
    linear("fc", 256, 3872)
    width = {"feedforward": 257, "lstm": d}.get(core, d)
    if core == "lstm":
        shapes |= {"core.weight_ih_l0": (4 * d, 257), "core.weight_hh_l0": (4 * d, d)}
        shapes |= {"core.bias_ih_l0": (4 * d,), "core.bias_hh_l0": (4 * d,)}
    elif core != "feedforward":
        h = d // heads
        linear("core.input_proj", d, 257)
        emitted = {"linear_transformer": 3 * h, "delta_rnn": 5 * h + 2}.get(core, 3 * h + 1)
        for layer in range(layers):
            name = f"core.fwm_layers.{layer}"
            if core == "rdn":
                shapes |= {f"{name}.R_{part}": (1, heads, h, h) for part in "qkv"}
                shapes[f"{name}.r_b"] = (1, heads, 1, h)
            linear(f"{name}.slow_net", heads * emitted, d, bias=False)
            shapes |= {f"{name}.layer_norm.weight": (d,), f"{name}.layer_norm.bias": (d,)}
            linear(f"{name}.out_linear", d, d, bias=False)
        for layer in range(layers):
            name = f"core.ff_layers.{layer}"
            linear(f"{name}.ff_layers.0", ff, d)
            linear(f"{name}.ff_layers.3", d, ff)
            shapes |= {f"{name}.layer_norm.weight": (d,), f"{name}.layer_norm.bias": (d,)}
    linear("policy", actions, width)
    linear("baseline", 1, width)
    return {
        name: torch.randn(shape) * (1.5 / torch.Size(shape[1:]).numel() if len(shape) > 1 else 0.1) ** 0.5
        + (1.0 if name.endswith("layer_norm.weight") else 0.0)
        for name, shape in shapes.items()
    }


def unroll(
    weights: Mapping[str, Tensor], heads: int, frame: Tensor, reward: Tensor, done: Tensor, state: State
) -> tuple[Tensor, Tensor, State]:
    """frame `[T,B,4,84,84]`, reward and done `[T,B]` -> logits `[T,B,A]`, baseline `[T,B]`, last state."""
    w = {name: tensor.double() for name, tensor in weights.items()}
    logits, baselines = [], []
    for t in range(len(frame)):
        alive = (~done[t]).double()
        state = {name: part * alive.view(-1, *[1] * (part.ndim - 1)) for name, part in state.items()}
        features = _stem(w, frame[t])
        x = torch.cat([features, reward[t].double().clamp(-1, 1)[:, None]], 1)
        x, state = _core(w, heads, x, state)
        logits.append(x @ w["policy.weight"].T + w["policy.bias"])
        baselines.append((x @ w["baseline.weight"].T + w["baseline.bias"])[:, 0])
    return torch.stack(logits), torch.stack(baselines), state


def _stem(w: Weights, frame: Tensor) -> Tensor:
    x = frame.double() / 255.0
    for i in range(3):
        x = F.conv2d(x, w[f"feat_convs.{i}.0.weight"], w[f"feat_convs.{i}.0.bias"], padding=1)
        x = F.max_pool2d(x, 3, stride=2, padding=1)
        for block in ("resnet1", "resnet2"):
            branch = x
            for layer in (1, 3):
                name = f"{block}.{i}.{layer}"
                branch = F.conv2d(branch.clamp(min=0), w[f"{name}.weight"], w[f"{name}.bias"], padding=1)
            x = x + branch
    x = x.clamp(min=0).reshape(len(x), -1)
    return (x @ w["fc.weight"].T + w["fc.bias"]).clamp(min=0)


def _core(w: Weights, heads: int, x: Tensor, state: State) -> tuple[Tensor, State]:
    if "core.weight_hh_l0" in w:
        gates = x @ w["core.weight_ih_l0"].T + w["core.bias_ih_l0"]
        gates = gates + state["h"] @ w["core.weight_hh_l0"].T + w["core.bias_hh_l0"]
        i, f, g, o = gates.chunk(4, 1)
        c = f.sigmoid() * state["c"] + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        return h, {"h": h, "c": c}
    if "core.input_proj.weight" not in w:
        return x, state
    state = dict(state)
    x = x @ w["core.input_proj.weight"].T + w["core.input_proj.bias"]
    layers = sum(name.startswith("core.fwm_layers") and name.endswith("slow_net.weight") for name in w)
    for layer in range(layers):
        name = f"core.fwm_layers.{layer}"
        emitted = _layer_norm(x, w, name) @ w[f"{name}.slow_net.weight"].T
        per_head = emitted.chunk(heads, 1)
        outputs = [_head(w, name, head, per_head[head], state) for head in range(heads)]
        x = x + torch.cat(outputs, 1) @ w[f"{name}.out_linear.weight"].T
        name = f"core.ff_layers.{layer}"
        inner = _layer_norm(x, w, name) @ w[f"{name}.ff_layers.0.weight"].T + w[f"{name}.ff_layers.0.bias"]
        x = x + inner.clamp(min=0) @ w[f"{name}.ff_layers.3.weight"].T + w[f"{name}.ff_layers.3.bias"]
    return x, state


def _head(w: Weights, name: str, head: int, emitted: Tensor, state: State) -> Tensor:
    """One head of one layer: read its numbers, write, read. Its state is kept by names of its own."""
    key = f"{name}.{head}"
    fast, h = state[f"{key}.fast"], state[f"{key}.fast"].shape[-1]
    q, k, v = emitted[:, :h], emitted[:, h : 2 * h], emitted[:, 2 * h : 3 * h]
    if f"{name}.R_q" in w:
        last = state[f"{key}.last"].tanh()
        q = _softmax(q + last @ w[f"{name}.R_q"][0, head])
        k = _softmax(k + last @ w[f"{name}.R_k"][0, head])
        v = v + last @ w[f"{name}.R_v"][0, head]
        strength = (emitted[:, 3 * h] + last @ w[f"{name}.r_b"][0, head, 0]).sigmoid()
        state[f"{key}.fast"] = fast = _delta(fast, k, v, strength)
        state[f"{key}.last"] = y = _read(fast, q)
        return y
    if emitted.shape[1] == 3 * h:
        fast = fast + k_outer(_elu_shares(k), v)
        state[f"{key}.fast"] = fast
        return _read(fast, _elu_shares(q))
    if emitted.shape[1] == 3 * h + 1:
        state[f"{key}.fast"] = fast = _delta(fast, _elu_shares(k), v, emitted[:, 3 * h].sigmoid())
        return _read(fast, _elu_shares(q))
    recurrent_k, recurrent_v = emitted[:, 3 * h : 4 * h], emitted[:, 4 * h : 5 * h]
    strength, recurrent_strength = emitted[:, 5 * h].sigmoid(), emitted[:, 5 * h + 1].sigmoid()
    state[f"{key}.fast"] = fast = _delta(fast, _softmax(k), v, strength)
    recurrent = _delta(state[f"{key}.recurrent"], _softmax(recurrent_k), recurrent_v, recurrent_strength)
    state[f"{key}.recurrent"] = recurrent
    last = state[f"{key}.last"]
    shares = (last - last.amax(1, keepdim=True)).exp()
    shares = shares / (shares.sum(1, keepdim=True) + 1e-6)
    state[f"{key}.last"] = y = _read(fast, _softmax(q)) + _read(recurrent, shares)
    return y


def k_outer(k: Tensor, v: Tensor) -> Tensor:
    return k[:, :, None] * v[:, None, :]


def _delta(fast: Tensor, k: Tensor, v: Tensor, strength: Tensor) -> Tensor:
    return fast + k_outer(k, strength[:, None] * (v - _read(fast, k)))


def _read(fast: Tensor, q: Tensor) -> Tensor:
    return (q[:, :, None] * fast).sum(1)


def _softmax(x: Tensor) -> Tensor:
    e = (x - x.amax(1, keepdim=True)).exp()
    return e / e.sum(1, keepdim=True)


def _elu_shares(x: Tensor) -> Tensor:
    positive = torch.where(x > 0, x + 1, x.exp())
    return positive / (positive.sum(1, keepdim=True) + 1e-5)


def _layer_norm(x: Tensor, w: Weights, name: str) -> Tensor:
    centred = x - x.mean(1, keepdim=True)
    scaled = centred / (centred.square().mean(1, keepdim=True) + 1e-5).sqrt()
    return scaled * w[f"{name}.layer_norm.weight"] + w[f"{name}.layer_norm.bias"]
