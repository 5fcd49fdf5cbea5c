"""Does torch.compile pay on this CPU? python compiled.py: the residual stem as it is, and compiled, in turns.

One process on one core, as each of those that train: 816 frames forward and backward (16 environments, 50
steps and one frame more), and 50 times 16 frames forward.
"""

import statistics
import time

import torch

from deltabeast.agents.stems import make_stem
from deltabeast.launch.processes.machine import prepare_process

ROUNDS = 5


def measure(work, *arguments):
    start = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - start


def learn(stem, frames, dtype):
    with torch.autocast("cpu", dtype, enabled=dtype is not None):
        features = stem(frames)
    features.square().mean().backward()


def act(stem, frames, dtype):
    with torch.no_grad(), torch.autocast("cpu", dtype, enabled=dtype is not None):
        for _ in range(50):
            stem(frames[:16])


prepare_process()
torch.set_num_threads(1)
frames = torch.randint(0, 256, (816, 4, 84, 84), dtype=torch.uint8)
print(f"torch {torch.__version__}\n")
print("| precision | what | as it is, ms | compiled, ms | ratio |\n|---|---|---|---|---|")
for dtype in (None, torch.bfloat16):
    for work in (learn, act):
        plain = make_stem("residual", (4, 84, 84), 256)
        stems = plain, torch.compile(plain, dynamic=False)
        for stem in 2 * stems:  # compiles, and has memory ready
            work(stem, frames, dtype)
        times = [[measure(work, stem, frames, dtype) for stem in stems] for _ in range(ROUNDS)]
        a, b = (1000 * statistics.median(column) for column in zip(*times, strict=True))
        print(f"| {'bf16' if dtype else 'fp32'} | {work.__name__} | {a:,.0f} | {b:,.0f} | {a / b:.2f} |")
