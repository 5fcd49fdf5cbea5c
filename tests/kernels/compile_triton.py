"""Compile every Triton kernel for real GPUs, on a machine that has none: the interpreter takes more than the
compiler does.

    python tests/kernels/compile_triton.py

Prints what each kernel, head size and architecture takes; fails if one cannot be compiled.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from deltabeast.kernels import triton_delta, triton_recurrent
from deltabeast.kernels.stepwise import SPACING
from deltabeast.kernels.triton_launch import blocks

KERNELS = {
    "sum forward": (triton_delta.forward_kernel, {"DELTA": False, "KEEP": True}),
    "sum backward": (triton_delta.backward_kernel, {"DELTA": False}),
    "delta forward": (triton_delta.forward_kernel, {"DELTA": True, "KEEP": True}),
    "delta backward": (triton_delta.backward_kernel, {"DELTA": True}),
    "delta_rnn forward": (triton_recurrent.rnn_forward_kernel, {"KEEP": True, "SPACING": SPACING}),
    "delta_rnn backward": (triton_recurrent.rnn_backward_kernel, {"SPACING": SPACING}),
    "rdn forward": (triton_recurrent.rdn_forward_kernel, {"KEEP": True, "SPACING": SPACING}),
    "rdn backward": (triton_recurrent.rdn_backward_kernel, {"SPACING": SPACING}),
}
SIZES = (16, 32, 60, 64)
ARCHITECTURES = (80, 90)


def compile_kernel(name: str, size: int, architecture: int) -> tuple[int, int]:
    """Registers a thread, and bytes of stack."""
    kernel, constants = KERNELS[name]
    options = blocks(torch.empty(1, 1, size, size))
    num_warps = options.pop("num_warps")
    constants = {**constants, **options}
    signature = {argument: _type(argument, constants) for argument in kernel.arg_names}
    source = ASTSource(kernel, signature, {n: constants[n] for n in kernel.arg_names if n in constants})
    compiled = triton.compile(
        source, target=GPUTarget("cuda", architecture, 32), options={"num_warps": num_warps}
    )
    return _resources(compiled.asm["cubin"])


def _type(argument: str, constants: dict[str, Any]) -> str:
    if argument in constants:
        return "constexpr"
    if argument == "T" or re.fullmatch(r"\w+_[tbh]", argument):
        return "i32"
    return "*i1" if argument == "reset" else "*fp32"


def _resources(cubin: bytes) -> tuple[int, int]:
    """Registers a thread, and bytes of local memory: what did not fit into them."""
    cuobjdump = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [cuobjdump, "--dump-resource-usage", file.name]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", said)
    assert found is not None, said
    return int(found[1]), int(found[2])


def compile_all(sizes: tuple[int, ...], architectures: tuple[int, ...]) -> Iterator[str]:
    for architecture in architectures:
        for name in KERNELS:
            for size in sizes:
                registers, stack = compile_kernel(name, size, architecture)
                yield f"sm_{architecture} {name:<18} {size:>3}: {registers} registers, {stack} bytes of stack"


if __name__ == "__main__":
    for line in compile_all(SIZES, ARCHITECTURES):
        print(line, flush=True)
