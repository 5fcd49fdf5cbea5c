"""pyproject.toml lists our packages and bounds others from below alone; constraints.txt has them all."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
TOPS = ("agents", "cores", "envs", "kernels", "launch")


def test_every_package_is_listed_and_typed() -> None:
    listed = PROJECT["tool"]["setuptools"]["packages"]
    folders = [file.parent for top in TOPS for file in (ROOT / top).rglob("__init__.py")]
    names = [".".join(("deltabeast", *folder.relative_to(ROOT).parts)) for folder in folders]
    assert sorted(listed) == sorted(names)
    assert all((folder / "py.typed").is_file() for folder in folders)


def test_every_folder_of_code_is_a_package() -> None:
    folders = {file.parent for top in TOPS for file in (ROOT / top).rglob("*.py")}
    assert all((folder / "__init__.py").is_file() for folder in folders)


@pytest.mark.parametrize("folder", ["agents", "cores"])
def test_plain_code_imports_nothing_that_makes_it_fast(folder: str) -> None:
    for file in (ROOT / folder).glob("*.py"):
        if file.name == "accelerate.py":
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom):
                parts = (node.module or "").split(".")
                assert "native" not in parts and "cpu" not in parts, f"{file.name}: {ast.unparse(node)}"


def requirements(for_users: bool) -> list[Requirement]:
    extras = PROJECT["project"]["optional-dependencies"]
    lists = [PROJECT["project"]["dependencies"], *(extras[name] for name in extras if name != "dev")]
    found = [Requirement(text) for each in (*lists, *([] if for_users else [extras["dev"]])) for text in each]
    return [each for each in found if each.name != "deltabeast"]


def test_users_are_shut_out_of_no_later_release() -> None:
    assert PROJECT["project"]["requires-python"] == ">=3.11"
    for requirement in requirements(for_users=True):
        assert [each.operator for each in requirement.specifier] == [">="], requirement


def test_every_dependency_is_constrained_to_one_version_that_it_may_have() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned: dict[str, list[Requirement]] = {}
    for line in lines:
        if not line.startswith("#"):
            requirement = Requirement(line)
            pinned.setdefault(canonicalize_name(requirement.name), []).append(requirement)
    for requirement in requirements(for_users=False):
        pins = pinned[canonicalize_name(requirement.name)]
        for pin in pins:
            (exact,) = pin.specifier
            assert exact.operator == "==" and requirement.specifier.contains(exact.version), pin


@pytest.mark.parametrize("file", ["Makefile", "launch/training/ray/ray_up.yaml"])
def test_what_installs_heeds_the_constraints(file: str) -> None:
    lines = [line for line in (ROOT / file).read_text().splitlines() if "pip install --quiet" in line]
    assert lines and all("--constraint" in line for line in lines)


def test_the_licence_of_every_dependency_is_listed() -> None:
    listed = (ROOT / "docs" / "licences.md").read_text()
    for requirement in requirements(for_users=True):
        assert f"| {canonicalize_name(requirement.name)} | " in listed, requirement


def test_what_an_error_says_to_install_is_what_is_declared() -> None:
    """deltabeast itself is on no index, so that its extras cannot be named there."""
    optional = PROJECT["project"]["optional-dependencies"].values()
    declared = {Requirement(each).name for extra in optional for each in extra} - {"deltabeast"}
    texts = [file.read_text() for top in TOPS for file in (ROOT / top).rglob("*.py")]
    named = re.findall(r"pip install ['\"]?([\w-]+)", "\n".join(texts))
    assert len(named) > 5 and set(named) <= declared
