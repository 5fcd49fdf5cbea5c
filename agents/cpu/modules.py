"""Parameters of modules that are neither subclassed nor hooked, so that C may stand in for their forward."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.modules import module as of_all


def weights_of(*modules: Any, kinds: tuple[type[nn.Module], ...]) -> list[Any]:
    """List the modules' parameters, None for each that is missing; none at all if a module is of another kind
    or hooked.

    Reads them where `nn.Module` stores them: its attributes take a good part of an actor's step to find.
    """
    weights: list[Any] = []
    if tuple(map(type, modules)) != kinds:
        return []
    for module in modules:
        if is_hooked(module):
            return []
        if type(module) is nn.LayerNorm and module._parameters["bias"] is None:
            return []
        weights.extend(module._parameters.values())
    return weights


def is_hooked(module: Any) -> bool:
    """Return whether the module has forward or backward hooks, PyTorch has global ones, or the module has a
    `forward` of its own in place of its class's."""
    if of_all._global_forward_hooks or of_all._global_forward_pre_hooks:
        return True
    if of_all._global_backward_hooks or of_all._global_backward_pre_hooks:
        return True
    forward = module._forward_hooks or module._forward_pre_hooks
    return bool(forward or module._backward_hooks or module._backward_pre_hooks or "forward" in vars(module))
