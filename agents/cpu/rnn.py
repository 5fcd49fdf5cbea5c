"""LSTM and GRU: a step in one call of C, and an LSTM's unroll from the forward pass that an actor cached."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ...cores import State, Stats
from ...cores.gru import GRU
from ...cores.lstm import LSTM
from ...cores.rnn import RNNCore
from ...kernels.native import gru as native_gru
from ...kernels.native import lstm as native_lstm
from ...kernels.native.acting import CoreSteps
from ...kernels.native.forward_cache import ForwardCache


def weights(core: RNNCore) -> list[Tensor]:
    """List both weights and both biases; as attributes they would take longer to find."""
    parameters: Any = core._parameters
    return [parameters[f"{kind}_{part}_l0"] for kind in ("weight", "bias") for part in ("ih", "hh")]


def new_lstm_cache(core: LSTM, steps: int, rows: int) -> ForwardCache | None:
    return native_lstm.new_cache(steps, rows, weights(core))


def lstm_step(
    core: LSTM, x: Tensor, state: State, reset: Tensor, cache: ForwardCache | None
) -> tuple[Tensor, State] | None:
    """Like `core.step`, written into the cache if there is one; None where C cannot."""
    h, c = (part.squeeze(1) for part in state)
    result = native_lstm.step(x, weights(core), h, c, reset, cache)
    if result is None:
        return None
    h, c = result
    return h, (h.unsqueeze(1), c.unsqueeze(1))


def lstm_steps(core: LSTM, state: State, cache: ForwardCache) -> CoreSteps | None:
    """Return the C callback of an unroll's steps from `state` on, called within an agent's whole step.

    None if C cannot.
    """
    h, c = (part.squeeze(1) for part in state)
    return native_lstm.steps(weights(core), h, c, cache)


def lstm_unroll(
    core: LSTM, x: Tensor, state: State, reset: Tensor, cache: ForwardCache
) -> tuple[Tensor, State, Stats] | None:
    """Like `core.unroll_with_stats`, from an actor's cached steps; None if inputs or weights differ."""
    if not cache.matches(x, weights(core)):
        return None
    h, c = (part.squeeze(1) for part in state)
    y, h, c = native_lstm.cached_lstm(cache, x, weights(core), h, c, reset)
    return y, (h.unsqueeze(1), c.unsqueeze(1)), {}


def gru_step(
    core: GRU, x: Tensor, state: State, reset: Tensor, cache: ForwardCache | None
) -> tuple[Tensor, State] | None:
    """Like `core.step`; None where C cannot."""
    h = native_gru.step(x, weights(core), state[0].squeeze(1), reset)
    return None if h is None else (h, (h.unsqueeze(1),))
