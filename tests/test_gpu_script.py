"""results/gpu/run.sh, with a stand-in for Python: what it runs where, and how it ends."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(not shutil.which("taskset"), reason="needs util-linux")
SCRIPT = Path(__file__).parent.parent / "results" / "gpu" / "run.sh"
PYTHON = f"""#!/usr/bin/env bash
[[ $* != *sched_getaffinity* ]] || exec {sys.executable} "$@"
echo "$(taskset --cpu-list --pid $$) $*" >> "$CALLS"
[[ $* != *" train "* ]] || {{ eval "$TRAIN"; }}
"""


def begin(folder: Path, *parts: str, train: str = "true") -> subprocess.Popen[str]:
    python = folder / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    given = {
        "OUT": folder / "out",
        "PYTHON": python,
        "CALLS": folder / "calls",
        "TRAIN": train,
        "LIMIT": "60",
    }
    environment = {**os.environ, "DEVICE": "cpu", **{name: str(value) for name, value in given.items()}}
    options: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "text": True}
    # In the background of a shell SIGINT is ignored, which a script cannot change.
    heeding = ["env", "--default-signal=INT"]
    return subprocess.Popen(
        [*heeding, "bash", SCRIPT, *parts], env=environment, start_new_session=True, **options
    )


def parts_of(folder: Path) -> list[str]:
    return (folder / "out" / "parts.txt").read_text().splitlines()


@pytest.mark.parametrize(("train", "status"), [("exit 124", 0), ("exit 3", 1), ("true", 0)])
def test_the_run_that_goes_on_may_be_stopped_by_its_time(train: str, status: int, tmp_path: Path) -> None:
    assert begin(tmp_path, "cell", train=train).wait(30) == status
    assert len(parts_of(tmp_path)) == 1
    assert f"--run-dir {tmp_path}/out/cell" in (tmp_path / "calls").read_text()


def test_processes_have_cores_that_the_script_may_use(tmp_path: Path) -> None:
    before = os.sched_getaffinity(0)
    last = max(before)
    os.sched_setaffinity(0, {last})
    try:
        assert begin(tmp_path, "cpu").wait(30) == 0
    finally:
        os.sched_setaffinity(0, before)
    (call,) = (line for line in (tmp_path / "calls").read_text().splitlines() if " throughput " in line)
    assert f"affinity list: {last} " in call


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_part_and_the_script(number: int, tmp_path: Path) -> None:
    """As a terminal sends it to the group, in which the part is not."""
    script = begin(tmp_path, "cell", "kernels", train='echo $$ > "$CALLS.pid"; exec sleep 100')
    end = time.monotonic() + 30
    while not (pid := tmp_path / "calls.pid").exists() or not pid.read_text().strip():
        assert time.monotonic() < end
        time.sleep(0.02)
    os.killpg(script.pid, number)
    assert script.wait(30) == 130
    assert len(lines := parts_of(tmp_path)) == 1 and lines[0].startswith("stopped by a signal")
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def test_each_rule_is_timed_beside_fla_where_that_is_there(tmp_path: Path) -> None:
    """The part reads their names, though it runs beside the script."""
    assert begin(tmp_path, "kernels").wait(30) == 0
    assert [line.partition(":")[0] for line in parts_of(tmp_path)] == ["settings-of-fla", "kernels"]
    calls = [line for line in (tmp_path / "calls").read_text().splitlines() if " bench kernels " in line]
    assert len(calls) == 8
    alone = {line.rpartition("--rules ")[2] for line in calls if "--json" not in line}
    (together,) = (line for line in calls if "--json" in line)
    assert len(alone) == 7 and all(f" {rule} " in f"{together} " for rule in alone)
