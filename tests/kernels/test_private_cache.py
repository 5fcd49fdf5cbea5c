"""Where torch's compilers keep code: not in a folder of /tmp that others can make first."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor.runtime import cache_dir_utils, runtime_utils

from deltabeast.agents import Agent, AgentSpec, Learner, LearnerConfig
from deltabeast.agents.make_executor import make_executor
from deltabeast.kernels import private_cache
from deltabeast.kernels.private_cache import (
    CannotBuildError,
    set_inductor_cache_dir,
    use_private_inductor_cache,
)

COMPILES = """
import torch
import deltabeast.kernels
from deltabeast.kernels.private_cache import use_private_inductor_cache

use_private_inductor_cache()
double = torch.compile(lambda x: x * 2 + 1)
assert double(torch.ones(4)).tolist() == [3.0] * 4
"""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One on which nothing has been compiled yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    for module in (cache_dir_utils, runtime_utils):
        monkeypatch.setattr(module, "default_cache_dir", lambda: "/tmp/torchinductor_someone")
    return tmp_path


def test_torch_uses_the_private_cache_for_all(machine: Path) -> None:
    set_inductor_cache_dir()
    use_private_inductor_cache()
    folder = str(machine / "deltabeast" / f"inductor-{private_cache._version()}")
    found: list[Any] = [cache_dir_utils.cache_dir(), cache_dir_utils.default_cache_dir()]
    assert [*found, runtime_utils.default_cache_dir()] == [folder] * 3  # type: ignore[attr-defined]
    assert (machine / "deltabeast").stat().st_mode & 0o777 == 0o700


def test_another_version_of_the_operators_has_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = []
    for source in ("a = 1", "a = 2"):
        (tmp_path / "operators.py").write_text(source)
        monkeypatch.setattr(private_cache, "__file__", str(tmp_path / "private_cache.py"))
        versions.append(private_cache._version())
    (tmp_path / "operators.py").write_text("a = 1")
    assert private_cache._version() == versions[0] != versions[1]


def test_what_a_user_names_stays(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(machine / "mine"))
    set_inductor_cache_dir()
    use_private_inductor_cache()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(machine / "mine")
    assert cache_dir_utils.default_cache_dir() == str(machine / "mine")


@pytest.mark.parametrize("default", [False, True])
def test_without_a_private_cache_nothing_is_compiled(
    default: bool, machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def others(*_: object) -> Path:
        raise CannotBuildError("others can put code into it; remove it")

    monkeypatch.setattr(private_cache, "private_cache", others)
    set_inductor_cache_dir()
    assert "TORCHINDUCTOR_CACHE_DIR" not in os.environ
    if default:  # as torch sets it when it is imported
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/tmp/torchinductor_someone")
    agent = Agent(AgentSpec((4,), 2, "lstm", "mlp", {"hidden_size": 8}))
    monkeypatch.setattr(torch, "compile", lambda *_, **__: pytest.fail("compiled"))
    with pytest.warns(UserWarning, match=r"runs without: others can put code into it; remove it$"):
        learner = Learner(agent, LearnerConfig(100), lambda parts: make_executor(parts, compile=True))
    assert learner.compiled_loss is None


@pytest.mark.long
def test_nothing_of_torch_lies_in_tmp(tmp_path: Path) -> None:
    env = {**os.environ, "TMPDIR": str(tmp_path / "tmp"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    env.pop("TORCHINDUCTOR_CACHE_DIR", None)
    (tmp_path / "tmp").mkdir()
    subprocess.run([sys.executable, "-c", COMPILES], env=env, check=True)
    assert not list((tmp_path / "tmp").glob("torchinductor*"))
    assert list((tmp_path / "cache" / "deltabeast").rglob("inductor-*/**/*.so"))
