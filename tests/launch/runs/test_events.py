"""A run's event files as TensorBoard reads them, with clocks of several machines."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from deltabeast.launch.runs.events import EventFile
from deltabeast.launch.runs.log import RunLog, read_rows
from deltabeast.launch.units import format_ago


def steps_in_tensorboard(run_dir: Path) -> list[int]:
    events = EventAccumulator(str(run_dir), size_guidance={"scalars": 0})
    events.Reload()
    return [event.step for event in events.Scalars("speed/sps")]


@pytest.mark.parametrize("shift", [-3600.0, -1.0, 0.0, 3600.0])
def test_tensorboard_shows_the_rows_of_the_log_whatever_the_clock_of_a_resume(
    shift: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = 1_700_000_000.0
    monkeypatch.setattr(time, "time", lambda: clock)
    killed = RunLog(tmp_path)
    for step in (10, 20, 30, 40):
        killed.write(step, {"sps": step})
    for begins in (1, 2, 3):  # the third within the second of the second, as it goes
        clock += shift
        resumed = RunLog(tmp_path, resume_step=20)
        for step in (21, 22, 23 + begins):
            resumed.write(step, {"sps": step})
    assert [row["step"] for row in read_rows(tmp_path / "logs.csv")] == [10, 20, 21, 22, 26]
    assert steps_in_tensorboard(tmp_path) == [10, 20, 21, 22, 26]
    names = sorted(path.name for path in tmp_path.glob("events.*"))
    assert len(names) == 4 and all(name.split(".")[3].isdecimal() for name in names)


def test_a_run_begun_anew_hides_all_of_the_one_before(tmp_path: Path) -> None:
    for step in (0, 5):
        with RunLog(tmp_path) as log:
            log.write(step, {"sps": 1.0})
    assert steps_in_tensorboard(tmp_path) == [5]


def test_files_of_others_change_nothing(tmp_path: Path) -> None:
    for name in ("events.out.tfevents.x.host.1.0", "events.out.tfevents.99999999999.host.1.0"):
        (tmp_path / name).touch()
    EventFile(tmp_path, 0).close()
    assert not list(tmp_path.glob("events.out.tfevents.9999999999.*"))
    (tmp_path / "events.out.tfevents.9999999999.host.1.0").touch()
    EventFile(tmp_path, 0).close()
    assert len(list(tmp_path.glob("events.out.tfevents.9999999999.*"))) == 2


def test_rows_of_a_clock_ahead_are_said_to_be() -> None:
    assert format_ago(125.0) == "2 m 5 s ago" and format_ago(0.0) == "0 s ago"
    assert format_ago(-3600.0) == "1 h 0 m ahead of this clock"
