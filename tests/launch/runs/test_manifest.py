"""Facts that `launch/runs` reads without torch are those that the agents' own code reads with it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from deltabeast.agents import Agent, AgentSpec, CheckpointError, find_checkpoints, load_checkpoint, manifest
from deltabeast.agents import save_checkpoint as save
from deltabeast.cores import core_name
from deltabeast.launch.runs import directory


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    agent = Agent(AgentSpec((3,), 2, "feedforward", "mlp", env_id="X-v0"))
    for step in (100, 200, 300):
        save(tmp_path / "run", step, agent, {}, milestone=step == 100)
    return tmp_path / "run"


def agree(run_dir: Path) -> list[int]:
    """Check that both readers find the same checkpoints, and the same things in them; their steps."""
    found = find_checkpoints(run_dir)
    assert [each.path for each in found] == manifest.checkpoint_paths(run_dir)
    for path in manifest.checkpoint_paths(run_dir):
        damaged = manifest.damaged_file(path)
        if damaged is None:
            assert AgentSpec(**manifest.read_spec(path)).core == load_checkpoint(path)[0].spec.core
            assert manifest.saved_step(path) == int(path.name)
            assert manifest.is_milestone(path) == (int(path.name) == 100)
        else:
            with pytest.raises(CheckpointError, match=re.escape(str(path / damaged))):
                load_checkpoint(path)
    return [each.step for each in found]


def test_both_readers_agree_on_whole_checkpoints(run_dir: Path) -> None:
    assert agree(run_dir) == [100, 200, 300]
    newest = manifest.checkpoint_paths(run_dir)[-1]
    assert {path.name for path in newest.iterdir()} == {*manifest.FILES, "manifest.json"}
    assert manifest.checkpoint_paths(run_dir / "nowhere") == [] == find_checkpoints(run_dir / "nowhere")


def test_both_readers_agree_on_what_lies_beside_checkpoints(run_dir: Path) -> None:
    folder = run_dir / "checkpoints"
    newest = folder / f"{300:012d}"
    shutil.copytree(newest, folder / f"0{newest.name}")  # replaced, and not yet removed
    (folder / f"{200:012d}").rename(folder / f"{200:013d}")  # to be replaced, and not yet there
    shutil.copytree(newest, folder / f".{400:012d}.77")  # half-written
    (folder / "best").mkdir()
    (folder / "500").write_text("a file")
    assert agree(run_dir) == [100, 200, 300]
    assert manifest.checkpoint_paths(run_dir)[-1] == newest


@pytest.mark.parametrize("name", [*manifest.FILES, "manifest.json"])
@pytest.mark.parametrize("harm", ["gone", "other", "list", "unlisted"])
def test_both_readers_agree_on_damage(name: str, harm: str, run_dir: Path) -> None:
    path = run_dir / "checkpoints" / f"{300:012d}"
    if harm == "gone":
        (path / name).unlink()
    elif harm == "unlisted":
        content = json.loads((path / "manifest.json").read_text())
        content["sha256"] = {key: value for key, value in content["sha256"].items() if key != name}
        (path / "manifest.json").write_text(json.dumps(content))
    else:
        (path / name).write_text("[]" if harm == "list" else "no")
    assert agree(run_dir) == [100, 200, 300]
    expected = None if (harm, name) == ("unlisted", "manifest.json") else name
    assert manifest.damaged_file(path) == expected


def test_a_cores_name_has_one_spelling_for_both() -> None:
    for name in ("rdn-large", "rdn_large", "delta_net", "my-cores:My_Core", "my_cores:My-Core"):
        assert directory.core_name(name) == core_name(name)


def test_info_and_compare_read_runs_without_torch(run_dir: Path) -> None:
    script = (
        "import sys\n"
        "from deltabeast.launch.cli import main\n"
        "from deltabeast.launch.comparison.command import read_runs\n"
        "main(['info', sys.argv[1]]), read_runs([sys.argv[1]])\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script, str(run_dir)], check=True)
