"""Compiles every Triton kernel for GPUs, without one: the interpreter takes what the compiler refuses.

    python tests/kernels/compile_triton.py [sizes]

Needs Triton, no GPU. Prints registers and spills of each kernel, exits 1 if one spills at d <= 32.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.pop("TRITON_INTERPRET", None)  # before Triton is imported

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from deltabeast.kernels import triton_delta, triton_lstm, triton_recurrent
from deltabeast.kernels.stepwise import SPACING
from deltabeast.kernels.triton_launch import blocks

CAPABILITIES = (80, 90)
SIZES = [int(size) for size in sys.argv[1:]] or [16, 32, 60, 64]


def kernels() -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Name, kernel and its constants."""
    for size in SIZES:
        matrix = blocks(torch.empty(size, size))
        for delta in (False, True):
            rule = "delta_rule" if delta else "sum_rule"
            constants = {**matrix, "DELTA": delta}
            yield f"{rule} forward {size}", triton_delta.forward_kernel, {**constants, "KEEP": True}
            yield f"{rule} backward {size}", triton_delta.backward_kernel, constants
        for rule in ("delta_rnn", "recurrent_delta"):
            forward = getattr(triton_recurrent, f"{rule}_forward_kernel")
            backward = getattr(triton_recurrent, f"{rule}_backward_kernel")
            constants = {**matrix, "SPACING": SPACING}
            yield f"{rule} forward {size}", forward, {**constants, "KEEP": True}
            yield f"{rule} backward {size}", backward, constants
    yield "lstm forward", triton_lstm.forward_kernel, {"BLOCK": triton_lstm.BLOCK}
    yield "lstm backward", triton_lstm.backward_kernel, {"BLOCK": triton_lstm.BLOCK}


def signature(kernel: Any, constants: dict[str, Any]) -> dict[str, str]:
    def kind(name: str) -> str:
        if name in constants:
            return "constexpr"
        if name in ("T", "N") or re.search(r"_[tbh]$", name):
            return "i32"
        return "*i1" if name.startswith("reset") else "*fp32"

    return {name: kind(name) for name in kernel.arg_names}


def measure(kernel: Any, constants: dict[str, Any], capability: int) -> tuple[int, int]:
    """Registers a thread, and bytes of them spilled to memory and read back."""
    constants = dict(constants)
    options = {name: constants.pop(name) for name in ("num_warps", "num_stages") if name in constants}
    source = ASTSource(fn=kernel, signature=signature(kernel, constants), constexprs=constants)
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    assemblers = sorted(Path(triton.__file__).parent.glob("backends/nvidia/bin/ptxas*"))
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as ptx:
        ptx.write(compiled.asm["ptx"])
        ptx.flush()
        arch = re.search(r"\.target (\w+)", compiled.asm["ptx"])[1]  # type: ignore[index]
        for ptxas in assemblers:  # Triton brings several; not each takes each architecture
            command = [ptxas, "-v", f"-arch={arch}", ptx.name, "-o", os.devnull]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                break
    told = done.stderr
    spilled = sum(int(n) for n in re.findall(r"(\d+) bytes spill", told))
    return int(re.search(r"Used (\d+) registers", told)[1]), spilled  # type: ignore[index]


def main() -> int:
    broken = 0
    for name, kernel, constants in kernels():
        for capability in CAPABILITIES:
            registers, spilled = measure(kernel, constants, capability)
            # Some versions of ptxas give up a few bytes so that more programs fit a multiprocessor.
            broken += spilled > 64 and name.endswith((" 16", " 32"))
            print(f"sm_{capability} {name:26} {registers:3} registers, {spilled} bytes spilled", flush=True)
    return broken > 0


if __name__ == "__main__":
    raise SystemExit(main())
