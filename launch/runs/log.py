"""The log of a run: rows in logs.csv, and the same numbers in TensorBoard."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

from ...agents import files
from ...agents.reading import open_regular
from ..output import tell
from .events import TensorBoard
from .rows import csv_line, open_rows
from .sinks import FailSafeSink, Sink
from .thinning import stood_still, thin


def _tags(group: str, *keys: str) -> dict[str, str]:
    return {key: f"{group}/{key.removesuffix('_loss')}" for key in keys}


TAGS = {
    **_tags("speed", "sps", "sps_10s"),
    **_tags("score", "game_return", "life_return", "game_length", "episodes", "best_game_return"),
    **_tags("loss", "total_loss", "policy_loss", "baseline_loss", "entropy"),
    **_tags("learner", "grad_norm", "clipped_grad_share", "learning_rate", "reward_divisor"),
    **_tags("lag", "policy_lag", "policy_lag_max", "clipped_rho_share", "log_rho_abs_max"),
    **_tags("lag", "behavior_kl", "effective_sample_share", "reuse", "replay_age"),
    **_tags("learner", "forced_share"),
    **_tags("memory", "write_strength", "recurrent_write_strength", "fast_weight_norm"),
    **_tags("memory", "read_age", "read_beyond_10", "read_beyond_100", "read_beyond_1000"),
    **_tags("time", "share_emulation", "share_inference", "share_learning", "share_waiting"),
    **_tags("score", "score_wraps"),
}
"""TensorBoard tags by row key. The keys are also columns of logs.csv, in this order, after step and time."""

_OF_SOME_AGENTS = {
    **_tags("memory", "decay", "momentum", "erase_strength"),
    **_tags("learner", "value_mean", "value_std"),
}

CLUSTER_TAGS = {
    **_tags("cluster", "actors", "actor_restarts", "learner_restarts", "bytes_per_step", "unrolls_learned"),
    **_tags("cluster", "unrolls_lost", "unrolls_doubled", "unrolls_undone", "unrolls_died"),
}
"""Columns that only runs with --engine ray have."""

_ALL_TAGS = TAGS | CLUSTER_TAGS | _OF_SOME_AGENTS

HEADLINE_TAGS = (TAGS["game_return"], TAGS["life_return"], TAGS["sps"])
"""The metrics TensorBoard's hyperparameter page lists beside the options of each run."""

MOST_ROWS = 10_000
"""of a log that curves are drawn of, or twice as many: a day at a row each ten seconds is whole"""


def tag_of(key: str) -> str:
    """Return the TensorBoard tag of a row key; keys that are not listed are grouped under `other/`."""
    return _ALL_TAGS.get(key) or (key if "/" in key else f"other/{key}")


class RunLog(AbstractContextManager["RunLog"]):
    """Writes a run's metrics. Every row is on disk when `write` returns, so a killed run loses none.

    `resume_step` is the step of the checkpoint the run goes on from: rows that a killed run wrote beyond it
    are dropped, since training writes them again. None starts the log anew; an older logs.csv in the
    directory becomes logs.previous.csv. `columns` are those that a row of another kind of run may have.
    A `tracker` gets what TensorBoard gets. `say` hears of rows that cannot be read, of a log that was there
    before, and of TensorBoard where that fails: the log goes on without it.
    """

    def __init__(
        self,
        run_dir: Path,
        resume_step: int | None = None,
        columns: Sequence[str] = tuple(TAGS),
        tracker: Sink | None = None,
        say: Callable[[str], None] = tell,
    ) -> None:
        run_dir.mkdir(parents=True, exist_ok=True)
        self.path = run_dir / "logs.csv"
        self._last_step = -1 if resume_step is None else resume_step
        self._declared = columns
        self._columns: list[str] | None = None
        if resume_step is not None:
            self._columns = drop_rows_beyond(self.path, resume_step, columns, say)
        elif os.path.lexists(self.path):
            aside = files.set_aside(self.path, "previous")
            say(f"{self.path} was there before this run; it is {aside.name} now")
        self._file = files.open_to_append(self.path)
        self._tensorboard = FailSafeSink("TensorBoard", lambda: TensorBoard(run_dir, resume_step), say)
        self._sinks: list[Sink] = [self._tensorboard, *([tracker] if tracker else [])]

    def write(self, step: int, row: Mapping[str, float]) -> None:
        """Log one row at an agent step. Metrics that are absent or not finite stay empty."""
        if step < self._last_step:
            raise ValueError(f"a row at step {step} after one at step {self._last_step}")
        self._last_step = step
        now = float(row.get("time", time.time()))
        metrics = {key: float(value) for key, value in row.items() if key not in ("step", "time")}
        metrics = {key: value for key, value in metrics.items() if math.isfinite(value)}
        if self._columns is None:
            # Every known column from the start: a metric missing from the first row (no game has ended yet)
            # needs its place in later ones.
            # Speeds of single actors and nodes, with a slash in their names, are for TensorBoard alone.
            declared = ("step", "time", *self._declared)
            self._columns = [*declared, *(key for key in row if key not in declared and "/" not in key)]
            self._file.write(csv_line(self._columns))
        cells = {key: f"{value:.8g}" for key, value in metrics.items()}
        cells |= {"step": str(step), "time": f"{now:.3f}"}
        self._file.write(csv_line([cells.get(column, "") for column in self._columns]))
        self._file.flush()
        tagged = {tag_of(key): value for key, value in metrics.items()}
        for sink in self._sinks:
            sink.log(step, tagged, now)

    def write_evaluation(self, step: int, scores: Mapping[str, float]) -> None:
        """Show scores of a checkpoint, which may be older than the last row: beside logs.csv, not in it."""
        for sink in self._sinks:
            sink.log(step, scores, time.time())

    def hyperparameters(self, mapping: Mapping[str, Any], metrics: Sequence[str] = HEADLINE_TAGS) -> None:
        """Show a run's options beside its metrics."""
        plain = {key: value if isinstance(value, bool | int | float | str) else str(value)
                 for key, value in mapping.items()}  # fmt: skip
        for sink in self._sinks:
            sink.options(plain, metrics)

    def close(self) -> None:
        try:
            self._file.close()
        finally:
            self._tensorboard.close()

    def __exit__(self, *_: object) -> None:
        self.close()


def drop_rows_beyond(
    path: Path, step: int, metrics: Sequence[str] = tuple(TAGS), say: Callable[[str], None] = tell
) -> list[str] | None:
    """Cut a log after `step`, half lines too; return its columns, or None if it has none.

    If other lines cannot be read, the original log is set aside, and `say` hears of it.
    """
    if not os.path.lexists(path):
        return None
    first, again = _Cut(path, step, metrics), _Cut(path, step, metrics)  # a long log does not fit into memory
    if _is_content(path, first) and files.is_plain(path):
        return first.columns
    with files.atomic_write(path) as file:
        file.writelines(line.encode() for line in again)
        if first.unread:
            aside = files.set_aside(path, "damaged")
            say(f"warning: {first.unread} lines of {path} cannot be read; the original is {aside.name} now")
    return first.columns


def copy_rows_up_to(path: Path, step: int, target: Path) -> None:
    """Copy a log up to a step. Raises OSError."""
    with files.atomic_write(target) as file:
        file.writelines(map(str.encode, _Cut(path, step, tuple(TAGS))))


class _Cut:
    """The lines of a log up to a step, to go through once."""

    columns: list[str] | None = None
    """None if it has none; set after iteration, as is the next"""
    unread = 0
    """lines before the end of the log that cannot be read"""

    def __init__(self, path: Path, step: int, metrics: Sequence[str]) -> None:
        self._log = open_rows(path, metrics)
        self._step = step

    def __iter__(self) -> Iterator[str]:
        beyond = 0
        if self._log.has_header:
            yield self._header()
        for cells in self._log.rows:
            if cells is None:
                self.unread += 1
            elif int(cells[0]) > self._step:
                beyond += 1
            else:  # a later row with a smaller step means that the earlier ones are damaged
                self.unread, beyond = self.unread + beyond, 0
                if self.columns is None:
                    yield self._header()
                yield csv_line(cells)

    def _header(self) -> str:
        self.columns = self._log.columns
        return csv_line(self.columns)


def _is_content(path: Path, lines: Iterable[str]) -> bool:
    """Return whether a file consists of the lines; goes through all of them."""
    same = True
    with open_regular(path) as file:
        for line in map(str.encode, lines):
            same = same and file.read(len(line)) == line
        return same and not file.read(1)


def read_rows(path: Path) -> list[dict[str, float]]:
    """Read the complete rows of a logs.csv, without empty cells or a line that is still being written.

    Raises OSError, and ValueError if none of its lines can be read.
    """
    return read_log(path)[0]


def read_log(
    path: Path, most: int | None = None, last_bytes: int | None = None
) -> tuple[list[dict[str, float]], int]:
    """Read the rows as `read_rows` does, and count the lines of which not all can be read.

    Of a log of twice `most` rows or more, fewer are read, as `thin` chooses; with `last_bytes` those at the
    end.
    """
    log = open_rows(path, tuple(TAGS), last_bytes)
    rows, unread = [], 0

    def whole() -> Iterator[list[str]]:
        nonlocal unread
        for cells in log.rows:
            unread += cells is None
            if cells is not None:
                yield cells

    for cells in whole() if most is None else thin(whole(), most, _stopped(log.columns)):
        rows.append(_numbers(dict(zip(log.columns, cells, strict=True))))
        unread += len(rows[-1]) < len(cells) - cells.count("")
    if unread and not rows:
        raise ValueError("none of its lines can be read")
    return rows, unread


def _stopped(columns: Sequence[str]) -> Callable[[list[str], list[str]], bool]:
    """Return what says whether a run stood still between two rows, given their cells."""
    place = columns.index("sps") if "sps" in columns else None

    def stopped(before: list[str], after: list[str]) -> bool:
        steps, pause = (float(after[i]) - float(before[i]) for i in (0, 1))
        cell = "" if place is None else after[place]
        return stood_still(pause, steps, float(cell) if _is_number(cell) else None)

    return stopped


def _numbers(row: Mapping[str, str]) -> dict[str, float]:
    """Read the cells that are numbers; what else there is, someone else wrote."""
    with suppress(ValueError):
        numbers = {name: float(cell) for name, cell in row.items() if cell}
        if math.isfinite(sum(numbers.values())):
            return numbers
    return {name: float(cell) for name, cell in row.items() if _is_number(cell)}


def _is_number(cell: str) -> bool:
    try:
        return math.isfinite(float(cell))
    except ValueError:
        return False
