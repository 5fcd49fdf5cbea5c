"""`deltabeast info RUN`: what a run is, how far it came, what it scored, and what it needs to go on."""

from __future__ import annotations

import os
import shlex
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...agents.manifest import checkpoint_paths, damaged_file, is_exported, is_milestone, read_spec
from ...agents.reading import read_object
from ..errors import UsageError
from ..units import count, format_ago, format_duration, format_score, parse_steps
from .consent import consent
from .describe_probe import inputs, is_probe, progress, remaining, subject
from .directory import eval_command, is_claimed, no_run, read_config, resume_command
from .log import read_log
from .observations import reading
from .presets import PURPOSES, overridden

_TAIL = 1 << 20
"""bytes of a log that are read: some thousand rows, of which the newest have all there is to say"""


def describe_run(run_dir: Path, now: float | None = None) -> list[tuple[str, str]]:
    """Describe a run in labelled lines. Loads no weights; checks the newest checkpoint for damage."""
    config, about = read_config(run_dir), read_object(run_dir / "config.json")
    of_probe = is_probe(about)
    checkpoints = checkpoint_paths(run_dir)
    rows, damage = _read_log(run_dir)
    if not config and not checkpoints and not rows:
        raise UsageError(no_run(run_dir))
    spec = read_spec(checkpoints[-1] if checkpoints else None)
    options = {**config, **{key: value for key, value in spec.items() if value is not None}}
    lines = [("run", str(run_dir)), ("trains", subject(config) if of_probe else _subject(options))]
    if preset := config.get("preset"):
        purpose = f" ({PURPOSES[preset]})" if preset in PURPOSES else ""
        changes = ", ".join(overridden(config))
        lines.append(("preset", f"{preset}{purpose}" + (f", but {changes}" if changes else "")))
    if of_probe:
        lines += inputs(spec)
    elif spec and (not options.get("game") or spec.get("normalised")):
        lines.append(("observations", f"read as {reading(spec)}"))
    if uses := about.get("uses"):
        lines.append(("uses", f"{uses}, when it was last begun"))
    if source := read_object(run_dir / "imported.json"):
        lines.append(("imported from", f"{source.get('file')}, SHA-256 {str(source.get('sha256'))[:16]}..."))
    if not config:
        what = "cannot be read" if (run_dir / "config.json").exists() else "is not there"
        damage.insert(0, f"config.json {what}, so its options are not known")
    if checkpoints and (file := damaged_file(checkpoints[-1])) and checkpoints[-1].exists():
        damage.append(f"{file} of the newest checkpoint; eval and train go back to the one before")
    lines += [("damaged", line) for line in damage]
    in_use = is_claimed(run_dir)
    at = time.time() if now is None else now
    if rows and of_probe:
        lines += progress(rows, about, at)
    elif rows:
        lines += _progress(rows[-1], config, at)
        lines += _scores(rows, lives=bool(options.get("game")))
    lines.append(("checkpoints", _list_checkpoints(checkpoints)))
    evaluations = sorted((run_dir / "eval").glob("*.json"), key=lambda path: _status(path)[1])
    lines += [("evaluation", _evaluation(path)) for path in evaluations]
    lines += [("why", str(path)) for path in sorted((run_dir / "eval").glob("why-*/why.html"))]
    videos = sorted((run_dir / "videos").glob("[!.]*.mp4"))
    lines += [("video", str(path)) for path in videos]
    lines.append(("disk", _disk(run_dir)))
    if in_use:
        lines.append(("held by", "another process, which trains here now"))
    step = int(rows[-1]["step"]) if in_use and rows else int(checkpoints[-1].name) if checkpoints else 0
    if of_probe:
        return lines + remaining(step, rows, about, run_dir, in_use)
    words = consent(str(options.get("core")), str(options.get("env_id") or options.get("env")))
    evaluate = eval_command(run_dir, *words)
    if checkpoints and is_exported(checkpoints[-1]):
        return [*lines, ("next", f"an exported agent; {evaluate}")]
    return lines + _remaining(step, config, rows, run_dir, in_use, evaluate)


def _remaining(
    step: int,
    config: Mapping[str, Any],
    rows: list[dict[str, float]],
    run_dir: Path,
    in_use: bool,
    evaluate: str,
) -> list[tuple[str, str]]:
    """List the steps left after `step`, and the command for them; `evaluate` is that of a finished run."""
    try:
        left = parse_steps(str(config["steps"])) - step
    except (KeyError, ValueError):
        return []
    if left <= 0:
        run = shlex.quote(str(run_dir))
        further = f"deltabeast train --config {run} --run-dir {run} --steps MORE"
        return [("next", f"finished; {evaluate}"), ("further", further)]
    speed = next((row["sps"] for row in reversed(rows) if row.get("sps")), None)
    duration = f", {format_duration(left / speed)} at {speed:,.0f} steps/s" if speed else ""
    moved = bool(rows) and not in_use and int(rows[-1]["step"]) != step
    begun = f", from the newest checkpoint, step {step:,}" if moved else ""
    lines = [("remaining", f"{count(left, 'step')}{duration}{begun}")]
    if in_use:
        return lines
    try:
        return [*lines, ("to go on", resume_command(config, run_dir))]
    except ValueError as error:
        return [*lines, ("damaged", f"config.json: {error}; so no command goes on with it")]


def _read_log(run_dir: Path) -> tuple[list[dict[str, float]], list[str]]:
    """Read the rows of the run's log, and what is wrong with it."""
    try:
        rows, unread = read_log(run_dir / "logs.csv", last_bytes=_TAIL)
    except FileNotFoundError:
        return [], []
    except (OSError, ValueError):
        return [], ["logs.csv cannot be read, so its progress is not known"]
    return rows, [f"logs.csv has {unread} lines that cannot be read"] if unread else []


def _disk(run_dir: Path) -> str:
    used = sum(_status(Path(folder, name))[0] for folder, _, names in os.walk(run_dir) for name in names)
    return f"{used / 1e6:,.1f} MB here, {shutil.disk_usage(run_dir).free / 1e9:,.1f} GB free"


def _status(path: Path) -> tuple[int, float]:
    """Return the size and the time of a file; zeros for one that a run has removed meanwhile."""
    try:
        status = path.stat()
    except OSError:
        return 0, 0.0
    return status.st_size, status.st_mtime


def _subject(options: Mapping[str, Any]) -> str:
    """Name the run's environment, core, stem, protocol and seed, as far as they are known."""
    name = options.get("game") or options.get("env_id") or options.get("env") or "unknown environment"
    subject = _with_options(name, options.get("env_options"))
    core = _with_options(options.get("core"), options.get("core_options"))
    parts = [subject, core, options.get("stem"), options.get("protocol")]
    seed = options.get("seed")
    return " · ".join(str(part) for part in [*parts, f"seed {seed}" if seed is not None else None] if part)


def _with_options(name: str | None, options: Mapping[str, Any] | None) -> str | None:
    """Write a name's options in brackets behind it."""
    if not name or not options:
        return name
    return f"{name} ({', '.join(f'{key} {value}' for key, value in options.items())})"


def _progress(row: Mapping[str, float], config: Mapping[str, Any], now: float) -> list[tuple[str, str]]:
    goal = f" of {config['steps']}" if "steps" in config else ""
    speed = f", {row['sps']:,.0f} steps/s" if "sps" in row else ""
    return [("progress", f"step {int(row['step']):,}{goal}{speed}, last row {format_ago(now - row['time'])}")]


def _scores(rows: list[dict[str, float]], lives: bool) -> list[tuple[str, str]]:
    """List the newest score of each kind, with the step of its row; without lives, both kinds are one."""
    lines = []
    kinds = [("game_return", "game return"), ("life_return", "life return")]
    for key, label in kinds if lives else [("game_return", "return")]:
        row = next((row for row in reversed(rows) if key in row), None)
        where = f" ({_episodes(row, key)}, step {int(row['step']):,})" if row else ""
        lines.append((label, f"{format_score(row[key])}{where}" if row else "none finished yet"))
    best = [row["best_game_return"] for row in rows if "best_game_return" in row]
    label = "best game return" if lives else "best return"
    return [*lines, *([(label, format_score(best[-1]))] if best else [])]


def _episodes(row: Mapping[str, float], key: str) -> str:
    """Say of how many episodes a mean return is the mean; the log counts games, of which lives are parts."""
    games = int(row.get("episodes", 100))
    return f"last {min(100, games)}" if games >= 100 or key == "game_return" else "last 100 at most"


def _list_checkpoints(checkpoints: list[Path]) -> str:
    names = [f"{int(path.name):,}{' (kept)' if is_milestone(path) else ''}" for path in checkpoints]
    return ", ".join(names) or "none"


def _beside(evaluation: Mapping[str, Any]) -> str:
    """Name what an evaluation has beside the trained agent's scores."""
    altered = evaluation["results"].keys() - {"trained", "random"}
    has = {
        "random play": "random" in evaluation["results"],
        f"{count(len(altered), 'alteration')} of the memory": bool(altered),
        "a certificate": "certificate" in evaluation,
    }
    names = [name for name, is_there in has.items() if is_there]
    return f"; also {', '.join(names)}" if names else ""


def _evaluation(path: Path) -> str:
    content = read_object(path)
    try:
        summary = content["results"]["trained"]["summary"]
        parts = [
            f"{kind} {format_score(score['mean'])} ± {format_score(score['std'], score['mean'])}"
            for kind in (("life", "game") if content["protocol"] else ("game",))
            if (score := summary[kind])
        ]
        protocol = f", {content['protocol']}" if content["protocol"] else ""
        how = "greedy" if content["greedy"] else "sampled"
        size = f"{content['repeats']} x {content['episodes']} episodes"
        return f"step {content['step']:,}{protocol}, {how}, {size}: {', '.join(parts)}{_beside(content)}"
    except (KeyError, TypeError, ValueError):
        return f"{path.name} cannot be read"
