"""`deltabeast export`: an agent as a folder to give away, itself a run that eval, info and compare read."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

from rich.console import Console

from ...agents import files
from ...agents.checkpoint import export_agent, is_leftover
from ...agents.manifest import checkpoint_paths, is_exported, weights_digest
from ...agents.reading import read_object
from ...cores import FastWeightCore
from ...cores.surgery import empty_forms
from ..comparison import plots
from ..comparison.curves import band, curve_of
from ..config import ExportConfig, Scope
from ..errors import RunError, UsageError
from ..evaluation.loading import Loaded, load
from ..output import say
from ..pages import PageFolder
from ..runs.directory import read_config, read_words
from ..runs.log import MOST_ROWS, copy_rows_up_to, read_log
from ..runs.options import FIXED, deciding
from .card import CARD, CURVE, STILL, Exported, can_be_shown, write_card
from .game import put_game, read_game
from .still import draw_still


def export(config: ExportConfig, console: Console | None = None) -> Path:
    """Write the folder; return it. Raises UsageError, with nothing written, or RunError."""
    console = console or Console()
    tell = partial(say, console)
    loaded = load(config.run, config.checkpoint, config.trust_core, tell)
    folder = config.folder
    _check_folder(folder, loaded.run_dir)
    game = None if config.recording is None else read_game(config.recording, loaded)
    try:
        digests = [weights_digest(path) for path in checkpoint_paths(folder)]
        checkpoint = export_agent(folder, loaded.step, loaded.agent, config.half)
        if others := sorted(path.name for path in set(checkpoint.parent.iterdir()) - {checkpoint}):
            tell(f"left beside it in {checkpoint.parent}: {', '.join(others)}")
        is_new = weights_digest(checkpoint) not in digests
        if is_new:  # what was evaluated here was another agent
            _clear_evaluations(loaded.run_dir, folder, tell)
        _copy_config(loaded, folder)
        _copy_evaluations(loaded, folder, tell)
        pages = PageFolder(folder, tell, is_ours=bool(digests))
        pictures = _pictures(loaded, folder, pages, tell)
        has_game = put_game(game, loaded, folder, is_new, tell)
        pages.write_page(CARD, write_card(_read(loaded, folder, pictures, has_game, config)))
    except OSError as error:
        raise RunError(f"cannot write to {folder}: {files.why(error)}") from error
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    tell(f"exported step {loaded.step:,} to {folder}, {size / 1e6:.1f} MB; {CARD} describes it")
    return folder


def _check_folder(folder: Path, run_dir: Path) -> None:
    """Raise UsageError if the folder holds anything but an earlier export."""
    if folder.resolve() == run_dir.resolve():
        raise UsageError(f"{folder} is the run itself; give another folder")
    if not folder.exists():
        return
    if not folder.is_dir() or not (_holds_export(folder) or _holds_nothing(folder)):
        raise UsageError(f"{folder} is something else than an export; give a folder that is new")
    ours, theirs = (read_config(path) for path in (run_dir, folder))
    if any(ours.get(name) != theirs[name] for name in (*deciding(Scope.AGENT), *FIXED) if name in theirs):
        raise UsageError(f"{folder} holds an export of another run; give a folder that is new")


def _holds_export(folder: Path) -> bool:
    paths = checkpoint_paths(folder)
    return bool(paths) and all(map(is_exported, paths))


def _holds_nothing(folder: Path) -> bool:
    """Whether the folder is empty, or as an export leaves it that could not be written."""
    within = [path for path in folder.iterdir() if path.name != "checkpoints"]
    checkpoints = folder / "checkpoints"
    return not within and (not checkpoints.exists() or all(map(is_leftover, checkpoints.iterdir())))


def _copy_config(loaded: Loaded, folder: Path) -> None:
    """Copy what the run was told and what it logged up to that step; not where it lay, nor who was told."""
    run_dir = loaded.run_dir
    content = read_object(run_dir / "config.json")
    if isinstance(content.get("config"), dict):
        content["config"] |= dict.fromkeys(("run_dir", "config", "track", "ray_address"))
        files.write(folder / "config.json", json.dumps(content, indent=2) + "\n")
    if (run_dir / "logs.csv").is_file():
        copy_rows_up_to(run_dir / "logs.csv", loaded.step, folder / "logs.csv")


def _copy_evaluations(loaded: Loaded, folder: Path, tell: Callable[[str], None]) -> None:
    """Copy the evaluations of the exported step, beside those made of it since an earlier export."""
    step = f"-{loaded.step}-"
    for file in sorted((loaded.run_dir / "eval").glob(f"*{step}*.json")):
        content = read_object(file)
        if not can_be_shown(content):
            tell(f"{file} cannot be read, and is left out")
        else:
            content["checkpoint"] = f"checkpoints/{loaded.step:012d}"
            files.write(folder / "eval" / file.name, json.dumps(content, indent=2) + "\n")


def _clear_evaluations(run_dir: Path, folder: Path, tell: Callable[[str], None]) -> None:
    """Remove the copies of the run's evaluations; those that were made here get another name."""
    evaluations = folder / "eval"
    copies = [file for file in evaluations.glob("*.json") if _is_copy(file, run_dir / "eval" / file.name)]
    for copy in copies:
        files.remove(copy)
    if not evaluations.is_dir() or files.remove_folder(evaluations, ()):
        return
    aside = files.set_aside(evaluations, "previous")
    tell(f"{evaluations} is from before the weights here changed: it is {aside.name} now")


def _is_copy(file: Path, original: Path) -> bool:
    contents = [{**read_object(path), "checkpoint": None} for path in (file, original)]
    return len(contents[0]) > 1 and contents[0] == contents[1]


def _pictures(loaded: Loaded, folder: Path, pages: PageFolder, tell: Callable[[str], None]) -> list[str]:
    """Draw the learning curve and a still of a game, as far as there are any; return their names."""
    made = []
    for name, content in ((CURVE, _curve(loaded, folder)), (STILL, draw_still(loaded, tell))):
        if content:
            pages.write(name, content)
            made.append(name)
    return made


def _curve(loaded: Loaded, folder: Path) -> bytes | None:
    try:
        curve = curve_of(read_log(folder / "logs.csv", MOST_ROWS)[0], "game_return")
    except (OSError, ValueError, TypeError):
        return None
    if len(curve.x) < 2:
        return None
    core = loaded.agent.spec.core
    what = f"{loaded.agent.spec.game or loaded.agent.spec.env_id}: return in training"
    figures = plots.learning_curves(
        {core: [curve]}, {core: band([curve])}, plots.looks({core: core}), "agent steps",
        "return, last 100 games", what,
    )  # fmt: skip
    return figures.png


def _read(
    loaded: Loaded, folder: Path, pictures: list[str], has_game: bool, config: ExportConfig
) -> Exported:
    evaluations = [read_object(file) for file in sorted((folder / "eval").glob("*.json"))]
    evaluations = list(filter(can_be_shown, evaluations))
    core = loaded.agent.core
    return Exported(
        agent=loaded.agent,
        step=loaded.step,
        options=read_config(folder),
        versions=read_words(folder, "versions"),
        evaluations=evaluations,
        pictures=pictures,
        half=config.half,
        note=config.note,
        has_game=has_game,
        reads_writes=isinstance(core, FastWeightCore) and None not in empty_forms(core, 1),
    )
