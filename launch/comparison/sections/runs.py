"""Sections on the runs: which are in, and how they differ from the published ones."""

from __future__ import annotations

from ...runs.published import PROTOCOL
from ..curves import training_seconds
from ..differences import ABOUT_PUBLISHED_GAMES, ABOUT_THE_PUBLISHED, differences
from ..grouping import Comparison
from ..names import name_of
from ..relative import is_published
from ..report import Section
from ..scores import ScoreBoard
from ..tables import Cell, Table


def published_differences(comparison: Comparison, board: ScoreBoard) -> Section:
    """List every difference from the published numbers and, where they are shown, say what they are."""
    title = "Differences from the published numbers"
    lines = differences(comparison, board)
    played = set(comparison.games)
    if not any(map(is_published, played)):
        return Section(title, lines)
    text = ["How our scores are made otherwise than those of Irie et al. (2021), Tables 9 and 10:"]
    about = [*ABOUT_THE_PUBLISHED, *(line for games, line in ABOUT_PUBLISHED_GAMES.items() if games & played)]
    shown = board.protocol == PROTOCOL
    return Section(title, text, points=[*lines, *(f"Published: {line}" for line in about if shown)])


def runs(comparison: Comparison, board: ScoreBoard) -> Section:
    """List every run that is in, and the settings they share."""
    scored = {score.run.path: score.value for found in board.cells.values() for score in found}
    rows: list[list[Cell]] = []
    for (game, label), members in sorted(comparison.cells.items()):
        for run in members:
            minutes = float(training_seconds(run.rows)[-1]) / 60 if run.rows else None
            seed = "" if run.seed is None else str(run.seed)
            numbers = run.last_step or None, minutes, scored.get(run.path)
            made = run.versions.get("commit"), run.versions.get("torch")
            rows.append([name_of(game), label, str(run.path), seed, *numbers, *made])
    columns = ("game", "series", "run", "seed", "steps", "minutes", "score", "commit", "torch")
    return Section("Runs", _shared_settings(comparison), tables=[Table("runs", columns, rows, 4)])


def _shared_settings(comparison: Comparison) -> list[str]:
    every = [run.settings for run in comparison.runs()]
    shared = {
        name: value
        for name, value in every[0].items()
        if name != "origin" and all(str(other.get(name)) == str(value) for other in every)
    }
    named = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in shared.items())
    return [f"Settings that all runs share: {named}."] if named else []
