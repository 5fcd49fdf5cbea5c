"""Times the rules of fast weights in C in turns, forward and backward, as ratios to the delta rule.

    python results/kernels/in_turns.py [ROUNDS]

T = 50 steps, B = 32 rows, H = 4 heads of 32 x 32, 2% resets, every input and output with a gradient. A round
times each rule once; the ratio is the median over rounds. `momentum_delta` is timed without decay, too: so
its core has it.
"""

import statistics
import sys
import time

import torch

from deltabeast.kernels import rules
from deltabeast.launch.processes.machine import prepare_process

SIZES = {"T": 50, "B": 32, "H": 4, "K": 32, "V": 32}
WARM_UP = 5


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 150
    prepare_process()
    generator = torch.Generator().manual_seed(1)
    reset = torch.rand(SIZES["T"], SIZES["B"], generator=generator) < 0.02
    jobs = {}
    for name in (
        "delta_rule",
        "sum_rule",
        "gated_sum",
        "gated_delta",
        "momentum_delta",
        "delta_rnn",
        "recurrent_delta",
    ):
        rule = rules.RULES[name]
        jobs[name] = rule, [x.requires_grad_() for x in rule.random_inputs(SIZES, generator)]
    rule, given = jobs["momentum_delta"]
    names = rule.shapes.names[:-1]
    jobs["momentum_delta, no decay"] = (
        rule,
        [
            torch.ones_like(x).requires_grad_() if name == "decay" else x
            for name, x in zip(names, given, strict=True)
        ],
    )
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(WARM_UP + rounds):
        for name, (rule, given) in jobs.items():
            begin = time.perf_counter()
            outputs = rule(*given, reset, backend="native")
            torch.autograd.grad(outputs, given, [torch.ones_like(out) for out in outputs])
            seconds[name].append(time.perf_counter() - begin)
    for name, every in seconds.items():
        kept, delta = every[WARM_UP:], seconds["delta_rule"][WARM_UP:]
        ratio = statistics.median(a / b for a, b in zip(kept, delta, strict=True))
        print(f"{name}: {1000 * statistics.median(kept):.2f} ms, {ratio:.2f} times the delta rule")


if __name__ == "__main__":
    main()
