"""Agents trained with TorchBeast's PolyBeast, or with the code of Irie et al. (2021) that is built on it.

They share the residual stem, the heads and the names of their parameters; six kinds of core lie between.
Their arithmetic is ours, so an import renames parameters. What differs:

* Fast weights are `[key, value]` there and `[value, key]` here, but they are state: no checkpoint holds them.
* RDN's recurrent weights carry axes of size 1 there: `R_q [1,H,h,h]`, `r_b [1,H,1,h]`.
* Delta RNN's softmax over the last output adds 1e-6 to a denominator of at least 1 there.
* The number of heads shows in the tensors of all cores but the Linear Transformer.
* Dropout is not imported: the released evaluation turns it off, and the published agents had none.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ...agents import Agent, AgentSpec
from ...cores.registry import find_core

_OBSERVATION = (4, 84, 84)
_KNOWN = (
    "PolyBeast's residual network (feedforward, LSTM) and the agents of recurrent-fwp (Linear Transformer, "
    "Delta Net, Delta RNN, RDN)"
)
_MODULES = {
    **{f"feat_convs.{i}.0": f"stem.trunk.{4 * i}" for i in range(3)},
    **{
        f"resnet{block}.{i}.{layer}": f"stem.trunk.{4 * i + 1 + block}.conv{(layer + 1) // 2}"
        for i in range(3)
        for block in (1, 2)
        for layer in (1, 3)
    },
    **{"fc": "stem.fc", "core.input_proj": "core.input_proj", "policy": "policy", "baseline": "baseline"},
}
_LAYER_PARAMETERS = {
    "fwm_layers": {
        **{f"layer_norm.{kind}": f"norm.{kind}" for kind in ("weight", "bias")},
        **{"slow_net.weight": "memory.slow_net.weight", "out_linear.weight": "out.weight"},
        **{f"R_{part}": f"memory.R{part}" for part in "qkv"},
        "r_b": "memory.rb",
    },
    "ff_layers": {
        f"{theirs}.{kind}": f"{ours}.{kind}"
        for theirs, ours in (("layer_norm", "ff_norm"), ("ff_layers.0", "ff.0"), ("ff_layers.3", "ff.2"))
        for kind in ("weight", "bias")
    },
}
"""Within a layer: the name of a parameter there -> here."""


def our_name(name: str) -> str:
    """Return our name of a parameter of theirs. Raises ValueError if no released agent has it."""
    if match := re.fullmatch(r"core\.(fwm_layers|ff_layers)\.(\d+)\.(.+)", name):
        kind, layer, parameter = match.groups()
        if parameter in _LAYER_PARAMETERS[kind]:
            return f"core.layers.{layer}.{_LAYER_PARAMETERS[kind][parameter]}"
    elif re.fullmatch(r"core\.(weight|bias)_(ih|hh)_l0", name):
        return name
    else:
        module, _, kind = name.rpartition(".")
        if module in _MODULES and kind in ("weight", "bias"):
            return f"{_MODULES[module]}.{kind}"
    raise ValueError(f"parameter {name!r} is in none of the agents that can be imported: {_KNOWN}")


def convert(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors by their parameter names -> by ours, in our shapes: weights, or what an optimizer keeps.

    Raises ValueError for a name that no released agent has.
    """
    converted = {}
    for name, tensor in tensors.items():
        ours = our_name(name)
        if ours.endswith((".Rq", ".Rk", ".Rv")) and tensor.ndim == 4:
            tensor = tensor.squeeze(0)
        elif ours.endswith(".rb") and tensor.ndim == 4:
            tensor = tensor.squeeze(2).squeeze(0)
        converted[ours] = tensor.float().contiguous()
    return converted


def agent_spec(weights: Mapping[str, Tensor], num_heads: int | None = None) -> AgentSpec:
    """Describe the agent that their `model_state_dict` belongs to, sizes and actions read from the tensors.

    num_heads: of a Linear Transformer, whose tensors do not show it; None takes heads of 32, as published.

    Raises ValueError, in one line, if the weights are of no released agent, incomplete or not finite.
    """
    if "conv1.weight" in weights:
        raise ValueError(
            f"it holds MonoBeast's AtariNet, whose core also reads the last action; give {_KNOWN}"
        )
    converted = convert(weights)
    for name, tensor in converted.items():
        if not tensor.isfinite().all():
            raise ValueError(f"{name} is not finite; take an earlier checkpoint")
    if "policy.bias" not in weights:
        raise ValueError(f"it has no policy head, so it is none of {_KNOWN}")
    core, sizes = _core(weights, num_heads)
    defaults = {name: p.default for name, p in inspect.signature(find_core(core)).parameters.items()}
    options = {name: size for name, size in sizes.items() if size != defaults[name]}
    spec = AgentSpec(_OBSERVATION, weights["policy.bias"].numel(), core, "residual", options, reward_clip=1.0)
    with torch.device("meta"):  # shapes only
        expected = Agent(spec).state_dict()
    for name, tensor in expected.items():
        if name not in converted:
            raise ValueError(f"it is incomplete: it lacks what is {name} here")
        if converted[name].shape != tensor.shape:
            shapes = f"{list(converted[name].shape)} instead of {list(tensor.shape)}"
            raise ValueError(f"its parameter for {name} has the shape {shapes}, so it is none of {_KNOWN}")
    if extra := converted.keys() - expected.keys():
        raise ValueError(f"its parameter for {min(extra)} does not go with a {core} core")
    return spec


def _core(weights: Mapping[str, Tensor], num_heads: int | None) -> tuple[str, dict[str, int]]:
    """Return our name of the core, and the options that its tensors show."""
    if "core.weight_hh_l0" in weights:
        return "lstm", {"hidden_size": weights["core.weight_hh_l0"].shape[-1]}
    layers = {int(name.split(".")[2]) for name in weights if name.startswith("core.fwm_layers.")}
    if not layers:
        return "feedforward", {}
    try:
        d = weights["core.input_proj.bias"].numel()
        ff_size = weights["core.ff_layers.0.ff_layers.0.bias"].numel()
        projected = weights["core.fwm_layers.0.slow_net.weight"].numel() // max(d, 1)
    except KeyError as error:
        raise ValueError(f"it is incomplete: it lacks {error.args[0]}") from None
    # The slow net emits q, k, v; those and a strength; or q, two k, two v and two strengths, a head.
    if projected == 3 * d:
        core, heads = "linear_transformer", num_heads or d // 32
    elif projected <= 4 * d:
        recurrent = "core.fwm_layers.0.R_q" in weights
        core, heads = "rdn" if recurrent else "delta_net", projected - 3 * d
    else:
        core, heads = "delta_rnn", (projected - 5 * d) // 2
    if heads < 1 or d % heads:
        raise ValueError(
            f"no released core has a slow net of {projected} outputs at width {d} with {heads} heads"
        )
    sizes = {"hidden_size": d, "num_layers": len(layers), "num_heads": heads, "ff_size": ff_size}
    large = inspect.signature(find_core("rdn_large")).parameters
    if core == "rdn" and all(large[name].default == size for name, size in sizes.items()):
        core = "rdn_large"
    return core, sizes


def mean_squares(optimizer: Mapping[str, Any], weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """RMSProp's mean squares by our parameters' names, from their `optimizer_state_dict`.

    An optimizer numbers parameters in the order in which the model names them. Raises ValueError if it is the
    optimizer of another model, or RMSProp with momentum, which our learner has not.
    """
    try:
        states = [optimizer["state"][number] for number in optimizer["param_groups"][0]["params"]]
        if any("momentum_buffer" in state for state in states):
            raise ValueError("it was trained with momentum")
        squares = {name: state["square_avg"] for name, state in zip(weights, states, strict=True)}
        if any(squares[name].shape != weights[name].shape for name in weights):
            raise ValueError("its optimizer is another model's")
        return convert(squares)
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise ValueError("it holds no RMSProp state") from error
