"""Find runs on disk and read what a comparison needs; weights are checked for damage, not loaded."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...agents.manifest import checkpoint_paths, damaged_file, read_spec
from ...agents.reading import read_json
from ...envs import canonical_game, find_protocol, varied
from ..evaluation.returns import Difference
from ..runs.consent import consent
from ..runs.directory import core_name, eval_command, read_config, read_words, was_truncated
from ..runs.log import MOST_ROWS, read_log
from ..runs.options import GROUPING_OPTIONS, LEGACY_VALUES, OPTIONS
from ..units import parse_steps

_SETTINGS = frozenset(GROUPING_OPTIONS) - {
    "game",
    "env",
    "core",
    "protocol",
    "frame_stack",
    "flicker",
    "blink",
}
"""Options that set runs of one game and core apart; the others that do are fields of `Run`."""

WITHOUT_FAST_WEIGHTS = frozenset({"feedforward", "gated_feedforward", "gru", "lstm"})
"""Cores whose gradients cross the whole unroll under either `--bptt`, so that it is no setting of theirs."""
_FORGETS = r"forgets every (\d+)"
"""How `evaluation/memory_ops.py` names results with state resets."""
TRUNCATED = "lstm, truncated"
"""Name of an LSTM whose gradients an earlier version cut at every step; no run is made so any more."""


@dataclass(frozen=True)
class Evaluation:
    """One file of a run's eval/. Returns are means of the repeats' means."""

    path: Path
    protocol: str | None
    greedy: bool
    step: int
    episodes: int
    """agent's episodes, over all repeats"""
    life: float | None
    """mean return of an agent's episode; a life under paper-code"""
    game: float | None
    """mean return of a whole game; None if none ended"""
    time: str
    unfinished: int = 0
    """further episodes, which did not end"""
    forgetful: Mapping[float, float] = field(default_factory=dict)
    """the game return, or if no game ended that of an episode, by the agent steps between state resets"""
    operations: Mapping[str, Difference] = field(default_factory=dict)
    """what each other operation on the memory changes in the return of an agent's episode, by its name"""


@dataclass(frozen=True)
class Run:
    """One training run: what was trained, how, and what it wrote down."""

    path: Path
    game: str
    """ROM name, or the environment's id"""
    core: str
    """its name; `TRUNCATED` for an LSTM whose gradients were cut at every step, which is another baseline"""
    core_options: Mapping[str, Any]
    """those that are not the core's defaults, as `_plain` spells them"""
    seed: int | None
    protocol: str | None
    """the one it was trained under; None for environments other than Atari games"""
    settings: Mapping[str, Any]
    """every option that changes what is learned"""
    steps: int | None
    """the budget; None where nothing says it"""
    rows: Sequence[Mapping[str, float]]
    evaluations: Sequence[Evaluation]
    versions: Mapping[str, Any]

    @property
    def last_step(self) -> int:
        """Agent steps learned from so far."""
        return int(self.rows[-1]["step"]) if self.rows else 0


def find_runs(arguments: Sequence[str]) -> tuple[list[Path], list[str]]:
    """Find the runs that paths, globs and trees name, each once; and a line for each that names none."""
    found: dict[Path, Path] = {}
    problems = []
    for argument in arguments:
        paths = [Path(argument)]
        if not paths[0].exists() and glob.has_magic(argument):
            paths = [Path(path) for path in sorted(glob.glob(argument, recursive=True))]
        runs = [run for path in paths for run in _runs_below(path)]
        if not runs:
            problems.append(f"no run at {argument}; give run directories, their folder, or a glob of them")
        for run in runs:
            found.setdefault(run.resolve(), run)
    return list(found.values()), problems


def _runs_below(path: Path) -> list[Path]:
    """Return the directory itself if it is a run, or else every run below it."""
    if not path.is_dir():
        return []
    if _is_run(path):
        return [path]
    below = []
    for folder, names, _ in os.walk(path):
        names.sort()
        if _is_run(Path(folder)):
            below.append(Path(folder))
            names.clear()  # a run holds no other
    return below


def _is_run(path: Path) -> bool:
    return (
        (path / "config.json").is_file() or (path / "logs.csv").is_file() or (path / "checkpoints").is_dir()
    )


def read_run(path: Path) -> tuple[Run | None, list[str]]:
    """Read a run, None if too little of it is left; and a line for each thing that is wrong with it."""
    wrong: list[str] = []
    config = read_config(path)
    checkpoint = next(reversed(checkpoint_paths(path)), None)
    spec = read_spec(checkpoint)
    if (path / "config.json").is_file() and not config:
        wrong.append("config.json cannot be read" + ("; its checkpoint is read instead" if spec else ""))
    options = {**config, **{name: value for name, value in spec.items() if value is not None}}
    game = options.get("game") or options.get("env_id") or options.get("env")
    core = core_name(str(options.get("core") or ""))
    if not game or not core:
        return None, [_left_out(path, [*wrong, "neither config.json nor a checkpoint says what it trained"])]
    try:
        game = canonical_game(game) if options.get("game") else str(game)
    except ValueError as error:
        return None, [_left_out(path, [*wrong, str(error)])]
    rows = _rows(path, wrong)
    evaluate = eval_command(path, *consent(core, str(options.get("env_id") or options.get("env"))))
    evaluations = _evaluations(path, evaluate, wrong)
    if not rows and not evaluations:
        trained = checkpoint is not None and int(checkpoint.name) > 0
        advice = f"make one with `{evaluate}`" if trained else "nor has it trained yet"
        wrong.append(f"it has no evaluation; {advice}")
        return None, [_left_out(path, wrong)]
    if checkpoint is None and not evaluations:
        wrong.append("no checkpoint, so it cannot be evaluated; what it logged is used")
    elif checkpoint is not None and (damaged := damaged_file(checkpoint)):
        wrong.append(f"{damaged} of its newest checkpoint is damaged; what it logged is used")
    settings = _settings(path, core, config, spec)
    if core in WITHOUT_FAST_WEIGHTS:
        settings.pop("bptt", None)
    if core == "lstm" and was_truncated(path):
        core = TRUNCATED
    run = Run(
        path=path,
        game=game,
        core=core,
        core_options=_plain(options.get("core_options"), core),
        seed=_seed(path, config),
        protocol=_protocol(config, spec) if options.get("game") else None,
        settings=settings,
        steps=_steps(config),
        rows=rows,
        evaluations=evaluations,
        versions=read_words(path, "versions"),
    )
    return run, [f"{path}: {reason}" for reason in wrong]


def _left_out(path: Path, reasons: Sequence[str]) -> str:
    return f"{path}: left out; {'; '.join(reasons)}"


TRAINED_UNDER = "paper-code"
"""The default protocol of `train`."""


def _protocol(config: Mapping[str, Any], spec: Mapping[str, Any]) -> str:
    """Name the protocol a game was played under, with what of it was seen."""
    if spec.get("protocol"):
        return str(spec["protocol"])
    view = (config.get(option) for option in ("frame_stack", "flicker", "blink"))
    return varied(config.get("protocol") or TRAINED_UNDER, *view)


def _settings(path: Path, core: str, config: Mapping[str, Any], spec: Mapping[str, Any]) -> dict[str, Any]:
    """Collect the options that affect what is learned, also those that are younger than the run."""
    origin = "elsewhere" if (path / "imported.json").is_file() else None
    if config:
        defaults = {name: value for name, value in LEGACY_VALUES.items() if name in _SETTINGS}
        # An option that only another version of deltabeast knows may matter.
        given = {name: value for name, value in config.items() if name in _SETTINGS or name not in OPTIONS}
        settings = {"origin": origin or "deltabeast", **defaults, **given}
    else:
        settings = {"origin": origin or "unknown"}  # nothing is known but the agent
    of_agent = ("stem", "core_options", "observations", "env_options")
    settings |= {name: spec[name] for name in of_agent if name in spec}
    auto = read_words(path, "auto")
    for name in [name for name, value in settings.items() if value == "auto"]:
        if name in auto:
            settings[name] = auto[name]
        else:  # an earlier version did not say what it came to
            del settings[name]
    for name in ("core_options", "env_options"):
        if isinstance(settings.get(name), dict):
            plain = _plain(settings[name], core if name == "core_options" else None)
            settings[name] = " ".join(f"{option} {plain[option]}" for option in plain) or "default"
    steps = _steps(config)
    return settings | ({"steps": steps} if steps is not None else {})


def _plain(options: object, core: str | None = None) -> dict[str, Any]:
    """Spell options alike: in alphabetical order, true and false as 1 and 0, since older runs know whole
    numbers alone. What is no mapping has none.

    core: whose options they are, for those at its defaults to be left out; code from outside is not loaded.
    """
    if not isinstance(options, dict):
        return {}
    if core and options and ":" not in core:
        from ...cores.registry import non_default_options  # imports torch, which few comparisons need here

        options = non_default_options(core, options)
    return {
        name: int(options[name]) if isinstance(options[name], bool) else options[name]
        for name in sorted(options)
    }


def _steps(config: Mapping[str, Any]) -> int | None:
    try:
        return parse_steps(str(config["steps"]))
    except (KeyError, ValueError):
        return None


def _seed(path: Path, config: Mapping[str, Any]) -> int | None:
    if isinstance(config.get("seed"), int):
        return int(config["seed"])
    named = re.search(r"seed-?(\d+)$", path.name)
    return int(named[1]) if named else None


def _rows(path: Path, wrong: list[str]) -> list[dict[str, float]]:
    log = path / "logs.csv"
    if not log.is_file():
        wrong.append("no logs.csv, so it has no learning curve")
        return []
    try:
        rows, unread = read_log(log, MOST_ROWS)
    except (OSError, ValueError) as error:
        wrong.append(f"logs.csv is damaged ({error}), so it has no learning curve")
        return []
    if unread:
        wrong.append(f"logs.csv is damaged: {unread} of its lines cannot be read; the others are used")
    return rows


def _evaluations(path: Path, evaluate: str, wrong: list[str]) -> list[Evaluation]:
    found = []
    for file in sorted((path / "eval").glob("*.json")):
        try:
            found.append(evaluation := _evaluation(file))
            if evaluation.unfinished:
                wrong.append(
                    f"{evaluation.unfinished} episodes of eval/{file.name} did not end, and are in no score"
                )
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            wrong.append(f"eval/{file.name} cannot be read; evaluate again with `{evaluate}`")
    return found


def _evaluation(file: Path) -> Evaluation:
    content = read_json(file)
    result = content["results"]["trained"]
    life, game = result["summary"]["life"], result["summary"]["game"]
    if content["protocol"] is not None:
        find_protocol(content["protocol"])
    return Evaluation(
        path=file,
        protocol=content["protocol"],
        greedy=bool(content["greedy"]),
        step=int(content["step"]),
        episodes=int(life["count"]) if life else 0,
        life=float(life["mean"]) if life else None,
        game=float(game["mean"]) if game else None,
        time=str(content["time"]),
        unfinished=int(result.get("unfinished", 0)),
        forgetful=_forgetful(content["results"]),
        operations=_operations(content["results"]),
    )


def _forgetful(results: Mapping[str, Any]) -> dict[float, float]:
    """Read what the agent scored with less memory."""
    kind = "game" if results["trained"]["summary"]["game"] else "life"
    scores = {}
    for name, result in results.items():
        every, summary = re.fullmatch(_FORGETS, name), result["summary"][kind]
        if every and summary:
            scores[float(every[1])] = float(summary["mean"])
    return scores


def _operations(results: Mapping[str, Any]) -> dict[str, Difference]:
    """Read the paired differences of the operations that are no state resets, where episodes were paired."""
    found = {}
    for name, result in results.items():
        change = result.get("difference", {}).get("life")
        if change and not re.fullmatch(_FORGETS, name):
            interval = None
            if change["interval"] is not None:
                low, high = map(float, change["interval"])
                interval = low, high
            found[name] = Difference(float(change["mean"]), interval)
    return found
