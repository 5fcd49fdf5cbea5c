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

from deltabeast.kernels.pytorch.stepwise import SPACING
from deltabeast.kernels.triton import delta, delta_lstm, gated, generalised, gru, lstm, recurrent
from deltabeast.kernels.triton.launch import constants as constants_of

CAPABILITIES = (80, 90)
SIZES = [int(size) for size in sys.argv[1:]] or [16, 32, 60, 64]


def kernels() -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Name, kernel and its constants."""
    for size in SIZES:
        matrix, three = (constants_of(torch.empty(1, heads, size, size), 1) for heads in (1, 3))
        for with_delta in (False, True):
            rule = "delta_rule" if with_delta else "sum_rule"
            constants = {**matrix, "ERASES": with_delta}
            yield f"{rule} forward {size}", delta.forward_kernel, {**constants, "KEEP": True}
            yield f"{rule} backward {size}", delta.backward_kernel, constants
        for erases in (False, True):
            rule = "gated_delta" if erases else "gated_sum"
            constants = {**matrix, "ERASES": erases, "SPACING": SPACING}
            yield f"{rule} forward {size}", gated.gated_forward_kernel, {**constants, "KEEP": True}
            yield f"{rule} backward {size}", gated.gated_backward_kernel, constants
        for writes in (1, 2):
            constants = {**matrix, "WRITES": writes, "SPACING": SPACING}
            forward, backward = generalised.forward_kernel, generalised.backward_kernel
            yield f"generalised_delta {writes} forward {size}", forward, {**constants, "KEEP": True}
            yield f"generalised_delta {writes} backward {size}", backward, constants
        constants = {**matrix, "SPACING": SPACING}
        yield f"momentum_delta forward {size}", gated.momentum_forward_kernel, {**constants, "KEEP": True}
        yield f"momentum_delta backward {size}", gated.momentum_backward_kernel, constants
        for rule in ("delta_rnn", "recurrent_delta"):
            forward = getattr(recurrent, f"{rule}_forward_kernel")
            backward = getattr(recurrent, f"{rule}_backward_kernel")
            constants = {**matrix, "SPACING": SPACING}
            yield f"{rule} forward {size}", forward, {**constants, "KEEP": True}
            yield f"{rule} backward {size}", backward, constants
        for variant in map(delta_lstm.VARIANTS.index, "AC"):  # which have all that is there
            constants = {**three, "VARIANT": variant, "SPACING": SPACING}
            yield (
                f"delta_lstm {variant} forward {size}",
                delta_lstm.forward_kernel,
                {**constants, "KEEP": True},
            )
            yield f"delta_lstm {variant} backward {size}", delta_lstm.backward_kernel, constants
    yield "lstm forward", lstm.forward_kernel, {"BLOCK": lstm.BLOCK}
    yield "lstm backward", lstm.backward_kernel, {"BLOCK": lstm.BLOCK}
    yield "gru forward", gru.forward_kernel, {"BLOCK": gru.BLOCK}
    yield "gru backward", gru.backward_kernel, {"BLOCK": gru.BLOCK}


def signature(kernel: Any, constants: dict[str, Any]) -> dict[str, str]:
    def kind(name: str) -> str:
        if name in constants:
            return "constexpr"
        if name in ("T", "N") or re.search(r"_[tbh]$", name):
            return "i32"
        return "*i1" if name.startswith("reset") else "*fp32"

    return {name: kind(name) for name in kernel.arg_names}


def measure(kernel: Any, constants: dict[str, Any], capability: int) -> tuple[int, int]:
    """Registers a thread, and bytes of them that are kept in memory."""
    options = {name: x for name, x in constants.items() if name in ("num_warps", "num_stages")}
    constants = {name: x for name, x in constants.items() if name in kernel.arg_names}
    source = ASTSource(fn=kernel, signature=signature(kernel, constants), constexprs=constants)
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    # What Triton made, not its PTX assembled anew: the versions of both need not fit each other.
    cuobjdump = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as cubin:
        cubin.write(compiled.asm["cubin"])
        cubin.flush()
        command = [cuobjdump, "--dump-resource-usage", cubin.name]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", told)
    assert found is not None, told
    return int(found[1]), int(found[2])


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
