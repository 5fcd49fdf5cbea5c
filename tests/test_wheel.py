"""What is published works without the repository: a wheel made of the sdist, in an environment of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from test_readme import example

ROOT = Path(__file__).parents[1]
TOPS = ("agents", "cores", "envs", "kernels", "launch")
Command = Callable[..., str]

QUICK = "--steps 320 --num-envs 8 --batch-size 8 --unroll-length 20 --stem nature --precision fp32"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that `python -m build` makes of the repository's files, by way of the sdist."""
    source, made = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("made")
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    files = subprocess.run(listing, cwd=ROOT, capture_output=True, check=True, text=True).stdout
    for name in filter(None, files.split("\0")):
        if (ROOT / name).is_file() and not name.startswith(("results/", "tests/")):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(made), str(source)]
    subprocess.run(build, check=True, capture_output=True)
    assert len(list(made.glob("deltabeast-*.tar.gz"))) == 1
    (found,) = made.glob("deltabeast-*-py3-none-any.whl")
    return found


@pytest.fixture(scope="module")
def command(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Command:
    """Runs a command of an environment that has the wheel, and of the repository only what it depends on."""
    env, folder = tmp_path_factory.mktemp("env"), tmp_path_factory.mktemp("empty")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(env)], check=True)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(env), "platbase": str(env)}))
    pip = [sys.executable, "-m", "pip", "--python", str(env / "bin" / "python"), "install", "--quiet"]
    subprocess.run([*pip, "--no-deps", "--no-index", "--no-compile", str(wheel)], cwd=folder, check=True)
    # A folder that a .pth file names is searched; its own .pth files, such as the repository's, are not read.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")

    def run(name: str, *arguments: str) -> str:
        done = subprocess.run(
            [str(env / "bin" / name), *arguments],
            cwd=folder,
            env={"PATH": os.environ["PATH"], "HOME": str(folder), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    where = run("python", "-c", "import deltabeast.launch as d; print(d.__file__)")
    assert where.startswith(str(env))
    return run


def test_wheel_holds_what_the_packages_need_and_nothing_else(wheel: Path) -> None:
    names = [name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name]
    assert {name.split("/")[0] for name in names} == {"deltabeast"}
    assert {name.split("/")[1] for name in names} == set(TOPS)
    kinds = {".py", ".c", ".h", ".csv", ".css"}
    files = [path for top in TOPS for path in (ROOT / top).rglob("*")]
    ours = {str(path.relative_to(ROOT)) for path in files if path.suffix in kinds}
    assert ours == {name.removeprefix("deltabeast/") for name in names if Path(name).suffix in kinds}


@pytest.mark.long
def test_wheel_trains_evaluates_compares_and_measures(command: Command) -> None:
    assert "commit" not in command("deltabeast", "--version")
    assert "finished at 320 of 320" in command("deltabeast", "train", "--game", "gopher", *QUICK.split())
    command("deltabeast", "eval", "runs/gopher/rdn/seed-1", "--episodes", "1", "--repeats", "1", "--sample")
    command("python", "-c", example("agents/README.md", "In Python", "python"))
    command("deltabeast", "compare", "runs")
    measured = command(
        "deltabeast", "bench", "env", "--games", "gopher", "--num-envs", "8", "--seconds", "0.3"
    )
    assert "gopher" in measured
