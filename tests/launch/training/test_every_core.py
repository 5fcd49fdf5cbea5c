"""Every core trains, is killed, resumed and evaluated like every other."""

from __future__ import annotations

from pathlib import Path

import pytest
from training_in_process import EXACT, assert_a_kill_changes_nothing

from deltabeast.cores import core_names
from deltabeast.cores.options import options_of
from deltabeast.cores.registry import find_core
from deltabeast.launch.cli import main

SMALL = {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "ff_size": 16}
CORES = sorted({*core_names()} - {"rdn_large"})  # which is rdn

pytestmark = pytest.mark.usefixtures("leaves_nothing_behind")


@pytest.mark.parametrize("core", CORES)
def test_a_killed_run_ends_like_an_uninterrupted_one_and_is_evaluated(
    core: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ("--num-envs", "2", "--batch-size", "2", "--unroll-length", "5", "--steps", "80")
    options = [
        word for name in SMALL if name in options_of(find_core(core)) for word in (name, str(SMALL[name]))
    ]
    arguments = ["--env", "CartPole-v1", "--core", core, *sizes, *EXACT, "--device", "cpu"]
    arguments += ["--core-options", *options] if options else []
    assert_a_kill_changes_nothing(tmp_path, monkeypatch, arguments, 4, "--checkpoint-minutes", "0")
    main(["eval", str(tmp_path / "one"), "--episodes", "2", "--device", "cpu"])
    assert "episodes" in capsys.readouterr().out
