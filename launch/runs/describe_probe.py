"""What `deltabeast info` says of a run of `probe` where it is not as of one of `train`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..probe.result import read_result
from ..units import count, format_ago, format_duration, format_rate
from .directory import option_words, path_word


def is_probe(about: Mapping[str, Any]) -> bool:
    """Return whether the content of a config.json is that of a probe."""
    return about.get("command") == "probe"


def subject(config: Mapping[str, Any]) -> str:
    """Name the task, core and seed, as far as they are known."""
    named = [_words(config, "task"), _words(config, "core")]
    seed = config.get("seed")
    return " · ".join([*filter(None, named), *([] if seed is None else [f"seed {seed}"])])


def inputs(spec: Mapping[str, Any]) -> list[tuple[str, str]]:
    """List what a model with these fields of its `SequenceSpec` reads and says, if they can be read."""
    symbols, classes = spec.get("symbols"), spec.get("classes")
    if not isinstance(symbols, list) or not isinstance(classes, int):
        return []
    if not all(isinstance(size, int) for size in symbols):
        return []
    kinds = " x ".join(f"{size:,}" for size in symbols)
    return [("inputs", f"tokens of {kinds} kinds; {count(classes, 'answer')} to choose from")]


def progress(
    rows: Sequence[Mapping[str, float]], about: Mapping[str, Any], now: float
) -> list[tuple[str, str]]:
    """List how far the last row is, and its scores, with the length of the sequences that it is of."""
    row, metric, updates = rows[-1], str(about.get("metric", "")), _updates(about)
    goal = "" if updates is None else f" of {updates:,}"
    lines = [
        (
            "progress",
            f"update {int(row['step']):,}{goal}{_speed(rows)}, last row {format_ago(now - row['time'])}",
        )
    ]
    scores = {metric: row.get(metric), f"best {metric}": row.get("best")}
    at = f" at length {row['length']:,.0f}" if "length" in row else ""
    lines += [
        (name.replace("_", " "), f"{value:.4g}{at if name == metric else ''}")
        for name, value in scores.items()
        if value is not None
    ]
    return lines


def remaining(
    step: int, rows: Sequence[Mapping[str, float]], about: Mapping[str, Any], run_dir: Path, in_use: bool
) -> list[tuple[str, str]]:
    """List what it ended with, or the updates left after `step` and the command for them."""
    if not in_use and (result := read_result(run_dir)):
        tested = " (test)" if result.is_tested else ""
        name = result.metric.replace("_", " ")
        text = f"{name}{tested} {result.value:.4g} after {count(result.updates, 'update')}"
        return [("ended with", text), ("next", shlex.join(["deltabeast", "compare", path_word(run_dir)]))]
    updates = _updates(about)
    if updates is None:
        return []
    left = max(updates - step, 0)
    rate = next((row["sps"] for row in reversed(rows) if row.get("sps")), None)
    duration = f", {format_duration(left / rate)}{_speed(rows)}" if rate else ""
    again = ["deltabeast", "probe", *option_words("config", run_dir), *option_words("run_dir", run_dir)]
    what = f"{count(left, 'update')}{duration}" if left else "its last evaluation or test"
    lines = [("remaining", what)]
    return lines if in_use else [*lines, ("to go on", shlex.join(again))]


def _updates(about: Mapping[str, Any]) -> int | None:
    updates = about.get("updates")
    return updates if isinstance(updates, int) else None


def _words(config: Mapping[str, Any], name: str) -> str:
    options = config.get(f"{name}_options") or {}
    words = [str(config[name])] if config.get(name) else []
    return " ".join([*words, *(f"{key} {value}" for key, value in options.items())])


def _speed(rows: Sequence[Mapping[str, float]]) -> str:
    rate = next((row["sps"] for row in reversed(rows) if row.get("sps")), None)
    return f", {format_rate(rate)} updates/s" if rate else ""
