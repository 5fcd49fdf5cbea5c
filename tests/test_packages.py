"""pyproject.toml lists every package, so that an installed wheel has what a checkout has."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
TOPS = ("agents", "cores", "envs", "kernels", "launch")


def test_every_package_is_listed_and_typed() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    folders = [file.parent for top in TOPS for file in (ROOT / top).rglob("__init__.py")]
    names = [".".join(("deltabeast", *folder.relative_to(ROOT).parts)) for folder in folders]
    assert sorted(listed) == sorted(names)
    assert all((folder / "py.typed").is_file() for folder in folders)


def test_every_folder_of_code_is_a_package() -> None:
    folders = {file.parent for top in TOPS for file in (ROOT / top).rglob("*.py")}
    assert all((folder / "__init__.py").is_file() for folder in folders)
