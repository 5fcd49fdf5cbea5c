"""This checkout, another one and Sample Factory, tuned, in turns on Pong with an LSTM; prints a table.

    python in_turns.py /path/of/other/.venv/bin/deltabeast SAMPLE_FACTORY_PYTHON [ROUNDS [NETWORK]]

Sample Factory runs in both modes of `peers.py`, which has what it needs, and the faster one counts. Where the
processor has bfloat16, this checkout trains in it, too. Nothing else may run: a machine's speed drifts, so
that only what ran within minutes compares.
"""

import math
import statistics
import sys
from pathlib import Path

import against
import peers

NETWORKS = {"residual": ("resnet_impala", 80.0), "nature": ("convnet_atari", 25.0)}
"""network: its name in Sample Factory, and the seconds it is timed there, where whole updates alone count"""
MODES = {"serial": (peers.SERIAL, 2), "asynchronous": (peers.ASYNCHRONOUS, 1)}


def main(other, python, rounds="3", *networks):
    ours = str(Path(sys.executable).parent / "deltabeast")
    bf16 = "avx512_bf16" in Path("/proc/cpuinfo").read_text()
    print("| network | round | Sample Factory | before | now | bf16 ", end="")
    print("| before / peer | now / peer | bf16 / peer | now / before |")
    print("|---" * 10 + "|")
    rows = {name: options for name, options, _ in against.rows()}
    for network in networks or NETWORKS:
        fp32, half = rows[f"{network} fp32 lstm"], rows[f"{network} bf16 lstm"]
        encoder, seconds = NETWORKS[network]
        ratios = []
        for number in range(int(rounds)):
            peer = max(
                peers.sample_factory(python, encoder, mode, threads, True, seconds)
                for mode, threads in MODES.values()
            )
            before, now = (against.train(one, fp32, 2)[0] for one in (other, ours))
            ours_bf16 = against.train(ours, half, 2)[0] if bf16 else math.nan
            ratios.append((before / peer, now / peer, ours_bf16 / peer, now / before))
            row = " | ".join(f"{ratio:.2f}" for ratio in ratios[-1])
            speeds = f"{peer:,.0f} | {before:,.0f} | {now:,.0f} | {ours_bf16:,.0f}"
            print(f"| {network} | {number + 1} | {speeds} | {row} |", flush=True)
        middle = " | ".join(f"{statistics.median(column):.2f}" for column in zip(*ratios, strict=True))
        print(f"| {network} | median | | | | | {middle} |", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
