"""What C computes of each core, by its exact class: not of subclasses, nor of cores from elsewhere."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from torch import Tensor

from ...cores import Core, FastWeightCore, State, Stats, core_names
from ...cores.gru import GRU
from ...cores.lstm import LSTM
from ...cores.registry import find_core
from ...kernels.native.acting import CoreSteps
from ...kernels.native.forward_cache import ForwardCache
from . import backbone, rnn
from .modules import is_hooked


class CoreFunctions(NamedTuple):
    """Functions of a core, each None where C cannot compute it."""

    step: Callable[[Any, Tensor, State, Tensor, ForwardCache | None], tuple[Tensor, State] | None]
    """Like `Core.step`, with activations written into the cache if there is one."""
    new_cache: Callable[[Any, int, int], ForwardCache | None] | None = None
    """Allocate the cache of an unroll's activations, given the numbers of steps and of environments."""
    unroll: (
        Callable[[Any, Tensor, State, Tensor, ForwardCache], tuple[Tensor, State, Stats] | None] | None
    ) = None
    """Like `Core.unroll_with_stats`, from the activations that the steps cached."""
    steps: Callable[[Any, State, ForwardCache], CoreSteps | None] | None = None
    """The C function and argument struct of the core's steps, which C calls within an agent's whole step."""


_BACKBONE = CoreFunctions(backbone.step, backbone.new_cache, backbone.unroll, backbone.steps)
_OTHERS: Final[dict[type[Core], CoreFunctions]] = {
    LSTM: CoreFunctions(rnn.lstm_step, rnn.new_lstm_cache, rnn.lstm_unroll, rnn.lstm_steps),
    GRU: CoreFunctions(rnn.gru_step),
}


def functions_of(core: Core) -> CoreFunctions | None:
    """Return what C computes of a core; None if that is nothing or the core is hooked."""
    if is_hooked(core):
        return None
    return _BACKBONE if type(core) in _in_backbone() else _OTHERS.get(type(core))


@functools.cache
def _in_backbone() -> frozenset[type[Core]]:
    """Return this project's cores in the backbone."""
    found = [core for core in map(find_core, core_names()) if isinstance(core, type)]
    classes = [core for core in found if core.__module__.split(".")[0] == __name__.split(".")[0]]
    return frozenset(core for core in classes if issubclass(core, FastWeightCore))
