"""Launch parameters of the Triton kernels: block sizes and warps."""

import triton
from torch import Tensor


def constants(W: Tensor, heads: int) -> dict[str, int]:
    """Return the constants of a program that holds a head's one or three W in registers: `[B, n H, V, K]`."""
    V, K = W.shape[-2:]
    block_v, block_k = (max(16, triton.next_power_of_2(size)) for size in (V, K))
    # With four warps a 32 x 32 matrix takes 8 registers per thread; 64 x 64 would spill.
    num_warps = 4 if max(block_v, block_k) <= 32 else 8
    if W.shape[1] > heads:
        num_warps *= 2
    return {"V": V, "K": K, "BLOCK": block_v, "BLOCK_V": block_v, "BLOCK_K": block_k, "num_warps": num_warps}
