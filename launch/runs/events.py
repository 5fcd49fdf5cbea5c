"""What logs.csv has, in a run's event files, as TensorBoard reads it."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...agents import files
from ..foreign import markdown
from .sinks import Options, Sink

_LAST = 9_999_999_999
"""of the seconds whose names sort as numbers do"""


class TensorBoard(Sink):
    """Shows a run that begins, or goes on after `resume_step`, in an event file of its own."""

    def __init__(self, run_dir: Path, resume_step: int | None) -> None:
        """Raises OSError."""
        self._file = EventFile(run_dir, purge_step=0 if resume_step is None else resume_step + 1)
        self._step = resume_step or 0

    def options(self, options: Options, headline: Sequence[str]) -> None:
        """Show them as a table of text and on the hyperparameter page."""
        from torch.utils.tensorboard.summary import hparams, text

        lines = [f"| {name} | {markdown(str(value))} |" for name, value in options.items()]
        table = "\n".join(["| option | value |", "|---|---|", *lines])
        # SummaryWriter.add_hparams would open a second run in a subfolder; these three records are what
        # it writes, put into this run's own file.
        for summary in (text("options", table), *hparams(dict(options), dict.fromkeys(headline, 0.0))):
            self._file.summary(summary, self._step)
        self._file.flush()

    def log(self, step: int, metrics: Mapping[str, float], at: float) -> None:
        for tag, value in metrics.items():
            self._file.scalar(tag, value, step, at)
        self._file.flush()
        self._step = max(self._step, step)

    def close(self) -> None:
        self._file.close()


class EventFile:
    """A new event file of a run, which TensorBoard reads after those that are there, whatever the clock says.

    Of those it then hides what has a step of `purge_step` or more: a run that goes on writes that again.
    torch's SummaryWriter names its files by the clock alone, and TensorBoard reads them in the order of their
    names: where the clock was set back, what a killed run wrote would hide what comes after it.
    """

    def __init__(self, run_dir: Path, purge_step: int, ending: str = "") -> None:
        """`ending`: what its name ends in. Raises OSError."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.summary.writer.record_writer import RecordWriter

        newest = _newest_second(run_dir)
        second = int(time.time()) if newest is None else max(int(time.time()), newest + 1)
        name = f"events.out.tfevents.{min(second, _LAST):010d}.{socket.gethostname()}.{os.getpid()}.0{ending}"
        self._event = Event
        self._records = RecordWriter(files.open_new(run_dir / name))
        self._write(file_version="brain.Event:2")
        if newest is not None:
            self._write(step=purge_step, session_log=SessionLog(status=SessionLog.START))

    def scalar(self, tag: str, value: float, step: int, at: float | None = None) -> None:
        """Add a point of a curve; `at` is its unix time, by default now."""
        from torch.utils.tensorboard.summary import scalar

        self.summary(scalar(tag, value), step, at)

    def summary(self, summary: Any, step: int, at: float | None = None) -> None:
        """Add what one of the functions of `torch.utils.tensorboard.summary` returned."""
        self._write(at, summary=summary, step=step)

    def _write(self, at: float | None = None, **content: Any) -> None:
        event = self._event(wall_time=time.time() if at is None else at, **content)
        self._records.write(event.SerializeToString())

    def flush(self) -> None:
        self._records.flush()

    def close(self) -> None:
        self._records.close()


def _newest_second(run_dir: Path) -> int | None:
    """Return the unix second in the name of the newest file, events.out.tfevents.SECOND.HOST..."""
    seconds = [path.name.split(".")[3] for path in run_dir.glob("events.out.tfevents.*")]
    return max((int(second) for second in seconds if second.isdecimal() and len(second) == 10), default=None)
