"""How C comes to be: built once, by the compiler at hand. Without one others take over, aloud."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from fastweight_helpers import make_reset
from fastweight_rules import RULES, make_inputs

from deltabeast.kernels import chunked, compiling, dispatch


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A machine on which nothing has been built yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    forget()
    yield tmp_path / "deltabeast"
    forget()


def forget() -> None:
    """As another process begins."""
    for function in (compiling.problem, compiling.library, compiling._warn):
        function.cache_clear()


def build(define: str) -> Path:
    return compiling._build("native.c", define, threads=True)


def run(rule: str, backend: str = "auto") -> torch.Tensor:
    inputs = [x.float() for x in make_inputs(rule, 3, most=1)]
    y: torch.Tensor = RULES[rule](*inputs, make_reset("none", 3, 1), backend=backend)[0]
    return y


def test_built_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = build("N=1")
    assert first.parent == cache and [first] == list(cache.iterdir())  # no leftovers
    os.utime(first, (1, 1))
    assert build("N=1") == first and first.stat().st_mtime == 1
    other = build("N=2")
    assert other != first
    monkeypatch.setenv("CC", "cc -DOTHER")
    assert build("N=1") not in (first, other)


def test_another_processor_gets_its_own(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = build("N=1")
    monkeypatch.setattr(compiling, "_processor", lambda: "another")
    assert build("N=1") != first


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


def test_each_head_size_is_tried(cache: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """What was built before the compiler went is kept; a size that was not goes to PyTorch."""

    def run(size: int, backend: str = "auto") -> None:
        inputs = [x.float() for x in make_inputs("delta_rule", 3, most=1, sizes=(size,))]
        RULES["delta_rule"](*inputs, make_reset("none", 3, 1), backend=backend)

    run(32)
    assert len(list(cache.iterdir())) == 1  # and no other size
    forget()
    monkeypatch.setenv("PATH", str(cache))
    run(32, "native")
    with pytest.warns(UserWarning, match="^no C compiler .*; the PyTorch kernels"):
        run(40)
    with pytest.raises(ValueError, match=r"^delta_rule: no C compiler \(cc\)"):
        run(40, "native")
    assert "native" in dispatch.backends(torch.device("cpu"), 32)["delta_rule"]
    assert "native" not in dispatch.backends(torch.device("cpu"), 40)["delta_rule"]


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
    monkeypatch.setattr(compiling, "_build", lambda source, define, threads: damaged)
    with pytest.warns(UserWarning, match="^cannot load C kernels: .*; the PyTorch kernels"):
        run("sum_rule")
