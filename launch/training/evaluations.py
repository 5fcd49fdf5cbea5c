"""`--eval-every`: a run's kept checkpoints evaluated one after another, beside training, at low priority."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

from ...agents.manifest import checkpoint_paths, is_milestone, saved_step
from ...agents.reading import read_object
from ...envs import EnvironmentFailed
from ..config import EvalConfig, TrainConfig
from ..errors import Incomplete, RunError, UsageError, one_line
from ..processes.child import Child, ChildDied

EPISODES, REPEATS = 4, 5
"""of each evaluation: a curve needs less than a score"""

Scores = Mapping[str, float]


class Evaluations:
    """What is still to be evaluated of a run, and the process that does it."""

    def __init__(
        self,
        run_dir: Path,
        config: TrainConfig,
        cpus: Collection[int],
        log: Callable[[int, Scores], None],
        say: Callable[[str], None],
    ) -> None:
        """Begin with the kept checkpoints of a run that have no evaluation yet.

        cpus: CPUs that the process may use; empty: those of this process.
        log: called with agent steps and scores, in the thread that calls `poll` and `finish`.
        """
        self._run_dir, self._config, self._cpus, self._log, self._say = run_dir, config, cpus, log, say
        self._waiting = deque(
            step
            for path in checkpoint_paths(run_dir)
            if is_milestone(path) and (step := saved_step(path)) and not evaluated(run_dir, step)
        )
        self._child: Child | None = None
        self._step = 0

    def add(self, step: int) -> None:
        """Have a checkpoint evaluated that was just kept."""
        self._waiting.append(step)

    def poll(self) -> None:
        """Log an evaluation that has ended, and begin the next one. Does not wait; what fails is told."""
        try:
            if self._child is not None and self._child.connection.poll():
                self._take()
            if self._child is None and self._waiting:
                self._step = self._waiting.popleft()
                config, name = self._eval_config(), f"evaluation of step {self._step}"
                self._child = Child(name, _serve, config, tuple(self._cpus))
        except Exception as error:  # no process to be had, a result that cannot be read
            self._say(f"step {self._step} has no evaluation: {one_line(error)}")

    @property
    def left(self) -> int:
        """Checkpoints that are not evaluated yet."""
        return len(self._waiting) + (self._child is not None)

    def finish(self, stopped: Callable[[], bool]) -> None:
        """Wait until everything is evaluated, or `stopped()`."""
        if self.left and not stopped():
            which = f"last {self.left} checkpoints" if self.left > 1 else "last checkpoint"
            self._say(f"evaluating the {which} of --eval-every")
        while self.left and not stopped():
            self.poll()
            time.sleep(0.05)

    def close(self) -> None:
        """End the process. What it had begun is evaluated when the run goes on."""
        if self._child is not None:
            self._child.end()
            self._child = None

    def _take(self) -> None:
        assert self._child is not None
        try:
            result = self._child.receive()
        except ChildDied as died:
            result = str(died)
        finally:
            self.close()
        if isinstance(result, str):
            self._say(f"step {self._step} has no evaluation: {result}")
            return
        saved, incomplete = result
        self._log(self._step, scores_of(saved))
        if incomplete:
            self._say(f"evaluation of step {self._step}: {incomplete}")

    def _eval_config(self) -> EvalConfig:
        config = self._config
        return EvalConfig(
            self._run_dir,
            checkpoint=str(self._step),
            episodes=EPISODES,
            repeats=REPEATS,
            seed=config.seed,
            device="cpu",  # a GPU is the learner's
            trust_core=config.core if ":" in config.core else None,
            trust_env=config.env,
            video=int(config.video),
        )


def evaluated(run_dir: Path, step: int) -> bool:
    """Return whether the checkpoint of `step` has an evaluation."""
    return any((run_dir / "eval").glob(f"*-{step}-*.json"))


def scores_of(result: Path) -> dict[str, float]:
    """Read what is logged of an evaluation: mean returns, by metric."""
    summaries = read_object(result)["results"]["trained"]["summary"]
    return {f"eval/{kind}_return": each["mean"] for kind, each in summaries.items() if each}


def _serve(connection: Connection, config: EvalConfig, cpus: tuple[int, ...]) -> None:
    """Evaluate, in a process of its own; send the path of the result and what it lacks, or in one line why
    there is none."""
    from rich.console import Console

    from ..evaluation.command import evaluate_run

    os.nice(19)
    if cpus:
        os.sched_setaffinity(0, cpus)
    os.environ["OMP_NUM_THREADS"] = "1"
    with open(os.devnull, "w") as nothing, connection, suppress(BrokenPipeError):  # nobody is left to be told
        try:
            connection.send((evaluate_run(config, Console(file=nothing)), ""))
        except Incomplete as error:
            connection.send((error.saved, str(error)))
        except (UsageError, RunError, EnvironmentFailed) as error:
            connection.send(str(error))
