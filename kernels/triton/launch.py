"""Launch parameters of the Triton kernels: block sizes, warps and strides."""

import triton
from torch import Tensor


def blocks(W: Tensor) -> dict[str, int]:
    """Return the constants of a program that holds W `[..., V, K]` in registers."""
    V, K = W.shape[-2:]
    block_v, block_k = (max(16, triton.next_power_of_2(size)) for size in (V, K))
    # With four warps a 32 x 32 matrix takes 8 registers per thread; 64 x 64 would spill.
    num_warps = 4 if max(block_v, block_k) <= 32 else 8
    return {"V": V, "K": K, "BLOCK_V": block_v, "BLOCK_K": block_k, "num_warps": num_warps}


def strides(*xs: Tensor) -> tuple[int, ...]:
    """Return the strides of the first three dimensions of each tensor."""
    return tuple(stride for x in xs for stride in x.stride()[:3])
