"""The log of a run as its readers see it: csv rows, and TensorBoard through its own EventAccumulator."""

from __future__ import annotations

import csv
import errno
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from deltabeast.agents import files
from deltabeast.launch.runs.events import EventFile
from deltabeast.launch.runs.log import TAGS, RunLog, drop_rows_beyond, read_log, read_rows

DOCUMENTED = [
    *("sps", "sps_10s", "game_return", "life_return", "game_length", "episodes", "best_game_return"),
    *(
        "total_loss",
        "policy_loss",
        "baseline_loss",
        "entropy",
        "grad_norm",
        "clipped_grad_share",
        "learning_rate",
        "reward_divisor",
    ),
    *("policy_lag", "policy_lag_max", "clipped_rho_share", "log_rho_abs_max", "score_wraps"),
    *("behavior_kl", "effective_sample_share", "reuse", "replay_age"),
    "forced_share",
    *("write_strength", "recurrent_write_strength", "fast_weight_norm"),
    *("read_age", "read_beyond_10", "read_beyond_100", "read_beyond_1000"),
    *("share_emulation", "share_inference", "share_learning", "share_waiting"),
]


def rows_of(run_dir: Path) -> list[dict[str, str]]:
    with (run_dir / "logs.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def scalars(run_dir: Path, tag: str) -> list[tuple[int, float]]:
    events = EventAccumulator(str(run_dir), size_guidance={"scalars": 0})
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(tag)]


def test_a_row_is_readable_as_soon_as_it_is_written(tmp_path: Path) -> None:
    log = RunLog(tmp_path)
    log.write(1600, {"time": 1_700_000_000.25, "sps": 812.5, "total_loss": 3.0})
    log.write(3200, {"time": 1_700_000_002.5, "sps": 900.0, "game_return": 120.0, "policy_lag": 2.0})
    # The log is still open here: nothing may wait in a buffer.
    rows = rows_of(tmp_path)
    assert list(rows[0])[:2] == ["step", "time"]
    assert [row["step"] for row in rows] == ["1600", "3200"]
    assert rows[0]["time"] == "1700000000.250"
    assert rows[0]["game_return"] == "" and rows[1]["game_return"] == "120"
    assert rows[1]["total_loss"] == ""
    assert scalars(tmp_path, "score/game_return") == [(3200, 120.0)]
    assert scalars(tmp_path, "speed/sps") == [(1600, 812.5), (3200, 900.0)]
    log.close()


def test_every_documented_metric_has_a_column_and_its_own_tag(tmp_path: Path) -> None:
    with RunLog(tmp_path) as log:
        log.write(1, {key: float(i) for i, key in enumerate(DOCUMENTED)})
    (row,) = rows_of(tmp_path)
    assert {key: float(row[key]) for key in DOCUMENTED} == {key: float(i) for i, key in enumerate(DOCUMENTED)}
    assert len(set(TAGS.values())) == len(DOCUMENTED)
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert set(TAGS.values()) <= set(events.Tags()["scalars"])


def test_what_is_not_a_number_is_left_out(tmp_path: Path) -> None:
    with RunLog(tmp_path) as log:
        log.write(1, {"game_return": float("nan"), "total_loss": float("inf"), "sps": 5.0})
    (row,) = rows_of(tmp_path)
    assert (row["game_return"], row["total_loss"], row["sps"]) == ("", "", "5")
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert events.Tags()["scalars"] == ["speed/sps"]


def test_a_metric_new_after_the_first_row_goes_to_tensorboard_alone(tmp_path: Path) -> None:
    with RunLog(tmp_path) as log:
        log.write(1, {"sps": 5.0, "first": 1.0})
        log.write(2, {"sps": 6.0, "first": 2.0, "late": 7.0})
    rows = rows_of(tmp_path)
    assert [row["first"] for row in rows] == ["1", "2"]
    assert "late" not in rows[0] and None not in rows[1]
    assert scalars(tmp_path, "other/late") == [(2, 7.0)]


def test_resuming_drops_what_came_after_the_checkpoint(tmp_path: Path) -> None:
    with RunLog(tmp_path) as log:
        for step in (100, 200, 300, 400):
            log.write(step, {"sps": float(step), "mine": 1.0})
    with RunLog(tmp_path, resume_step=200) as log:
        assert [row["step"] for row in rows_of(tmp_path)] == ["100", "200"]
        log.write(250, {"sps": 2.5})
        log.write(350, {"sps": 3.5, "mine": 9.0, "new": 1.0})
    rows = rows_of(tmp_path)
    assert [row["step"] for row in rows] == ["100", "200", "250", "350"]
    assert rows[3]["mine"] == "9" and "new" not in rows[3]
    assert scalars(tmp_path, "speed/sps") == [(100, 100.0), (200, 200.0), (250, 2.5), (350, 3.5)]


def test_resuming_twice_from_the_same_checkpoint(tmp_path: Path) -> None:
    for attempt in range(3):
        with RunLog(tmp_path, resume_step=None if attempt == 0 else 100) as log:
            if attempt == 0:
                log.write(100, {"sps": 1.0})
            log.write(200, {"sps": 10.0 + attempt})
    assert [row["sps"] for row in rows_of(tmp_path)] == ["1", "12"]
    assert scalars(tmp_path, "speed/sps") == [(100, 1.0), (200, 12.0)]


def test_a_run_that_starts_anew_keeps_the_old_rows_aside(tmp_path: Path) -> None:
    said: list[str] = []
    with RunLog(tmp_path, say=said.append) as log:
        log.write(100, {"sps": 1.0})
    assert said == []
    with RunLog(tmp_path, say=said.append) as log:
        log.write(50, {"sps": 2.0})
    assert said == [f"{tmp_path / 'logs.csv'} was there before this run; it is logs.previous.csv now"]
    assert [row["step"] for row in rows_of(tmp_path)] == ["50"]
    assert "\n100," in (tmp_path / "logs.previous.csv").read_text()
    assert scalars(tmp_path, "speed/sps") == [(50, 2.0)]


WRITER = """
import sys, time
from pathlib import Path
from deltabeast.launch.runs.events import EventFile
from deltabeast.launch.runs.log import RunLog
log = RunLog(Path(sys.argv[1]))
for step in range(100, 600, 100):
    log.write(step, {"sps": float(step), "game_return": 1.5})
log._file.write("600,1700000000.000" + "," * 24 + "12"); log._file.flush()   # a row but for its end
print("ready", flush=True)
time.sleep(60)
"""


def test_a_killed_run_resumes_without_its_half_line(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )  # fmt: skip
    assert child.stdout is not None and child.stdout.readline() == "ready\n"
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    assert not (tmp_path / "logs.csv").read_text().endswith("\n")
    # All five whole rows lie at or before the checkpoint's step: only the half line goes.
    with RunLog(tmp_path, resume_step=600) as log:
        log.write(700, {"sps": 7.0})
    assert [row["step"] for row in rows_of(tmp_path)] == ["100", "200", "300", "400", "500", "700"]
    assert [step for step, _ in scalars(tmp_path, "speed/sps")] == [100, 200, 300, 400, 500, 700]


@pytest.mark.parametrize("left", ["", "step,ti", "garbage\n1,2\n"])
def test_a_log_without_a_whole_header_is_written_anew(tmp_path: Path, left: str) -> None:
    (tmp_path / "logs.csv").write_text(left)
    with RunLog(tmp_path, resume_step=10) as log:
        log.write(20, {"sps": 1.0})
    assert [row["step"] for row in rows_of(tmp_path)] == ["20"]


def test_a_rewrite_that_fails_leaves_the_log_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "logs.csv"
    path.write_text("step,time,sps\n1,1.000,5\n2,2.000,6\n")
    before = path.read_bytes()

    def no_space(_: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(OSError, match="no space"):
        drop_rows_beyond(path, 1)
    assert path.read_bytes() == before


def test_an_untouched_log_is_not_rewritten(tmp_path: Path) -> None:
    path = tmp_path / "logs.csv"
    files.write(path, "step,time,sps\n1,1.000,5\n")
    inode = path.stat().st_ino
    assert drop_rows_beyond(path, 1) == ["step", "time", "sps"]
    assert path.stat().st_ino == inode


def _log(steps: range) -> bytes:
    header = ",".join(["step", "time", *TAGS])
    rows = [f"{step},1700000000.{step:03d},{step}.5" + "," * (len(TAGS) - 1) for step in steps]
    return "\n".join([header, *rows, ""]).encode()


ROWS = [*range(100, 2100, 100)]


def _cut(content: bytes, tmp_path: Path) -> tuple[list[int], list[str], list[Path]]:
    """Resume far beyond a log: the steps of rows that stay, what is said, and what is set aside."""
    path = tmp_path / "logs.csv"
    path.write_bytes(content)
    said: list[str] = []
    assert drop_rows_beyond(path, 10**9, say=said.append) == ["step", "time", *TAGS]
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert all(row["sps"] == f"{row['step']}.5" for row in rows)
    return [int(row["step"]) for row in rows], said, sorted(tmp_path.glob("logs.*.csv"))


@pytest.mark.parametrize(
    "change",
    [
        lambda log: b"\xef\xbb\xbf" + log,
        lambda log: log.replace(b"\n", b"\r\n"),
        lambda log: log.replace(b".", b"@").replace(b",", b";").replace(b"@", b","),
        lambda log: log.replace(b",", b"\t"),
        lambda log: re.sub(rb"([^,\n]+)", rb'"\1"', log),
        lambda log: b"r" + log[1:],
        lambda log: log.replace(b"1700000000.100", b'"1700000000.100'),
        lambda log: log.replace(b"1700000000.500", b'"1700000000.500'),
        lambda log: log + b"," * len(TAGS) + b"\n",
    ],
    ids=["mark", "CRLF", "semicolons", "tabs", "quoted", "header", "quote", "late quote", "blank"],
)  # fmt: skip
def test_every_row_of_a_log_that_can_be_read_stays(change: Callable[[bytes], bytes], tmp_path: Path) -> None:
    assert _cut(change(_log(range(100, 2100, 100))), tmp_path) == (ROWS, [], [])


@pytest.mark.parametrize(
    ("change", "left"),
    [
        (lambda log: log[log.index(b"\n") + 1 :], ROWS),
        (lambda log: bytes(600) + log[600:], None),
        (lambda log: log.replace(b"\n300,17", b"\n3x0,17"), [step for step in ROWS if step != 300]),
        (lambda log: log.replace(b"step,time", b"step-time"), ROWS),
        (lambda log: log.replace(b"\n300,17", b"\ninf,17"), [step for step in ROWS if step != 300]),
        (lambda log: log.replace(b",300.5", b",300.5,7"), [step for step in ROWS if step != 300]),
    ],
    ids=["no header", "zeros", "letter", "comma", "infinite", "cell"],
)
def test_what_cannot_be_read_of_a_log_is_set_aside_and_said(
    change: Callable[[bytes], bytes], left: list[int] | None, tmp_path: Path
) -> None:
    content = change(_log(range(100, 2100, 100)))
    path = tmp_path / "logs.csv"
    path.write_bytes(content)
    rows, unread = read_log(path)
    steps, said, aside = _cut(content, tmp_path)
    assert steps == [row["step"] for row in rows]
    if left is not None:
        assert steps == left
    assert len(said) == len(aside) == (unread > 0)
    if unread:
        assert "logs.damaged.csv now" in said[0] and aside[0].read_bytes() == content


def test_a_row_that_claims_a_later_step_than_the_next_is_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "logs.csv"
    path.write_text("step,time,sps\n1,1.000,5\n92,2.000,6\n3,3.000,7\n4,4.000,8\n")
    said: list[str] = []
    assert drop_rows_beyond(path, 3, say=said.append) == ["step", "time", "sps"]
    assert path.read_text() == "step,time,sps\n1,1.000,5\n3,3.000,7\n"
    assert "92,2.000,6" in (tmp_path / "logs.damaged.csv").read_text() and "1 lines" in said[0]


def test_nothing_that_was_set_aside_is_written_over(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / "logs.csv").write_text(f"mine {number}\n")
        with RunLog(tmp_path, resume_step=10, say=lambda text: None) as log:
            log.write(20, {"sps": 1.0})
        with RunLog(tmp_path) as log:
            log.write(5, {"sps": 1.0})
    asides = [f"logs.{kind}{number}.csv" for kind in ("damaged", "previous") for number in ("", "-2", "-3")]
    assert sorted(path.name for path in tmp_path.glob("logs.*.csv")) == sorted(asides)
    for number, of in enumerate(("", "-2", "-3")):
        assert (tmp_path / f"logs.damaged{of}.csv").read_text() == f"mine {number}\n"


@pytest.mark.parametrize("link", [Path.symlink_to, Path.hardlink_to])
def test_a_log_is_not_written_through_a_link(tmp_path: Path, link: Callable[[Path, Path], None]) -> None:
    home, run_dir = tmp_path / "home", tmp_path / "run"
    home.mkdir(), run_dir.mkdir()
    for content in ("step,time,sps\n1,1.000,5\n", "precious\n"):
        (home / "notes").write_text(content)
        link(run_dir / "logs.csv", home / "notes")
        with RunLog(run_dir, resume_step=1, say=lambda text: None) as log:
            log.write(2, {"sps": 6.0})
        assert (home / "notes").read_text() == content
        assert [row["step"] for row in rows_of(run_dir)] == (["1", "2"] if "step" in content else ["2"])
        (run_dir / "logs.csv").unlink()
        (run_dir / "logs.csv").symlink_to(home / "notes")
        with RunLog(run_dir) as log:
            log.write(2, {"sps": 6.0})
        assert (home / "notes").read_text() == content
        (run_dir / "logs.csv").unlink()


def test_reading_rows_skips_the_line_still_being_written(tmp_path: Path) -> None:
    path = tmp_path / "logs.csv"
    path.write_text("step,time,sps,game_return\n1,1.000,5,\n2,2.000,6,3.5\n3,3.0")
    assert read_rows(path) == [
        {"step": 1.0, "time": 1.0, "sps": 5.0},
        {"step": 2.0, "time": 2.0, "sps": 6.0, "game_return": 3.5},
    ]


def test_steps_may_not_go_backwards(tmp_path: Path) -> None:
    with RunLog(tmp_path) as log:
        log.write(10, {"sps": 1.0})
        with pytest.raises(ValueError, match="step 9 after"):
            log.write(9, {"sps": 1.0})


def test_hyperparameters_stay_in_the_runs_own_folder(tmp_path: Path) -> None:
    with RunLog(tmp_path) as log:
        log.hyperparameters({"core": "rdn", "lr": 6e-4, "clip": None, "dirs": ("a", "b")})
        log.write(1, {"sps": 1.0})
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == []
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert "options/text_summary" in events.Tags()["tensors"]
    assert events.PluginTagToContent("hparams").keys() >= {"_hparams_/session_start_info"}
    assert scalars(tmp_path, "speed/sps") == [(1, 1.0)]


def test_a_log_outlives_tensorboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which may fail at once, later, or as it is closed."""
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    for number, method in enumerate(("__init__", "scalar", "summary", "flush", "close")):
        with monkeypatch.context() as patch:

            def fails(*_: object, **__: object) -> None:
                raise full

            said: list[str] = []
            patch.setattr(EventFile, method, fails)
            with RunLog(tmp_path / str(number), say=said.append) as log:
                log.hyperparameters({"core": "rdn"})
                log.write(1, {"sps": 5.0})
                log.write_evaluation(1, {"eval/game_return": 3.0})
                log.write(2, {"sps": 6.0})
        line = "TensorBoard: [Errno 28] No space left on device; the run goes on without it"
        assert said == [line], method
        assert [row["sps"] for row in rows_of(tmp_path / str(number))] == ["5", "6"], method


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux only")
def test_a_row_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    """The log is the run's own record. TensorBoard's file is closed all the same."""
    log = RunLog(tmp_path)
    log._file = open("/dev/full", "w")  # noqa: SIM115
    with pytest.raises(OSError, match="No space left"):
        log.write(1, {"sps": 5.0})
    with pytest.raises(OSError, match="No space left"):
        log.close()
    assert log._tensorboard._sink._file._records._writer.closed
