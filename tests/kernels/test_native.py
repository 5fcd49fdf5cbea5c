"""How the C kernels come to be: built once, by the compiler at hand. Without one others take over, aloud."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from fastweight_helpers import make_reset
from fastweight_rules import RULES, make_inputs
from fastweight_rules import run as gradients

from deltabeast.kernels import chunked, dispatch, fused, native


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A machine on which nothing has been built yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    native._tried.cache_clear()
    native._library.cache_clear()
    yield tmp_path / "deltabeast"
    native._tried.cache_clear()
    native._library.cache_clear()


def run(rule: str, backend: str = "auto", dtype: torch.dtype = torch.float32) -> torch.Tensor:
    inputs = [x.to(dtype) for x in make_inputs(rule, 3, most=1)]
    y: torch.Tensor = RULES[rule](*inputs, make_reset("none", 3, 1), backend=backend)[0]
    return y


def test_built_once_a_size(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = native._build(1, threads=True)
    assert first.parent == cache and [first] == list(cache.iterdir())  # no leftovers
    os.utime(first, (1, 1))
    assert native._build(1, threads=True) == first and first.stat().st_mtime == 1
    other = native._build(2, threads=True)
    assert other != first
    monkeypatch.setenv("CC", "cc -DOTHER")
    assert native._build(1, threads=True) not in (first, other)


def test_another_processor_gets_its_own(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = native._build(1, threads=True)
    monkeypatch.setattr(native, "_processor", lambda: "another")
    assert native._build(1, threads=True) != first


@pytest.mark.parametrize(
    ("compiler", "message"),
    [
        ("no-such-compiler", r"no C compiler \(no-such-compiler\); install one"),
        ("false", r"false cannot compile native.c: exit code 1;"),
        ("cc -include no-such-header.h", r"cc cannot compile native.c: .*no-such-header"),
    ],
)
def test_without_a_compiler_the_chunk_form_takes_over(
    compiler: str, message: str, cache: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setenv("CC", compiler)
    taken = []

    def spy(*inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        taken.append(inputs)
        return chunked.delta_rule(*inputs)

    monkeypatch.setitem(dispatch._RULES["delta_rule"], "chunked", spy)
    with pytest.warns(UserWarning, match=message):
        run("delta_rule")
    assert taken
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # said once
        run("delta_rule")
    with pytest.raises(ValueError, match=f"^delta_rule: {message.removesuffix(';')}"):
        run("delta_rule", "native")


def test_a_cache_that_cannot_be_written(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match=r"^cannot write C kernels to .*: Not a directory; the PyTo"):
        run("sum_rule")


def test_no_home(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    with pytest.warns(UserWarning, match="^no home directory .* set XDG_CACHE_HOME; the PyTorch kernels"):
        run("sum_rule")


def test_what_cannot_be_loaded(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home from which nothing may be executed, for one."""
    damaged = cache.parent / "damaged.so"
    damaged.write_bytes(b"no library")
    monkeypatch.setattr(native, "_build", lambda blocks, threads: damaged)
    with pytest.warns(UserWarning, match="^cannot load C kernels: .*; the PyTorch kernels"):
        run("sum_rule")


def test_auto_takes_c_for_float32_on_cpus(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    taken = []
    right = fused.delta_rule

    def spy(*inputs: object) -> object:
        taken.append(inputs[-1])
        return right(*inputs)  # type: ignore[arg-type]

    monkeypatch.setattr(fused, "delta_rule", spy)
    run("delta_rule")
    run("delta_rule", dtype=torch.float64)
    assert taken == ["native"]


def test_what_c_cannot_take() -> None:
    with pytest.raises(ValueError, match=r"^delta_rule: the C kernels compute in float32, not torch.f"):
        run("delta_rule", "native", torch.float64)
    with pytest.raises(ValueError, match=r"^lstm: the C kernels have no LSTM"):
        run("lstm", "native")
    q, v, W = torch.zeros(1, 1, 1, 129), torch.zeros(1, 1, 1, 16), torch.zeros(1, 1, 16, 129)
    never = torch.zeros(1, 1, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"^sum_rule: .* up to 128 wide, not 129$"):
        RULES["sum_rule"](q, q, v, W, never, backend="native")
    y, _ = RULES["sum_rule"](q, q, v, W, never)  # another takes it
    assert y.shape == v.shape


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule != "lstm"])
def test_threads_change_nothing(rule: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = make_inputs(rule, 9)
    reset = make_reset("random", 9, inputs[0].shape[1])
    results = []
    for threads in (1, 2, 5):
        monkeypatch.setattr(native, "_threads", lambda W, steps, threads=threads: threads)
        results.append(gradients(rule, inputs, reset, "native", torch.float32))
    for other in results[1:]:
        assert all(torch.equal(other[name], value) for name, value in results[0].items())


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="not Linux")
def test_threads_are_those_of_pytorch(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second OpenMP beside PyTorch's would fight with it for the cores."""

    def openmps() -> set[str]:
        lines = Path("/proc/self/maps").read_text().splitlines()
        return {line.split()[-1] for line in lines if re.search(r"lib(g|i)?omp", line)}

    before = openmps()
    monkeypatch.setattr(native, "_threads", lambda W, steps: 2)
    run("delta_rule", "native")
    assert openmps() == before
