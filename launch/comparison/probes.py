"""Runs of `deltabeast probe`: read, put side by side by task, with the published numbers."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from ...agents.reading import read_object
from ...envs.sequences import GENERATORS
from ..config import ProbeConfig
from ..probe.result import read_result
from ..runs.directory import core_name, read_config, read_words
from ..runs.log import MOST_ROWS, read_log
from ..values import read_options


@dataclass(frozen=True)
class Probe:
    """One run of a probe."""

    path: Path
    task: str
    """with its options, all of them"""
    core: str
    core_options: Mapping[str, Any]
    settings: Mapping[str, Any]
    """what else makes runs of it different"""
    seed: int
    metric: str
    value: float
    """of the test with the best weights where there is one, else the best evaluation"""
    print_accuracy: float | None
    """of programs, in the best evaluation"""
    updates: int
    """that it was trained for, or has been so far"""
    ended: bool
    in_backbone: bool
    """whether it is a core as agents have it"""
    rows: Sequence[Mapping[str, float]]
    versions: Mapping[str, Any]

    @property
    def series(self) -> str:
        """The core with its options and these settings."""
        return labelled(self.core, self.core_options, self.settings)


def is_probe(path: Path) -> bool:
    return read_object(path / "config.json").get("command") == "probe"


def read_probe(path: Path) -> Probe | str:
    """Read a run, or say in one line why it is left out."""
    about, result = read_object(path / "config.json"), read_result(path)
    metric = about.get("metric")
    if not isinstance(metric, str):
        return f"{path}: left out; config.json does not say what it is judged by"
    try:
        config = _config(path)
    except ValueError as error:
        return f"{path}: left out; config.json: {error}"
    if _saw_a_window(about, config):
        return f"{path}: left out; of an earlier version, whose attention saw a window of each sequence"
    try:
        rows = [row for row in read_log(path / "logs.csv", MOST_ROWS)[0] if metric in row]
    except (OSError, ValueError, TypeError) as error:
        return f"{path}: left out; logs.csv cannot be read ({error})"
    best = rows[-1].get("best") if rows else None
    value = result.value if result and result.is_tested and result.metric == metric else best
    if value is None:
        return f"{path}: left out; it was not evaluated yet, or not with sequences of their full length"
    options = usual_options(config.task) | config.task_options
    given = {name: getattr(config, name) for name in _UNSET}
    best_row = next((row for row in rows if row[metric] == best), {})
    return Probe(
        path=path,
        task=labelled(config.task, options),
        core=core_name(config.core),
        core_options=config.core_options,
        settings={name: value for name, value in given.items() if value != _UNSET[name]},
        seed=config.seed,
        metric=metric,
        value=value,
        print_accuracy=best_row.get("print_accuracy"),
        updates=int(rows[-1]["step"]) if rows else 0,
        ended=result is not None,
        in_backbone=about.get("model") == "core",
        rows=rows,
        versions=read_words(path, "versions"),
    )


def _config(path: Path) -> ProbeConfig:
    """Read a run's options; unknown ones, of other versions, are left out. Raises ValueError."""
    names = {each.name for each in fields(ProbeConfig)}
    saved = {name: value for name, value in read_config(path).items() if name in names}
    options = read_options(ProbeConfig, saved)
    if "task" not in options:
        raise ValueError("it does not say which task was trained")
    return ProbeConfig(**options)


def _saw_a_window(about: Mapping[str, Any], config: ProbeConfig) -> bool:
    """Return whether an earlier version made a run, whose attention saw the last 64 steps where it sees all
    of a sequence now."""
    layers = str(config.core_options.get("layers", "softmax_attention")).split(",")
    kinds = layers if config.core == "hybrid" else [config.core]
    return (
        about.get("model") == "core"
        and "sequences" not in about
        and config.task != "text"
        and not {"window", "positions"} & {*config.core_options}
        and any(core_name(kind.strip()) in ("softmax_attention", "deltaformer") for kind in kinds)
    )


_UNSET: dict[str, Any] = {
    **dict.fromkeys(("updates", "batch_size", "learning_rate", "max_grad_norm", "dropout")),
    **{"variant": "code", "shell": "auto"},
}
"""options that make a run another where they are given, as they are where it is trained as published"""


def usual_options(task: str) -> dict[str, Any]:
    """Return a task's options as they are without being given; of a text, which is its file, none."""
    drawn = fields(GENERATORS[task]) if task in GENERATORS else ()
    return {each.name: each.default for each in drawn if each.name != "variant"}


def labelled(name: str, *options: Mapping[str, Any]) -> str:
    """Return a name with its options, in alphabetical order."""
    words = [f"{key} {value}" for each in options for key, value in sorted(each.items())]
    return " ".join([name, *words])


@cache
def published() -> dict[tuple[str, str, str], tuple[float, str]]:
    """Return published numbers and their sources, by task, metric and model as they are labelled here."""
    text = (files(__package__) / "published_probes.csv").read_text(encoding="utf-8")
    return {
        (row["task"], row["metric"], row["model"]): (float(row["value"]), row["source"])
        for row in csv.DictReader(text.splitlines())
    }
