"""Digests of plain code: whatever changes what it computes changes them, and nothing else does."""

from __future__ import annotations

import importlib.util
import linecache
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from deltabeast.agents import losses, vtrace
from deltabeast.cores.hybrid import Hybrid
from deltabeast.cores.rdn import RecurrentDeltaMemory
from deltabeast.kernels import sources
from deltabeast.kernels.sources import digests

PLAIN = '''
import torch
import plainhelper

FACTOR = 2.0

def scaled(x):
    """Scale."""
    return FACTOR * x  # twice

class Base:
    def width(self):
        return 3

class Net(Base):
    """A network."""

    @torch.no_grad()
    def forward(self, x):
        # a comment
        return scaled(x) + plainhelper.shift(x)

    @property
    def size(self):
        return 4
'''
HELPER = """
def shift(x):
    return x + 1

def other(x):
    return x
"""


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    monkeypatch.setattr(sources, "PROJECT", "plainhelper")
    yield []
    for name in ("plainhelper", "plainhelper.net"):
        sys.modules.pop(name, None)


def of(folder: Path, plain: str = PLAIN, helper: str = HELPER) -> dict[str, str]:
    """The digests of Net in a package of these two sources."""
    package = folder / "plainhelper"
    package.mkdir(exist_ok=True)
    (package / "__init__.py").write_bytes(helper.encode())
    (package / "net.py").write_bytes(plain.encode())
    for name in ("plainhelper", "plainhelper.net"):
        sys.modules.pop(name, None)
    _load("plainhelper", package / "__init__.py")
    return digests(_load("plainhelper.net", package / "net.py").Net)


def _load(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    linecache.checkcache()
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("FACTOR = 2.0", "FACTOR = 2.5"),
        ("return FACTOR * x", "return FACTOR * x * x"),
        ("scaled(x) +", "scaled(x) -"),
        ("return 3", "return 5"),
        ("return 4", "return 5"),
        ("    @torch.no_grad()\n", ""),
    ],
)
def test_whatever_is_computed_counts(old: str, new: str, plain: list[str], tmp_path: Path) -> None:
    assert old in PLAIN
    (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir()
    assert of(tmp_path / "a") != of(tmp_path / "b", PLAIN.replace(old, new))


def test_what_is_called_in_another_module_counts(plain: list[str], tmp_path: Path) -> None:
    (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir()
    before = of(tmp_path / "a")
    assert of(tmp_path / "b", helper=HELPER.replace("x + 1", "x + 2")) != before
    assert of(tmp_path / "b", helper=HELPER.replace("return x\n", "return -x\n")) == before  # is not called


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("  # twice", ""),
        ("        # a comment\n", "\n\n"),
        ('"""Scale."""', '"""Multiply\n\n    by two."""'),
        ('    """A network."""\n\n', ""),
        ("\n", "\r\n"),
    ],
)
def test_words_and_line_ends_do_not(old: str, new: str, plain: list[str], tmp_path: Path) -> None:
    assert old in PLAIN
    (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir()
    assert of(tmp_path / "a") == of(tmp_path / "b", PLAIN.replace(old, new))


def test_what_replaces_a_function_is_what_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    before = digests(losses.actor_critic)
    assert digests(losses.actor_critic) == before != digests(vtrace.vtrace_from_log_rhos)

    def no_gradient(logits: object, actions: object, advantages: object) -> None: ...

    monkeypatch.setattr(no_gradient, "__module__", losses.__name__)
    monkeypatch.setattr(losses, "policy_gradient_loss", no_gradient)
    assert digests(losses.actor_critic) != before


def test_a_memory_is_known_by_its_rule_s_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    found: dict[str, str] = {}
    sources._visit(RecurrentDeltaMemory, found)
    names = {name.rsplit(".", 1)[-1] for name in found}
    assert {"RecurrentDeltaMemory", "FastWeights", "recurrent_delta", "mask_resets", "read"} <= names
    assert not [name for name in found if ".native." in name or ".triton." in name]


def test_how_options_are_read_does_not_count() -> None:
    """A better message there must not turn C off: what options decide is in the modules made of them."""
    found = digests(Hybrid)
    assert "cores.hybrid.Hybrid.make_memory" in found and "cores.backbone.FastWeightCore.unroll" in found
    assert not [name for name in found if name.startswith("cores.options.")]
