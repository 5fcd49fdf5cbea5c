"""RMSProp's step in C beside torch's operators, in turns, milliseconds: a table.

One core: taskset -c 0 python results/throughput/rmsprop.py
"""

import statistics
import time

import torch

from deltabeast.agents import Agent, AgentSpec
from deltabeast.agents.cpu.optimizer import fused_rmsprop_if_finite
from deltabeast.agents.rmsprop import RMSprop, rmsprop_if_finite
from deltabeast.launch.processes.machine import prepare_process

ROUNDS = 31
AGENTS = (((12,), "mlp", "lstm"), ((4, 84, 84), "nature", "lstm"), ((4, 84, 84), "nature", "rdn"))


def main():
    prepare_process(1)
    ways = {"torch": rmsprop_if_finite, "C": fused_rmsprop_if_finite}
    print("| stem | core | weights | torch, ms | C, ms | ratio |")
    print("|---|---|---|---|---|---|")
    for shape, stem, core in AGENTS:
        parameters = list(Agent(AgentSpec(shape, 6, core=core, stem=stem)).parameters())
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        optimizer = RMSprop(parameters, lr=1e-3, alpha=0.99, eps=0.01)
        times = {way: [] for way in ways}
        for _ in range(ROUNDS):
            for way, arithmetic in ways.items():
                start = time.perf_counter()
                optimizer.step_if_finite(
                    torch.tensor(True), torch.tensor(1e-3), torch.tensor(1.0), arithmetic
                )
                times[way].append((time.perf_counter() - start) * 1e3)
        before, now = (statistics.median(each) for each in times.values())
        count = sum(parameter.numel() for parameter in parameters)
        print(f"| {stem} | {core} | {count:,} | {before:.1f} | {now:.1f} | {before / now:.1f} |")


if __name__ == "__main__":
    main()
