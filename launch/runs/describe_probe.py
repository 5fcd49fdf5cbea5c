"""What `deltabeast info` says of a run of `probe` where it is not as of one of `train`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..probe.result import RESULT
from ..units import format_ago, format_duration, format_rate
from .directory import option_words, path_word, read_object


def is_probe(about: Mapping[str, Any]) -> bool:
    """Return whether the content of a config.json is that of a probe."""
    return about.get("command") == "probe"


def subject(config: Mapping[str, Any]) -> str:
    """Name the task, core and seed, as far as they are known."""
    named = [_words(config, "task"), _words(config, "core")]
    seed = config.get("seed")
    return " · ".join([*filter(None, named), *([] if seed is None else [f"seed {seed}"])])


def progress(
    rows: Sequence[Mapping[str, float]], about: Mapping[str, Any], now: float
) -> list[tuple[str, str]]:
    """List how far the last row is, and its scores, with the length of the sequences that it is of."""
    row, metric = rows[-1], about.get("metric", "")
    goal = f" of {about['updates']:,}" if "updates" in about else ""
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
    step: int, rows: Sequence[Mapping[str, float]], about: Mapping[str, Any], run_dir: Path, held: bool
) -> list[tuple[str, str]]:
    """List what it ended with, or the updates left after `step` and the command for them."""
    if not held and (result := read_object(run_dir / RESULT)):
        metric = result.get("metric", "")
        value = result.get("test", {}).get(metric, result.get("best"))
        tested = " (test)" if "test" in result else ""
        text = f"{metric.replace('_', ' ')}{tested} {value:.4g} after {result.get('updates', 0):,} updates"
        return [("ended with", text), ("next", shlex.join(["deltabeast", "compare", path_word(run_dir)]))]
    if "updates" not in about:
        return []
    left = max(int(about["updates"]) - step, 0)
    rate = next((row["sps"] for row in reversed(rows) if row.get("sps")), None)
    duration = f", {format_duration(left / rate)}{_speed(rows)}" if rate else ""
    again = ["deltabeast", "probe", *option_words("config", run_dir), *option_words("run_dir", run_dir)]
    lines = [("remaining", f"{left:,} updates{duration}")]
    return lines if held else [*lines, ("to go on", shlex.join(again))]


def _words(config: Mapping[str, Any], name: str) -> str:
    options = dict(config.get(f"{name}_options") or {})
    words = [str(config[name])] if config.get(name) else []
    return " ".join([*words, *(f"{key} {value}" for key, value in options.items())])


def _speed(rows: Sequence[Mapping[str, float]]) -> str:
    rate = next((row["sps"] for row in reversed(rows) if row.get("sps")), None)
    return f", {format_rate(rate)} updates/s" if rate else ""
