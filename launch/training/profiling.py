"""`--profile`: a trace of some updates, which a browser shows as a timeline."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import torch
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile, record_function

from ...agents import files
from ...agents.stopwatch import Tracing
from ..errors import one_line

WARM_UP = 3
"""Updates before the trace begins: the first ones choose algorithms and build kernels."""
NAME = "profile.json"


class Trace:
    """Records the updates between the first calls of `mark`, then writes RUN/profile.json, once."""

    def __init__(self, updates: int, run_dir: Path, device: torch.device, say: Callable[[str], None]) -> None:
        self._updates, self._path, self._say = updates, run_dir / NAME, say
        self._done = 0
        os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # it would announce its beginning and end
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
        self._profile = profile(
            activities=activities, experimental_config=_ExperimentalConfig(profile_all_threads=True)
        )

    def mark(self) -> None:
        """Say that another update has been made."""
        self._done += 1
        if self._done == WARM_UP:
            self._try(self._begin)
        elif self._done == WARM_UP + self._updates:
            self._try(self._write)

    def close(self) -> None:
        """Write what there is, if training ended before."""
        if WARM_UP <= self._done < WARM_UP + self._updates:
            self._try(self._write)

    def _try(self, do: Callable[[], None]) -> None:
        """The run outlives its trace."""
        try:
            do()
        except (OSError, RuntimeError) as error:
            self._done = WARM_UP + self._updates
            self._say(f"--profile: {one_line(error)}; the run goes on without it")

    def _begin(self) -> None:
        self._profile.start()
        Tracing.mark = record_function

    def _write(self) -> None:
        Tracing.mark = None
        self._profile.stop()
        with files.atomic_path(self._path) as temporary:
            self._profile.export_chrome_trace(str(temporary))
        self._say(f"trace of {self._done - WARM_UP} updates: {self._path}; open it at ui.perfetto.dev")
        self._done = WARM_UP + self._updates
