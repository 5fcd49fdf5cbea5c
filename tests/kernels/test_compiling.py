"""How C comes to be: built once, by the compiler at hand. Without one others take over, aloud."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import multiprocessing
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fastweight_helpers import make_reset
from fastweight_rules import make_inputs
from torch.nn import functional as F

from deltabeast import kernels
from deltabeast.agents.cpu.cores import functions_of
from deltabeast.cores import make_core
from deltabeast.kernels import Rule
from deltabeast.kernels.native import compiling, images
from deltabeast.kernels.pytorch import chunked
from deltabeast.kernels.rules import DELTA_RULE, SUM_RULE

IMAGE = torch.arange(-8.0, 8.0).view(1, 16, 1, 1)


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
    caches = compiling.unsupported_reason, compiling.library, compiling._warn, compiling._announce_once
    for function in caches:
        function.cache_clear()


def build(define: str = "BF16=0") -> Path:
    return compiling._build("images.c", define, threads=True)  # takes a quarter of the time of the other


def pool() -> None:
    """What needs that library."""
    assert torch.equal(images.max_pool(IMAGE), F.max_pool2d(IMAGE, 3, stride=2, padding=1))


def run(rule: Rule, backend: str = "auto") -> torch.Tensor:
    inputs = [x.float() for x in make_inputs(rule, 3, most=1)]
    y: torch.Tensor = rule(*inputs, make_reset("none", 3, 1), backend=backend)[0]
    return y


def test_built_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = build()
    assert first.parent == cache and [first] == list(cache.iterdir())  # no leftovers
    os.utime(first, (1, 1))
    assert build() == first and first.stat().st_mtime == 1
    other = build("BF16=1")
    assert other != first
    monkeypatch.setenv("CC", "cc -DOTHER")
    assert build() not in (first, other)


def test_of_two_that_need_a_library_one_builds_it(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built, compile_ = [], compiling._compile

    def slow(*arguments: Any) -> Path:
        built.append(arguments)
        time.sleep(0.2)  # in which the other looks for it, and waits
        return compile_(*arguments)

    monkeypatch.setattr(compiling, "_compile", slow)
    with ThreadPoolExecutor(2) as both:
        first, second = both.map(build, ["BF16=0", "BF16=0"])
    assert first == second and len(built) == 1


def test_without_locks_each_builds_its_own(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert build().parent == cache


def test_that_it_builds_is_said_once_before_it_does(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[tuple[str, bool]] = []
    monkeypatch.setattr(compiling, "announce", lambda text: heard.append((text, any(cache.glob("*.so")))))
    build()
    build("BF16=1")
    assert heard == [("building C kernels for this processor, once: it takes up to a minute", False)]
    forget()
    build()
    assert len(heard) == 1, "they are there"
    forget()
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: "another")
    build("BF16=2")
    assert len(heard) == 1, "a worker says nothing"


def test_another_processor_gets_its_own(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = build()
    monkeypatch.setattr(compiling, "_processor", lambda: "another")
    assert build() != first


@pytest.mark.parametrize(
    ("compiler", "message"),
    [
        ("no-such-compiler", r"no C compiler \(no-such-compiler: [^)]*\); install one"),
        ("false", r"false cannot compile rules.c: exit code 1;"),
        ("cc 'open", r"CC=cc 'open is no command: No closing quotation;"),
        (r"sh -c 'printf \"\\351\\n\" >&2; exit 1'", "sh cannot compile rules.c: .*\ufffd;"),
        ("cc -include no-such-header.h", r"cc cannot compile rules.c: .*no-such-header"),
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

    spied = replace(DELTA_RULE, chunked=spy)
    with pytest.warns(UserWarning, match=message):
        run(spied)
    assert taken
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # said once
        run(spied)
    with pytest.raises(ValueError, match=f"^delta_rule: {message.removesuffix(';')}"):
        run(DELTA_RULE, "native")


def test_each_head_size_is_tried(cache: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """What was built before the compiler went is kept; a size that was not goes to PyTorch."""

    def run(size: int, backend: str = "auto") -> None:
        inputs = [x.float() for x in make_inputs(DELTA_RULE, 3, most=1, sizes=(size,))]
        DELTA_RULE(*inputs, make_reset("none", 3, 1), backend=backend)

    run(32)
    assert len(list(cache.iterdir())) == 1  # and no other size
    forget()
    monkeypatch.setenv("PATH", str(cache))
    run(32, "native")
    with pytest.warns(UserWarning, match="^no C compiler .*; the PyTorch kernels"):
        run(40)
    with pytest.raises(ValueError, match=r"^delta_rule: no C compiler \(cc"):
        run(40, "native")
    assert "native" in kernels.backends(torch.device("cpu"), 32)["delta_rule"]
    assert "native" not in kernels.backends(torch.device("cpu"), 40)["delta_rule"]


@pytest.mark.parametrize("damage", ["half", "one bit", "no library", "another name"])
def test_what_was_damaged_is_built_anew(damage: str, cache: Path) -> None:
    """Threads and all, and aloud. Loading half a library would end the process."""
    made = build()
    whole = made.read_bytes()
    half = len(whole) // 2
    flipped = whole[:half] + bytes([whole[half] ^ 1]) + whole[half + 1 :]
    contents = {"half": whole[:half], "one bit": flipped, "no library": b"?", "another name": whole}
    made.write_bytes(contents[damage])
    if damage == "another name":
        made = made.rename(cache / f"{made.name.rpartition('-')[0]}-0.so")
    with pytest.warns(UserWarning, match=f"^{made} was damaged, [^\n]*; it is built anew$") as told:
        pool()
    assert len(told) == 1
    (again,) = cache.iterdir()  # nothing was built without threads
    assert again.name.split("-")[:2] == made.name.split("-")[:2]
    forget()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pool()


@pytest.mark.parametrize("mask", [0, 0o022])
def test_the_cache_is_the_users_alone(mask: int, cache: Path) -> None:
    """Also where everybody may write to what a user makes."""
    before = os.umask(mask)
    try:
        pool()
        (made,) = cache.iterdir()
        assert cache.stat().st_mode & 0o777 == made.stat().st_mode & 0o777 == 0o700
        cache.chmod(0o775)  # as distributions have it that give each user a group
        made.chmod(0o775)
        forget()
        with pytest.warns(UserWarning, match="others could write to it; it is built anew$"):
            pool()
    finally:
        os.umask(before)
    (made,) = cache.iterdir()
    assert cache.stat().st_mode & 0o777 == made.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o700, 0o777])
def test_nothing_in_a_folder_of_another_user_is_run(
    mode: int, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = build()
    cache.chmod(mode)
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    monkeypatch.setattr(ctypes, "CDLL", lambda path: pytest.fail("loaded it"))
    remedy = f"^others can put code into {cache}; remove it, or set XDG_CACHE_HOME to a folder of your own;"
    with pytest.warns(UserWarning, match=remedy):
        pool()
    with pytest.raises(ValueError, match=r"^delta_rule: others can put code into [^\n]*$"):
        run(DELTA_RULE, "native")
    assert list(cache.iterdir()) == [made] and cache.stat().st_mode & 0o777 == mode


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_libraries_of_another_user_are_built_anew(cache: Path) -> None:
    made = build()
    os.chown(made, 12345, 12345)
    with pytest.warns(UserWarning, match="others could write to it; it is built anew$"):
        pool()
    assert made.stat().st_uid == 0
    forget()
    os.chown(cache, 12345, 12345)
    with pytest.warns(UserWarning, match="^others can put code into .*; the PyTorch kernels"):
        pool()


def test_a_cache_that_cannot_be_written(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match=r"^cannot write C kernels to .*: Not a directory; the PyTo"):
        run(SUM_RULE)


def test_no_home(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    with pytest.warns(UserWarning, match="^no home directory .* set XDG_CACHE_HOME; the PyTorch kernels"):
        run(SUM_RULE)


def test_what_cannot_be_loaded(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home from which nothing may be executed, for one."""
    damaged = cache.parent / "damaged.so"
    damaged.write_bytes(b"no library")
    monkeypatch.setattr(compiling, "_build", lambda source, define, threads: damaged)
    with pytest.warns(UserWarning, match="^cannot load C kernels: .*; the PyTorch kernels"):
        run(SUM_RULE)


@pytest.mark.long
@pytest.mark.skipif(not torch.cpu._is_avx512_supported(), reason="has no AVX-512 to do without")
def test_other_processors(tmp_path: Path) -> None:
    """Without AVX-512 vectors are half as wide."""
    folder = Path(__file__).parent
    tests = [str(folder / f"test_{name}.py") for name in ("native", "dense", "images", "winograd", "strided")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-qx", "-p", "no:cacheprovider", *tests],
        env={**os.environ, "CC": "cc -mno-avx512f", "XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-2000:]


def test_heads_that_c_does_not_take_build_nothing(cache: Path, seed: int) -> None:
    core = make_core("rdn", 4, hidden_size=256, num_heads=1, num_layers=1, ff_size=8)
    with torch.no_grad():
        inputs = torch.randn(2, 4), core.initial_state(2), torch.zeros(2, dtype=torch.bool)
        assert functions_of(core).step(core, *inputs, None) is None
    assert not list(cache.glob("rules-*"))


@pytest.mark.parametrize("rows", [1, 16])
def test_no_compiler_no_cache(rows: int, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many rows as a register holds ask the library how wide one is."""
    monkeypatch.setenv("CC", "no-such-compiler")
    core = make_core("lstm", 4, hidden_size=8)
    with pytest.warns(UserWarning, match="^no C compiler"):
        assert functions_of(core).new_cache(core, 3, rows) is None


def test_a_compiler_needs_no_temporary_folder(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", "/nonexistent")
    monkeypatch.setenv("CC", "sh -c 'mktemp >/dev/null && exec cc \"$@\"' cc")
    assert build().exists()


def test_it_is_said_whether_compiler_or_folder_is_wrong(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", str(Path(__file__)))  # no program
    with pytest.raises(compiling.CannotBuildError, match=r"^no C compiler .*: Permission denied\)"):
        build()
    monkeypatch.delenv("CC")
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/1")
    with pytest.raises(compiling.CannotBuildError, match=r"^cannot write C kernels to /proc/1"):
        build()
