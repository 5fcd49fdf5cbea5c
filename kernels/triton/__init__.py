"""The rules in Triton, for GPUs. Triton itself is imported when a rule first needs it.

The package of that name is `import triton`, absolute; this one is only ever imported relatively.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from torch import Tensor

KERNEL_NAMES = ("delta", "gated", "generalised", "momentum", "delta_rnn", "recurrent_delta", "delta_lstm")
"""the names of the signatures that have a kernel in Triton"""
_HAS_TRITON = find_spec("triton") is not None


def unsupported_reason(inputs: tuple[Tensor, ...], any_width: bool = False) -> str | None:
    """Return why the kernels cannot take these inputs; None if they can. LSTM and GRU may have any width."""
    if not _HAS_TRITON:
        return "Triton is not installed; pip install triton (Linux only)"
    from .rules import unsupported_reason

    return unsupported_reason(inputs, any_width)


def lstm_operator(*inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Equals `reference.lstm` to rounding. An operator separate from that of the C kernel."""
    from .lstm import lstm

    return lstm(*inputs)


def gru_operator(*inputs: Any) -> tuple[Tensor, Tensor]:
    """Equals `reference.gru` to rounding; as `lstm_operator`."""
    from .gru import gru

    return gru(*inputs)
