"""Where a stem's time goes, beside what one core can do: python roofline.py > roofline.md

Every operation alone, forward, weight gradient and input gradient apart, at the batches of a training
process: 16 frames when it acts (forward only), 816 = 51 x 16 when it learns. Then their sum beside the whole
stem as the agent runs it.

The core's best is a large product and a copy as large as the batch's largest image, measured in the same run.
An operation's bound is the longer of its arithmetic and its compulsory traffic (inputs read, outputs written)
at those speeds; it can be beaten where data lie in a nearer cache than the copy's, and by minimal filtering,
whose products are counted as direct ones. Times are CPU time of one
thread, medians of five. All numbers go into roofline.json. Three minutes, 4 GB.
"""

import json
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from deltabeast.agents.stems import make_stem
from deltabeast.kernels.native import images, strided, winograd
from deltabeast.launch.bench.command import hardware
from deltabeast.launch.processes.machine import prepare_process
from deltabeast.launch.runs.directory import versions

FEATURES = 256
ROUNDS = 5
NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16"}
aten = torch.ops.aten

ACTING, LEARNING = 16, 816
# Operation, how many in the stem, sizes: channels and height; of a convolution channels in and out, height,
# kernel, stride, padding (of conv_relu none).
STEMS = {
    "nature": [
        ("bytes to numbers", 1, (4, 84)),
        ("conv_relu", 1, (4, 32, 84, 8, 4)),
        ("conv_relu", 1, (32, 64, 20, 4, 2)),
        ("conv_relu", 1, (64, 64, 9, 3, 1)),
        ("flatten", 1, (64, 7)),
        ("fc", 1, (64 * 7 * 7,)),
        ("LayerNorm", 1, ()),
    ],
    "residual": [
        ("bytes to numbers", 1, (4, 84)),
        *(
            operation
            for before, after, size in ((4, 16, 84), (16, 32, 42), (32, 32, 21))
            for half in [(size + 1) // 2]
            for operation in (
                ("convolution", 1, (before, after, size, 3, 1, 1))
                if before == 4
                else ("conv3x3", 1, (before, after, size)),
                ("max_pool", 1, (after, size)),
                ("residual block", 2, (after, half)),
            )
        ),
        ("relu", 1, (32, 11)),
        ("flatten", 1, (32, 11)),
        ("fc", 1, (32 * 11 * 11,)),
    ],
}


@dataclass
class Result:
    """One operation, all `count` of it together."""

    operation: str
    count: int
    direction: str
    microseconds_per_frame: float
    gflops: float
    gigabytes_per_second: float
    share_of_best: float


@dataclass
class Work:
    call: Callable[[], object]
    moved: list[Tensor]
    """Inputs and outputs."""
    flops: float = 0


def seconds(call: Callable[[], object]) -> float:
    """CPU time of one call: the median of ROUNDS, each of at least 20 ms."""
    call()
    start = time.process_time()
    call()
    repeats = math.ceil(0.02 / max(1e-6, time.process_time() - start))
    rounds = []
    for _ in range(ROUNDS):
        start = time.process_time()
        for _ in range(repeats):
            call()
        rounds.append((time.process_time() - start) / repeats)
    return statistics.median(rounds)


def numbers(dtype: torch.dtype, *shape: int) -> Tensor:
    x = torch.randn(shape).to(dtype)
    return x.to(memory_format=torch.channels_last) if len(shape) == 4 else x


def convolution(N, dtype, before, after, size, kernel, stride, padding):
    x, w, b = (
        numbers(dtype, *s) for s in ((N, before, size, size), (after, before, kernel, kernel), (after,))
    )
    how = ([stride] * 2, [padding] * 2, [1, 1], False, [0, 0], 1)
    y = aten.convolution(x, w, b, *how)
    dy, flops = numbers(dtype, *y.shape), 2 * y.numel() * before * kernel**2

    def backward(*wanted):
        return lambda: aten.convolution_backward(dy, x, w, [after], *how, wanted)

    work = {
        "forward": Work(lambda: aten.convolution(x, w, b, *how), [x, w, y], flops),
        "weight gradient": Work(backward(False, True, True), [x, dy, w], flops),
    }
    if before != 4:  # the image needs no gradient
        work["input gradient"] = Work(backward(True, False, False), [dy, w, x], flops)
    return work


def fc(N, dtype, size):
    x, w, b, dy = (numbers(dtype, *s) for s in ((N, size), (FEATURES, size), (FEATURES,), (N, FEATURES)))
    flops = 2 * N * size * FEATURES
    return {
        "forward": Work(lambda: F.linear(x, w, b), [x, w, dy], flops),
        "weight gradient": Work(lambda: (dy.mT @ x, dy.sum(0)), [x, dy, w], flops),
        "input gradient": Work(lambda: dy @ w, [x, dy, w], flops),
    }


def norm(N, dtype):
    x, dy = (numbers(dtype, N, FEATURES) for _ in range(2))
    w, b = torch.ones(FEATURES), torch.zeros(FEATURES)
    y, mean, deviation = aten.native_layer_norm(x, [FEATURES], w, b, 1e-5)

    def backward(*wanted):
        return lambda: aten.native_layer_norm_backward(dy, x, [FEATURES], mean, deviation, w, b, wanted)

    return {
        "forward": Work(lambda: F.layer_norm(x, [FEATURES], w, b), [x, y]),
        "weight gradient": Work(backward(False, True, True), [x, dy]),
        "input gradient": Work(backward(True, False, False), [x, dy, y]),
    }


def scale(N, dtype, channels, size):
    frame = torch.randint(0, 256, (N, channels, size, size), dtype=torch.uint8)
    return {"forward": Work(lambda: images.scaled(frame, dtype), [frame, images.scaled(frame, dtype)])}


def conv3x3(N, dtype, before, after, size):
    x, dy = (numbers(dtype, N, channels, size, size) for channels in (before, after))
    w, b = numbers(torch.float32, after, before, 3, 3), torch.zeros(after)
    flops = 2 * dy.numel() * before * 9
    return {
        "forward": Work(lambda: winograd._conv3x3_in_c(x, w, b), [x, dy], flops),
        "gradients": Work(lambda: winograd._conv3x3_backward(dy, x, w), [x, dy, x], 2 * flops),
    }


def conv_relu(N, dtype, before, after, size, kernel, stride):
    x, w, b = (
        numbers(dtype, *s) for s in ((N, before, size, size), (after, before, kernel, kernel), (after,))
    )
    # The image needs no gradient.
    leaves = [t.requires_grad_() for t in ((w, b) if before == 4 else (x, w, b))]
    with torch.enable_grad():
        y = strided.conv_relu(x, w, b, stride)
    dy, flops = numbers(dtype, *y.shape), 2 * y.numel() * before * kernel**2
    return {
        "forward": Work(lambda: strided.conv_relu(x, w, b, stride), [x, w, y], flops),
        "gradients": Work(
            lambda: torch.autograd.grad(y, leaves, dy, retain_graph=True),
            [x, y, dy, w, *leaves[:-2]],
            flops * (len(leaves) - 1),
        ),
    }


def residual_block(N, dtype, channels, size):
    x, h = (numbers(dtype, N, channels, size, size) for _ in range(2))
    w, b = numbers(torch.float32, channels, channels, 3, 3), torch.zeros(channels)
    flops = 2 * 2 * x.numel() * channels * 9
    return {
        "forward": Work(lambda: winograd._residual_block_in_c(x, w, b, w, b), [x, h, x], flops),
        "gradients": Work(lambda: winograd._residual_block_backward(x, x, h, w, w), [x, x, h, x], 2 * flops),
    }


def max_pool(N, dtype, channels, size):
    x = numbers(dtype, N, channels, size, size)
    y, which = images._max_pool_in_c(x, True)
    keeps = N != ACTING
    return {
        "forward": Work(lambda: images._max_pool_in_c(x, keeps), [x, y, *([which] if keeps else [])]),
        "input gradient": Work(lambda: images._max_pool_backward(y, which, size, size), [y, which, x]),
    }


def relu(N, dtype, channels, size):
    x = numbers(dtype, N, channels, size, size)
    return {
        "forward": Work(lambda: F.relu(x, inplace=True), [x, x]),
        "input gradient": Work(lambda: aten.threshold_backward(x, x, 0), [x, x, x]),
    }


def flatten(N, dtype, channels, size):
    x = numbers(dtype, N, channels, size, size)
    y = x.flatten(1)
    back = y.view(x.shape)
    return {
        "forward": Work(lambda: x.flatten(1), [x, y]),
        "input gradient": Work(lambda: back.contiguous(memory_format=torch.channels_last), [x, y]),
    }


MAKE = {
    "bytes to numbers": scale,
    "convolution": convolution,
    "relu": relu,
    "conv_relu": conv_relu,
    "conv3x3": conv3x3,
    "max_pool": max_pool,
    "residual block": residual_block,
    "flatten": flatten,
    "fc": fc,
    "LayerNorm": norm,
}


def best(dtype: torch.dtype, N: int) -> tuple[float, float]:
    """FLOP/s of a large product; bytes a second read and written by a copy."""
    a, b = numbers(dtype, 2048, 2048), numbers(dtype, 2048, 2048)
    x = torch.zeros(N, 16, 84, 84, dtype=dtype)
    y = torch.empty_like(x)
    return 2 * 2048**3 / seconds(lambda: a @ b), 2 * x.nbytes / seconds(lambda: y.copy_(x))


def operations(stem: str, dtype: torch.dtype, N: int, flops: float, bandwidth: float) -> list[Result]:
    results = []
    for name, count, sizes in STEMS[stem]:
        for direction, work in MAKE[name](N, dtype, *sizes).items():
            if N == ACTING and direction != "forward":
                continue
            took = seconds(work.call)
            moved = sum(x.nbytes for x in work.moved)
            bound = max(work.flops / flops, moved / bandwidth)
            label = " ".join([name, "x".join(map(str, sizes))]).strip()
            micro = 1e6 * count * took / N
            results.append(
                Result(
                    label, count, direction, micro, work.flops / took / 1e9, moved / took / 1e9, bound / took
                )
            )
    return results


def whole(name: str, dtype: torch.dtype, N: int) -> dict[str, float]:
    """Microseconds a frame of the stem as the agent runs it."""
    stem = make_stem(name, (4, 84, 84), FEATURES)
    frames = torch.randint(0, 256, (N, 4, 84, 84), dtype=torch.uint8)
    autocast = torch.autocast("cpu", dtype, enabled=dtype is torch.bfloat16)
    if N == ACTING:
        with torch.no_grad(), torch.autocast("cpu", enabled=False), autocast:
            return {"forward": 1e6 * seconds(lambda: stem(frames)) / N}

    def forward() -> Tensor:
        with autocast:
            return stem(frames)

    def both() -> None:
        forward().backward(gradient)

    gradient = torch.randn(N, FEATURES)
    forward_alone, together = seconds(forward), seconds(both)
    return {"forward": 1e6 * forward_alone / N, "backward": 1e6 * (together - forward_alone) / N}


def measure(stem: str, dtype: torch.dtype, N: int) -> dict:
    flops, bandwidth = best(dtype, N)
    with torch.no_grad():
        rows = operations(stem, dtype, N, flops, bandwidth)
    sums = {
        "forward": sum(row.microseconds_per_frame for row in rows if row.direction == "forward"),
        "backward": sum(row.microseconds_per_frame for row in rows if row.direction != "forward"),
    }
    return {
        "stem": stem,
        "precision": NAMES[dtype],
        "frames": N,
        "best_gflops": flops / 1e9,
        "best_gigabytes_per_second": bandwidth / 1e9,
        "operations": [asdict(row) for row in rows],
        "sum": sums,
        "whole": whole(stem, dtype, N),
    }


def show(result: dict) -> None:
    what = "acting" if result["frames"] == ACTING else "learning"
    print(f"\n## {result['stem']}, {result['precision']}, {what}: {result['frames']} frames\n")
    print(f"Best: {result['best_gflops']:.0f} GFLOP/s, {result['best_gigabytes_per_second']:.0f} GB/s.\n")
    print("| operation | times | direction | us a frame | GFLOP/s | GB/s | of the best |")
    print("|---|---|---|---|---|---|---|")
    for row in result["operations"]:
        name, count, direction, micro, gflops, gigabytes, share = row.values()
        print(
            f"| {name} | {count} | {direction} | {micro:.1f} | {gflops:.0f} | {gigabytes:.1f} | {share:.0%} |"
        )
    for direction, took in result["whole"].items():
        added = result["sum"][direction]
        print(
            f"| **all, {direction}** | | | {added:.0f}; the stem itself {took:.0f} | | | {added / took:.0%} |"
        )


def summarise(results: list[dict]) -> None:
    """Print, in us a frame: bound and time of what multiplies, the rest, their sum, the whole stem."""
    print("\n## In short\n")
    print("| stem | precision | frames | products' bound | products | the rest | sum | whole stem |")
    print("|---|---|---|---|---|---|---|---|")
    for result in results:
        products = [row for row in result["operations"] if row["gflops"]]
        bound = sum(row["share_of_best"] * row["microseconds_per_frame"] for row in products)
        took = sum(row["microseconds_per_frame"] for row in products)
        total, whole = (sum(result[key].values()) for key in ("sum", "whole"))
        numbers = " | ".join(f"{x:,.0f}" for x in (bound, took, total - took, total, whole))
        print(f"| {result['stem']} | {result['precision']} | {result['frames']} | {numbers} |")


def main() -> None:
    prepare_process(1)
    dtypes = [torch.float32, *([torch.bfloat16] if torch.cpu._is_avx512_bf16_supported() else [])]
    results = []
    for stem in STEMS:
        for dtype in dtypes:
            for N in (ACTING, LEARNING):
                results.append(measure(stem, dtype, N))
                show(results[-1])
    summarise(results)
    content = {"hardware": hardware(), "versions": versions(), "threads": 1, "results": results}
    Path(__file__).with_suffix(".json").write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
