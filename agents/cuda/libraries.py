"""Loading what the first kernels on a GPU wait for."""

from __future__ import annotations

import torch
from torch.nn import functional as F


def load_libraries(device: torch.device) -> None:
    """Make a GPU's context and load cuBLAS and cuDNN: seconds in which this process uses one core.

    PyTorch does so when the first product and the first convolution ask for them. On other devices there is
    nothing to load.
    """
    if device.type == "cuda":
        _compute(device)
        torch.cuda.synchronize(device)


def _compute(device: torch.device) -> None:
    """Convolve, multiply and differentiate."""
    ones = torch.ones(1, 1, 8, 8, device=device, requires_grad=True)
    (F.conv2d(ones, ones) @ ones[..., :1, :1]).sum().backward()
