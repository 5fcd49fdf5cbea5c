"""Other ways to compute a stem's convolutions: python convolutions.py > convolutions.md

Each beside the way that the stems take, channels-last through `aten::convolution`: microseconds a frame, the
least of five, CPU time of one thread. `err` is the largest difference of the results.
"""

import math
import time

import torch
from torch.nn import functional as F

from deltabeast.launch.processes.machine import prepare_process

LAST = torch.channels_last
RESIDUAL = [
    (4, 16, 84),
    (16, 16, 42),
    (16, 32, 42),
    (32, 32, 21),
    (32, 32, 11),
]  # channels in and out, height; 3x3
mkldnn = torch.ops.mkldnn


def micro(call, N):
    call()
    start = time.process_time()
    call()
    repeats = math.ceil(0.02 / max(1e-6, time.process_time() - start))
    rounds = []
    for _ in range(5):
        start = time.process_time()
        for _ in range(repeats):
            call()
        rounds.append((time.process_time() - start) / repeats)
    return 1e6 * min(rounds) / N


def numbers(dtype, *shape):
    x = torch.randn(shape).to(dtype)
    return x.contiguous(memory_format=LAST) if len(shape) == 4 else x


def weight_gradient(x, w, dy, stride, padding):
    how = ([stride] * 2, [padding] * 2, [1, 1], False, [0, 0], 1)
    return torch.ops.aten.convolution_backward(dy, x, w, [len(w)], *how, [False, True, True])


def row(what, layer, dtype, N, before, after, error=""):
    precision = "fp32" if dtype is torch.float32 else "bf16"
    print(f"| {what} | {layer} | {precision} | {N} | {before:.1f} | {after:.1f} | {error} |", flush=True)


def difference(a, b):
    return f"{(a.float() - b.float()).abs().max():.0e}"


def of_3x3(dtype, N, before, after, size):
    """Rows for one layer of the residual stem."""
    layer = f"{before} to {after}, {size} x {size}"
    x, w, b = (
        numbers(dtype, N, before, size, size),
        numbers(dtype, after, before, 3, 3),
        numbers(dtype, after),
    )
    y = F.conv2d(x, w, b, padding=1)
    dy = torch.randn_like(y)
    forward = micro(lambda: F.conv2d(x, w, b, padding=1), N)
    backward = micro(lambda: weight_gradient(x, w, dy, 1, 1), N)
    X, W, dY = x.contiguous(), w.contiguous(), dy.contiguous()
    row("forward, channels first", layer, dtype, N, forward, micro(lambda: F.conv2d(X, W, b, padding=1), N))
    row("dW, channels first", layer, dtype, N, backward, micro(lambda: weight_gradient(X, W, dY, 1, 1), N))

    packed = mkldnn._reorder_convolution_weight(w, [1, 1], [1, 1], [1, 1], 1, list(x.shape))
    how = ([1, 1], [1, 1], [1, 1], 1)
    rectified = micro(lambda: F.relu(F.conv2d(x, w, b, padding=1), inplace=True), N)

    def fused():
        return mkldnn._convolution_pointwise(x, packed, b, *how, "relu", [], "")

    same = difference(fused(), F.relu(y))
    row("forward with its relu inside, weights packed", layer, dtype, N, rectified, micro(fused, N), same)
    if N > 16:
        for block in (16, 64, 208):

            def blocked(block=block):
                for part in zip(x.split(block), dy.split(block), strict=True):
                    weight_gradient(part[0], w, part[1], 1, 1)

            row(f"dW, in blocks of {block} frames", layer, dtype, N, backward, micro(blocked, N))
    if before == 4:
        for channels in (8, 16):
            wide, weights = numbers(dtype, N, channels, size, size), numbers(dtype, after, channels, 3, 3)
            took = micro(lambda x=wide, w=weights: F.conv2d(x, w, b, padding=1), N)
            row(f"forward, padded to {channels} channels", layer, dtype, N, forward, took)
    if dtype is torch.float32 and N == 16 and torch._nnpack_available():
        winograd = torch._nnpack_spatial_convolution
        took, error = micro(lambda: winograd(X, W, b, 1), N), difference(winograd(X, W, b, 1), y)
        row("forward, NNPACK (Winograd)", layer, dtype, N, forward, took, error)
        blocks, weights = x.to_mkldnn(), w.to_mkldnn()
        took = micro(lambda: F.conv2d(blocks, weights, b.to_mkldnn(), padding=1), N)
        row("forward, oneDNN's own layout", layer, dtype, N, forward, took)


def space_to_depth(x, by):
    N, C, H, W = x.shape
    x = x.reshape(N, C, H // by, by, W // by, by).permute(0, 3, 5, 1, 2, 4)
    return x.reshape(N, C * by * by, H // by, W // by).contiguous(memory_format=LAST)


def of_8x8(dtype, N):
    """Rows for the first layer of the nature stem."""
    x, w, b = numbers(dtype, N, 4, 84, 84), numbers(dtype, 32, 4, 8, 8), numbers(dtype, 32)
    y = F.conv2d(x, w, b, stride=4)
    dy = torch.randn_like(y)
    forward = micro(lambda: F.conv2d(x, w, b, stride=4), N)
    backward = micro(lambda: weight_gradient(x, w, dy, 4, 0), N)
    for by in (2, 4):
        X, W, stride = space_to_depth(x, by), space_to_depth(w, by), 4 // by
        what, layer = f"space to depth by {by}", "4 to 32, 8x8, stride 4"
        error = difference(F.conv2d(X, W, b, stride=stride), y)
        took = micro(lambda X=X, W=W, stride=stride: F.conv2d(X, W, b, stride=stride), N)
        row(f"forward, {what} (turning excluded)", layer, dtype, N, forward, took, error)
        took = micro(lambda X=X, W=W, stride=stride: weight_gradient(X, W, dy, stride, 0), N)
        row(f"dW, {what}", layer, dtype, N, backward, took)


def of_fc(dtype, N):
    x, w, b = numbers(dtype, N, 3136), numbers(dtype, 256, 3136), numbers(dtype, 256)
    packed = mkldnn._reorder_linear_weight(w, N)
    error = difference(mkldnn._linear_pointwise(x, packed, b, "none", [], ""), F.linear(x, w, b))
    took = micro(lambda: mkldnn._linear_pointwise(x, packed, b, "none", [], ""), N)
    row(
        "forward, weights packed",
        "fc, 3136 to 256",
        dtype,
        N,
        micro(lambda: F.linear(x, w, b), N),
        took,
        error,
    )


prepare_process(1)
print(f"torch {torch.__version__}\n\n| what | layer | precision | frames | as it is | so | err |")
print("|---|---|---|---|---|---|---|")
with torch.no_grad():
    for dtype in (torch.float32, torch.bfloat16):
        for N in (16, 816):
            for sizes in RESIDUAL:
                of_3x3(dtype, N, *sizes)
            of_8x8(dtype, N)
        of_fc(dtype, 16)
