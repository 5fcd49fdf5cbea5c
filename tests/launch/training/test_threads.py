"""How many threads a run has in all and in each process, and what it says of that."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from command_line import refused
from training_in_process import FEEDFORWARD, run
from training_process import CARTPOLE

from deltabeast.launch.cli import main
from deltabeast.launch.parsing import parse
from deltabeast.launch.training.local.engine import LocalEngine
from deltabeast.launch.training.plan import resolve
from deltabeast.launch.training.sweep import needs
from deltabeast.launch.training.threads import operation_threads

pytestmark = pytest.mark.usefixtures("leaves_nothing_behind")
MANY = (*CARTPOLE[:-2], "--num-envs", "24", "--batch-size", "24")


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Eight cores, none of which this machine need have; more limits to be added."""
    limits = {"its CPU set": 8}
    for name in ("SLURM_CPUS_PER_TASK", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("deltabeast.envs.limits.core_limits", lambda: limits)
    monkeypatch.setattr("deltabeast.launch.training.threads.core_limits", lambda: limits)
    monkeypatch.setattr("deltabeast.launch.training.local.engine.own_cpus", lambda count: None)
    return limits


def engine(*options: str) -> LocalEngine:
    config = parse(["train", *MANY, *options])
    resolve(config)
    with ExitStack() as stack:
        return LocalEngine(config, stack)


@pytest.mark.parametrize(
    ("options", "variables", "uses"),
    [
        ("", {}, "8 processes of 1 thread"),
        ("--num-workers 2", {}, "2 processes of 4 threads"),
        ("--num-workers 1", {}, "1 process of 8 threads"),
        ("--deterministic", {}, "1 process of 8 threads"),
        ("--num-workers 2", {"OMP_NUM_THREADS": "3"}, "2 processes of 3 threads"),
        ("--num-workers 2", {"OMP_NUM_THREADS": "6"}, "2 processes of 4 threads"),
        ("--deterministic", {"OMP_NUM_THREADS": "1"}, "1 process of 1 thread"),
        ("", {"OMP_NUM_THREADS": "1"}, "8 processes of 1 thread"),
        ("--threads 3", {}, "3 processes of 1 thread"),
        ("--threads 6 --num-workers 2", {"OMP_NUM_THREADS": "1"}, "2 processes of 3 threads"),
        ("--threads 16 --num-workers 1", {}, "1 process of 16 threads"),
    ],
)
def test_threads_are_shared_out(
    options: str,
    variables: dict[str, str],
    uses: str,
    limits: dict[str, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    made = engine(*options.split())
    assert made.uses == uses
    assert torch.get_num_threads() == int(uses.split()[-2])


def test_whose_limit_it_is_is_told(limits: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    assert told() == []
    limits |= {"the quota of its control group": 6, "SLURM_CPUS_PER_TASK": 4}
    assert told("--num-workers", "2") == ["uses 4 of 8 cores, the limit of SLURM_CPUS_PER_TASK"]
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    line = "uses 1 of 2 threads in each process, the limit of OMP_NUM_THREADS"
    assert told("--num-workers", "2")[1:] == [line]
    assert told("--threads", "8", "--num-workers", "2") == [], "that was asked for"


def told(*options: str) -> list[str]:
    return [note for note in engine(*options).notes if note.startswith("uses")]


@pytest.mark.parametrize("number", ["1", "2", "3", "8"])
def test_two_threads_share_no_convolution_in_bfloat16(number: str) -> None:
    config = parse(["train", *MANY])
    asked = parse(["train", *MANY, "--threads", number])
    threads = int(number)
    for dtype in (None, torch.bfloat16):
        agent = SimpleNamespace(autocast_dtype=dtype)
        expected = 1 if dtype is not None and threads == 2 else threads
        assert operation_threads(config, threads, agent) == expected  # type: ignore[arg-type]
        assert operation_threads(asked, threads, agent) == threads  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--threads 0", "--threads 0; it must be from 1 to 65536"),
        ("--threads 2 --num-workers 3", "--num-workers 3: each takes one of --threads 2; give more"),
        ("--threads 2 --engine ray", "--threads: only with --engine local"),
    ],
)
def test_wrong_numbers_are_one_line(
    options: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert says in refused(capsys, "train", *MANY, *options.split(), "--run-dir", str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_a_run_of_a_sweep_reserves_its_threads() -> None:
    for options, cpus in (("", 1), ("--num-workers 3", 3), ("--threads 4 --num-workers 2", 4)):
        config = parse(["train", *MANY, "--engine", "ray", *options.split()])
        assert needs(config, {"GPU": 0}) == (cpus, 0)


def test_info_and_the_panel_say_what_is_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    titles: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "deltabeast.launch.training.panel.Panel.__enter__", lambda self: titles.append(self.title) or self
        )
        run(tmp_path, "--env", "CartPole-v1", *FEEDFORWARD, "--steps", "20", "--threads", "3")
    assert titles[0].endswith(" · 1 process of 3 threads")
    main(["info", str(tmp_path)])
    assert "uses          1 process of 3 threads, when it was last begun\n" in capsys.readouterr().out
    config = json.loads((tmp_path / "config.json").read_text())
    del config["uses"]  # as an older version wrote it
    (tmp_path / "config.json").write_text(json.dumps(config))
    main(["info", str(tmp_path)])
    assert "threads" not in capsys.readouterr().out
