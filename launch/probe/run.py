"""A run of a probe: as a run of `train`, a directory that its own command goes on with."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from ...agents import CheckpointError, files, save_checkpoint
from ...agents.checkpoint import OtherVersion, load_newest, read_checkpoint, set_aside_newer
from ...agents.manifest import checkpoint_paths
from ...agents.shapes import count_numbers
from ...envs.sequences.sequences import Sequences
from ...envs.sequences.text import Text
from ..config import ProbeConfig
from ..errors import RunError, StoppedBySignal, UsageError
from ..output import tell
from ..processes.machine import memory_for, resolve_device
from ..processes.supervision import announced, stop_signals
from ..runs.directory import check_command, check_free, claim, default_probe_dir, read_config, write_config
from ..runs.log import RunLog, tag_of
from ..runs.mine import remember
from ..runs.tracking import open_tracker
from ..training.engine import CannotRestore, restoring
from ..training.panel import Panel
from ..training.progress import Speed
from ..units import count
from .data import Batch, Fixed, Fresh, Stream, to_batch
from .learner import Learner
from .recipe import make_recipe, without_defaults
from .result import RESULT
from .shown import SCORES, ProbeShown

COLUMNS = ("sps", "tokens_per_second", "train_loss", *SCORES, "best", "length", "learning_rate", "tokens")
"""of logs.csv, after step (an update) and time; sps are updates per second"""
SAME = (
    *("task", "task_options", "variant", "core", "core_options", "seed"),
    *("batch_size", "learning_rate", "max_grad_norm", "dropout", "shell"),
)
"""options without which a run would be another experiment"""


class AskedToStop(Exception):
    """Ends training, an evaluation or the test between two batches."""


class ProbeRun:
    """One run, begun or gone on with. `run` trains it to its end, or until a signal asks to stop."""

    def __init__(self, config: ProbeConfig, stack: ExitStack, console: Console | None = None) -> None:
        """Raises UsageError for what cannot be, or a directory that holds another run."""
        reading = f"reading {config.task_options.get('path', config.task)}"
        with announced(reading, tell):
            self.recipe = make_recipe(config)
        self.config = config = without_defaults(config, self.recipe)
        try:
            self.device = resolve_device(config.device)
            with memory_for(f"core {config.core}"):
                self.learner = Learner(self.recipe, config.seed, self.device)
            self._model: Any = self.learner.model
            kind = Stream if self.recipe.span else Fixed if self.recipe.fixed else Fresh
            fixed = self.recipe.fixed
            drawing = f"drawing {sum(fixed):,} sequences of {config.task}" if fixed else reading
            with announced(drawing, tell):
                self.data: Stream | Fixed | Fresh = kind(self.recipe, config.seed)
        except ValueError as error:
            raise UsageError(str(error)) from error
        self.run_dir = config.run_dir or default_probe_dir(config)
        self.stop = threading.Event()
        self.update, self.tokens = 0, 0
        self.best: float | None = None
        """of the metric, at the full length of a curriculum"""
        self.strikes = 0
        self._losses: list[float] = []
        """since the last evaluation"""
        self._has_evaluated = False
        if not checkpoint_paths(self.run_dir):
            check_free(self.run_dir)
        stack.enter_context(claim(self.run_dir))
        resumed = self._resume()
        write_config(
            self.run_dir,
            config,
            command="probe",
            metric=self.recipe.metric,
            model=self.recipe.spec.kind,
            updates=self.recipe.updates,
            sequences="cut" if self.recipe.spec.is_cut else "whole",
        )
        shown = ProbeShown(self.recipe.metric)
        self.panel = stack.enter_context(
            Panel(self._title(), self.recipe.updates, self.update, console, shown=shown)
        )
        say = self.panel.message
        remember(self.run_dir, config, say)
        tracker = None
        if config.track:
            tracker = open_tracker(config.track, self.run_dir, resumed, say)
            stack.callback(tracker.close)
        self.log = RunLog(self.run_dir, self.update if resumed else None, COLUMNS, tracker, say)
        stack.callback(self.log.close)
        options = {name: value for name, value in vars(config).items() if name in SAME and value is not None}
        self.log.hyperparameters(options, (tag_of("best"),))
        if resumed:
            say(f"resuming {self.run_dir} at update {self.update}")

    def _title(self) -> str:
        weights = count_numbers(self._model.parameters())
        options = "".join(f" {name} {value}" for name, value in self.config.task_options.items())
        config = self.config
        return f"{config.task}{options} · {config.core} · seed {config.seed} · {weights:,} parameters"

    # ---- what is kept ----

    def _resume(self) -> bool:
        check_command(self.run_dir, "probe")
        try:
            found = load_newest(self.run_dir, read_checkpoint)
        except CheckpointError as error:
            raise RunError(str(error)) from error
        except OtherVersion as error:
            raise UsageError(str(error)) from error
        if found is None:
            return False
        (fields, weights, state), checkpoint = found
        self._check_same(checkpoint.step)
        if fields.get("embedding_size") != self.recipe.spec.embedding_size:
            raise UsageError(
                f"{self.run_dir} was begun by an earlier version, which trained {self.config.core} as an "
                "LSTM; give another --run-dir"
            )
        if self.recipe.spec.kind == "core" and self._model.opened and "is_cut" not in fields:
            raise UsageError(
                f"{self.run_dir} was begun by an earlier version, whose attention saw a window of each "
                "sequence; give another --run-dir"
            )
        if state.get("digest") != self._digest:
            raise UsageError(
                f"the text of {self.run_dir} is another than it began with; give another --run-dir"
            )
        self.update = checkpoint.step
        set_aside_newer(self.run_dir, checkpoint.step)
        try:
            with restoring("the learner"):
                self._restore(weights, state)
        except CannotRestore as error:
            raise UsageError(f"cannot resume {self.run_dir}: {error}; give another --run-dir") from error
        return True

    def _restore(self, weights: Mapping[str, torch.Tensor], state: Mapping[str, Any]) -> None:
        self.learner.load_state_dict(weights, state)
        self.tokens = state["tokens"]
        self.best, self.strikes, self._losses = state["best"], state["strikes"], state["losses"]
        if isinstance(self.data, Fresh):
            self.data.length = state["length"]

    def _check_same(self, updates: int) -> None:
        """Raise UsageError unless the run here, which had so many updates, is the one that was asked for."""
        saved = read_config(self.run_dir)
        # A learning rate that falls to zero over the updates is another for another number of them.
        names = (*SAME, "updates") if self.recipe.to_zero else SAME
        for name in names:
            if saved and _plain(saved.get(name)) != _plain(getattr(self.config, name)):
                raise UsageError(
                    f"{self.run_dir} holds a run with {name} {saved.get(name)}, not "
                    f"{getattr(self.config, name)}; give another --run-dir"
                )
        if updates > self.recipe.updates:
            raise UsageError(
                f"{self.run_dir} holds a run of {count(updates, 'update')}; give --updates {updates} or "
                "more, or another --run-dir"
            )

    def _save(self) -> None:
        state = {
            **self.learner.state_dict(),
            "tokens": self.tokens,
            "best": self.best,
            "strikes": self.strikes,
            "losses": self._losses,
            "length": self.length,
            "digest": self._digest,
        }
        save_checkpoint(self.run_dir, self.update, self._model, state)
        self._saved_at = time.monotonic()

    @property
    def _digest(self) -> str | None:
        """A checksum of what cannot be drawn again."""
        return self.recipe.task.digest if isinstance(self.recipe.task, Text) else None

    @property
    def length(self) -> int | None:
        return self.data.length if isinstance(self.data, Fresh) else None

    # ---- the loop ----

    def run(self) -> None:
        """Train and test. Raises RunError if files cannot be written, StoppedBySignal if told to stop."""
        with stop_signals(self.stop, self.panel.console.is_terminal) as asked:
            try:
                self._train()
                self._finish()
            except OSError as error:
                raise RunError(f"cannot write to {self.run_dir}: {error}") from error
            except CheckpointError as error:
                raise RunError(str(error)) from error
            except AskedToStop as stopped:
                at = f"stopped at update {self.update:,}"
                self.panel.message(f"{at}, saved in {self.run_dir}; run the same command to go on")
                if asked:
                    raise StoppedBySignal(asked[0]) from stopped

    def _train(self) -> None:
        """Train to the end, the last evaluation included. Raises AskedToStop, with a checkpoint."""
        self._speed, self._tokens_speed = Speed(self.update), Speed(self.tokens)
        self._saved_at = time.monotonic()
        try:
            if self._is_due():  # a run that was stopped before the evaluation, or in it
                self._evaluate()
            while not self._is_done():
                self._heed()
                self._learn()
                if self._is_due():
                    self._evaluate()
                elif (time.monotonic() - self._saved_at) / 60 >= self.config.checkpoint_minutes:
                    self._save()
        except AskedToStop:
            self._save()
            raise

    def _learn(self) -> None:
        batch = to_batch(self.data.batch(self.update), self.device)
        loss, output = self.learner.update(batch, self.update)
        self.update += 1
        self.tokens += batch.tokens.numel()
        self._speed.mark(self.update)
        self._tokens_speed.mark(self.tokens)
        self._losses.append(float(loss))
        if not math.isfinite(self._losses[-1]):
            raise RunError(
                f"the loss of update {self.update:,} is {self._losses[-1]}; start again with a lower "
                "--learning-rate and another --run-dir"
            )
        self._grow(output, batch.target)
        self.panel.print_eta(self.update)

    def _heed(self) -> None:
        """Raise AskedToStop if one did."""
        if self.stop.is_set():
            raise AskedToStop

    def _grow(self, output: torch.Tensor, target: torch.Tensor) -> None:
        """Double the length of sequences once a batch is right but for one answer in a thousand."""
        data = self.data
        if isinstance(data, Fresh) and data.length and data.longest and data.length < data.longest:
            right = (output.argmax(-1) == target).float().mean()
            data.length = min(2 * data.length, data.longest) if right > 0.999 else data.length

    def _evaluate(self) -> None:
        # Of many evaluations the first is announced: the others take as long.
        say = (lambda _: None) if self._has_evaluated else self.panel.message
        scores = self._scores(self.data.evaluation(self.update), "evaluating", say)
        self._has_evaluated = True
        better = self._at_full_length and self._is_better(scores[self.recipe.metric])
        if better:
            self.best = scores[self.recipe.metric]
            if not isinstance(self.data, Fresh):  # before the checkpoint whose `best` is theirs
                save_checkpoint(self.run_dir / "best", self.update, self._model, {})
        self.strikes = 0 if better or not self._at_full_length else self.strikes + 1
        row: dict[str, float] = {
            **scores,
            "train_loss": sum(self._losses) / len(self._losses),
            "tokens": self.tokens,
            "learning_rate": self.learner.learning_rate(self.update - 1),
        }
        rates = {"sps": self._speed.over(60.0), "tokens_per_second": self._tokens_speed.over(60.0)}
        row |= {name: rate for name, rate in rates.items() if rate}  # none where a run begins by this
        if self.best is not None:
            row["best"] = self.best
        if self.length is not None:
            row["length"] = self.length
        self._losses = []
        self.log.write(self.update, row)
        self.panel.update(self.update, row)
        self._save()

    @property
    def _at_full_length(self) -> bool:
        """Whether sequences are as long as they are to become: only those evaluations are compared."""
        return not isinstance(self.data, Fresh) or self.data.length == self.data.longest

    def _is_better(self, value: float) -> bool:
        return self.best is None or (value < self.best if self.recipe.lower_is_better else value > self.best)

    def _has(self, column: str) -> bool:
        """Return whether a column means something for this task."""
        task = self.config.task
        special = {
            "print_accuracy": task == "code",
            "perplexity": task == "text",
            **dict.fromkeys(("sequence_accuracy", "final_accuracy"), task != "text"),
        }
        return special.get(column, True)

    def _is_due(self) -> bool:
        """Return whether an evaluation of these weights is missing: it leaves no losses behind."""
        at = self.update % self.recipe.evaluate_every == 0 or self.update == self.recipe.updates
        return at and bool(self._losses)

    def _is_done(self) -> bool:
        recipe, best = self.recipe, self.best
        reached = best is not None and recipe.goal is not None and (
            best <= recipe.goal if recipe.lower_is_better else best >= recipe.goal
        )  # fmt: skip
        gave_up = recipe.patience is not None and self.strikes > recipe.patience
        return self.update >= recipe.updates or reached or gave_up

    def _finish(self) -> None:
        scores: dict[str, Any] = {"metric": self.recipe.metric, "best": self.best, "updates": self.update}
        if isinstance(self.data, Fresh):
            if self.data.longest:
                scores["length"] = self.length  # that sequences grew to
                self.data.length = self.data.longest
                scores["test"] = self._scores(
                    self.data.evaluation(self.update + 1), "testing", self.panel.message
                )
        else:
            found = load_newest(self.run_dir / "best", read_checkpoint)
            assert found is not None, "an evaluation came before the end"
            self._model.load_state_dict(found[0].weights)
            scores["test"] = self._scores(self.data.test(), "testing", self.panel.message)
            scores["best_update"] = found[1].step
        files.write(self.run_dir / RESULT, json.dumps(scores, indent=2) + "\n")
        value = scores["test"][self.recipe.metric] if "test" in scores else self.best
        what = f"{self.recipe.metric.replace('_', ' ')}{' (test)' if 'test' in scores else ''}"
        self.panel.message(
            f"finished after {count(self.update, 'update')}: {what} {value:.4g}, saved in {self.run_dir}"
        )

    def _scores(self, sequences: list[Sequences], doing: str, say: Callable[[str], None]) -> dict[str, float]:
        """Return scores of the weights as they are. Raises AskedToStop.

        `say` hears what is being done, if it takes long.
        """
        tokens = sum(part.tokens.size for part in sequences)
        with announced(f"{doing} with {tokens:,} tokens, at update {self.update:,}", say):
            scores = self.learner.evaluate(self._batches(sequences), self.update)
        return {name: value for name, value in scores.items() if self._has(name)}

    def _batches(self, sequences: list[Sequences]) -> Iterator[Batch]:
        for part in sequences:
            self._heed()
            yield to_batch(part, self.device)


def _plain(value: Any) -> Any:
    """Normalise an option, so that what was typed equals what config.json has of it."""
    if isinstance(value, dict):
        return {name: str(each) for name, each in value.items()}
    return str(value) if isinstance(value, Path) else value
