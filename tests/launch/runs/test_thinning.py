"""Long logs: which rows are read, what a resume and `info` need of them, and how much memory that takes."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deltabeast.launch.comparison.curves import training_seconds
from deltabeast.launch.runs import describe
from deltabeast.launch.runs.describe import describe_run
from deltabeast.launch.runs.log import TAGS, copy_rows_up_to, drop_rows_beyond, read_log, read_rows
from deltabeast.launch.runs.thinning import stood_still, thin

HEADER = "step,time,sps,game_return,life_return,best_game_return,episodes\n"


def write_log(path: Path, rows: int, at: Callable[[int], float] = float) -> None:
    lines = [f"{10 * i},{at(i):.3f},10,{i},{i},{i},{i}\n" for i in range(rows)]
    path.write_text(HEADER + "".join(lines))


def peak(function: Callable[..., Any], *arguments: Any, **options: Any) -> int:
    """Return how many bytes a call took at most."""
    tracemalloc.start()
    try:
        function(*arguments, **options)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("count", [0, 1, 2, 7, 19, 20, 21, 1000, 12_345])
def test_rows_are_thinned_evenly(count: int) -> None:
    kept = thin(range(count), 10, lambda before, after: False)
    assert len(kept) <= 20 and kept == sorted(set(kept))
    if count < 20:
        assert kept == list(range(count))
        return
    assert (kept[0], kept[-1]) == (0, count - 1) and len(kept) >= 10
    gaps = set(np.diff(kept[:-1]))
    assert len(gaps) == 1 and kept[-1] - kept[-2] <= max(gaps)


def test_rows_beside_stops_stay(seed: int) -> None:
    stops = sorted(random.Random(seed).sample(range(1, 5000), 8))
    kept = thin(range(5000), 100, lambda before, after: after in stops)
    assert {*stops, *(stop - 1 for stop in stops)} <= {*kept}
    assert len(thin(range(5000), 100, lambda before, after: True)) <= 201, "more stops than rows to read"


def test_a_stop_is_told_by_the_rows_own_speed() -> None:
    assert not stood_still(100.0, 100, 10.0) and stood_still(101.0, 100, 10.0)
    assert stood_still(-1.0, 100, 10.0) and stood_still(-1.0, 100, None) and not stood_still(1e9, 100, None)


def test_the_time_of_training_is_that_of_all_rows(tmp_path: Path) -> None:
    """A row a second, and stops of a minute and a day, which rows 50 seconds apart must tell of, too."""
    write_log(
        tmp_path / "logs.csv", 5000, lambda i: i + 60 * (i > 700) + 86400 * (i > 3333) - 90 * (i > 4000)
    )
    whole, (thinned, unread) = read_rows(tmp_path / "logs.csv"), read_log(tmp_path / "logs.csv", 100)
    assert len(whole) == 5000 and len(thinned) <= 200 and unread == 0
    assert training_seconds(whole)[-1] == 4999
    assert training_seconds(thinned)[-1] == pytest.approx(4999, abs=1)
    assert thinned[-1] == whole[-1] and thinned[0] == whole[0]
    assert all(row in whole for row in thinned)
    assert read_log(tmp_path / "logs.csv", 2501)[0] == whole


def test_the_end_of_a_log_is_read_alone(tmp_path: Path) -> None:
    path = tmp_path / "logs.csv"
    write_log(path, 5000)
    whole = read_rows(path)
    tail, unread = read_log(path, last_bytes=1000)
    assert unread == 0 and tail[0] == whole[0] and tail[1:] == whole[-len(tail) + 1 :]
    assert 20 < len(tail) < 40
    assert read_log(path, last_bytes=10**9)[0] == whole
    exact = len(path.read_bytes()) - len(HEADER) - len("0,0.000,10,0,0,0,0\n")
    assert read_log(path, last_bytes=exact)[0] == whole
    write_log(path, 1)
    assert len(read_log(path, last_bytes=1)[0]) == 1


def test_long_logs_do_not_go_through_memory(tmp_path: Path) -> None:
    path = tmp_path / "logs.csv"
    write_log(path, 20_000)
    before, size = path.read_bytes(), path.stat().st_size
    assert size > 600_000
    assert peak(drop_rows_beyond, path, 10**6) < 200_000 and path.read_bytes() == before
    assert peak(drop_rows_beyond, path, 150_000) < 200_000
    assert [row["step"] for row in read_rows(path)[-2:]] == [149_990, 150_000]
    assert peak(copy_rows_up_to, path, 150_000, tmp_path / "copy.csv") < 200_000
    assert (tmp_path / "copy.csv").read_bytes() == path.read_bytes()
    assert peak(read_log, path, 100) < 400_000 < peak(read_log, path)
    assert peak(read_log, path, last_bytes=1000) < 200_000


def test_a_line_without_an_end_does_not_fill_memory(tmp_path: Path) -> None:
    path = tmp_path / "logs.csv"
    path.write_text(HEADER + "1,1,1,1,1,1,1\n" + "x" * 5_000_000 + "\n2,2,2,2,2,2,2\n")
    assert peak(read_log, path) < 400_000
    rows, unread = read_log(path)
    assert [row["step"] for row in rows] == [1, 2] and unread == 1


def test_info_reads_the_end_of_a_long_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(describe, "_TAIL", 2000)
    write_log(tmp_path / "logs.csv", 20_000)
    assert peak(describe_run, tmp_path) < 400_000
    lines = dict(describe_run(tmp_path, now=20_059))
    assert lines["progress"] == "step 199,990, 10 steps/s, last row 1 m 0 s ago"
    assert lines["return"] == "19,999.0 (last 100, step 199,990)" and lines["best return"] == "19,999.0"


def test_info_meets_files_that_are_being_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_log(tmp_path / "logs.csv", 3)
    for name in ("a", "b"):
        (tmp_path / "eval").mkdir(exist_ok=True)
        (tmp_path / "eval" / f"{name}.json").write_text("{}")
    found, listed = Path.stat, []

    def stat(self: Path, **options: Any) -> Any:
        """The first is gone when it is looked at."""
        if self.name == "a.json" and self not in listed:
            listed.append(self)
            raise FileNotFoundError(2, "gone", str(self))
        return found(self, **options)

    monkeypatch.setattr(Path, "stat", stat)
    assert [text for label, text in describe_run(tmp_path) if label == "evaluation"] == [
        "a.json cannot be read", "b.json cannot be read"
    ]  # fmt: skip


def test_every_column_is_written_as_it_is_read(tmp_path: Path) -> None:
    """The quick way to write a line is that of the csv module."""
    path = tmp_path / "logs.csv"
    path.write_text("step,time,a\n1,1,\n2,2,3\n")
    assert drop_rows_beyond(path, 5, tuple(TAGS)) == ["step", "time", "a"]
    assert path.read_text() == "step,time,a\n1,1,\n2,2,3\n"
