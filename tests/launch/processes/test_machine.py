"""What training asks of the machine."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest
import torch
from training_process import said_by

from deltabeast.launch.processes import machine
from deltabeast.launch.processes.machine import autocast_dtype, lacks_memory, resolve_device

CPU, CUDA = torch.device("cpu"), torch.device("cuda")

_FAULTS = """
import resource, torch
from deltabeast.launch.processes.machine import keep_freed_memory
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        torch.ones(16 << 20)  # 64 MiB, freed at once
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
default = faults()
assert keep_freed_memory()
for _ in range(4):  # until the heap has room
    kept = faults()
print(default, kept)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators keep memory their own way")
def test_freed_memory_is_not_faulted_in_again(tmp_path: Path) -> None:
    default, kept = map(int, said_by(_FAULTS, tmp_path / "faults").split())
    assert kept < 0.3 * default, (default, kept)


def test_float32_is_no_tf32() -> None:
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = True
    threads = torch.get_num_threads()
    machine.prepare_process(threads)
    assert not torch.backends.cudnn.allow_tf32 and not torch.backends.cuda.matmul.allow_tf32
    assert torch.backends.cudnn.conv.fp32_precision != "tf32"
    assert torch.get_num_threads() == threads


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_convolutions_on_a_gpu_have_the_digits_of_float32(seed: int) -> None:
    machine.prepare_process()
    x, weight = torch.randn(8, 32, 21, 21), torch.randn(32, 32, 3, 3)
    expected = torch.conv2d(x.double(), weight.double(), padding=1)
    y = torch.conv2d(x.cuda(), weight.cuda(), padding=1).cpu().double()
    assert (y - expected).abs().max() < 1e-4  # TF32 is off by 1e-2


def test_auto_device(monkeypatch: pytest.MonkeyPatch) -> None:
    for there, kind in ((False, "cpu"), (True, "cuda")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        assert resolve_device("auto").type == kind
    assert resolve_device("cpu") == CPU


def test_a_device_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for name in ("cuda", "cuda:0"):
        with pytest.raises(ValueError, match=f"--device {name}: torch sees no GPU here"):
            resolve_device(name)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    current: list[int] = []
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    assert resolve_device("cuda:1") == torch.device("cuda:1")
    assert current == [1], "a graph is captured on the current device, whatever its tensors are on"
    with pytest.raises(ValueError, match="cuda:2: torch sees 2 GPUs"):
        resolve_device("cuda:2")


def test_numbers_below_the_normal_ones_are_zero_on_every_thread(tmp_path: Path) -> None:
    """Alone in a process, whose threads begin with its first large operation."""
    code = """
import torch
from deltabeast.launch.processes.machine import prepare_process
assert torch.tensor(1e-30) * 1e-10 > 0
prepare_process(2)
small = torch.full((1 << 22,), 1e-30)
assert torch.get_num_threads() == 2 and not (small * 1e-10).any() and (small * 1e-7).all()
"""
    said_by(code, tmp_path / "said")


def test_only_what_says_so_lacks_memory() -> None:
    assert lacks_memory(MemoryError()) and lacks_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert lacks_memory(RuntimeError("unable to mmap 16 bytes: Cannot allocate memory (12)"))
    assert not lacks_memory(RuntimeError("could not allocate a port")) and not lacks_memory(None)


@pytest.mark.parametrize("name", ["gpu", "tpu", "", "cpu:0", "cuda:x", "mps", "meta"])
def test_other_devices_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="choose auto, cpu or cuda"):
        resolve_device(name)


def test_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    for device in (CPU, CUDA):
        assert autocast_dtype("fp32", device, "nature") is None
        assert autocast_dtype("bf16", device, "nature") == torch.bfloat16
        for has, dtype in ((True, torch.bfloat16), (False, None)):
            monkeypatch.setattr(machine, "_has_bf16", lambda device, has=has: has)
            assert autocast_dtype("auto", device, "nature") == dtype


def test_automatic_precision_asks_the_right_hardware(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: including_emulation)
    assert autocast_dtype("auto", CPU, "nature") == torch.bfloat16
    assert autocast_dtype("auto", CPU, "mlp") is None
    assert autocast_dtype("auto", CUDA, "nature") is None, "emulated bf16 is no gain"
