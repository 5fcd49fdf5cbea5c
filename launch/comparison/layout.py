"""TensorBoard's view of a comparison: mean curves with their spread, a page of charts, a table of results.

Written beside the runs, so that `tensorboard --logdir runs` shows them with the runs' own curves: "Custom
Scalars" has the charts, "HParams" one row for each game and series.

TensorBoard opens on "Time Series" (nothing in a log changes that; the address `#custom_scalars` does), whose
groups stand in the order of their names. So what to see first, scores and mean returns, is alone in the group
`comparison`; spreads and memory have groups of their own behind it.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any

from ...agents import files
from ..runs.events import EventFile
from ..runs.log import TAGS
from .curves import Band
from .grouping import Comparison
from .names import file_name, name_of
from .scores import ScoreBoard
from .sections.curves import MEMORY, series_curves

_ENDING = ".comparison"
"""of the names of its event files"""
_EVERY_RUN = {
    "score": ("game_return", "life_return", "best_game_return"),
    "memory": tuple(MEMORY),
    "learning": ("entropy", "baseline_loss", "grad_norm", "log_rho_abs_max"),
    "speed": ("sps",),
}


def write_layout(folder: Path, comparison: Comparison, board: ScoreBoard) -> None:
    """Write event files of this comparison into the folder; those of an earlier one give way."""
    # It imports torch, which nothing else here needs.
    from torch.utils.tensorboard.summary import custom_scalars

    files.remove_files(folder, _ENDING)
    with _events(folder) as events:
        events.summary(custom_scalars(charts(comparison)), 0)
    for game, label in comparison.cells:
        with _events(folder / _path(name_of(game)) / _path(label)) as events:
            for metric in ("game_return", *MEMORY):
                _, bands = series_curves(comparison, game, metric)
                if label in bands:
                    _add_band(events, _tags(game, metric), bands[label])
            _add_session(events, comparison, board, game, label)


def _events(folder: Path) -> AbstractContextManager[EventFile]:
    folder.mkdir(parents=True, exist_ok=True)
    return closing(EventFile(folder, 0, _ENDING))


def _add_band(events: EventFile, tags: Sequence[str], of: Band) -> None:
    for x, *values in zip(of.x, of.mean, of.low, of.high, strict=True):
        for tag, value in zip(tags, values, strict=True):
            events.scalar(tag, float(value), round(float(x)))


def charts(comparison: Comparison) -> dict[str, dict[str, list[Any]]]:
    """Return the charts of the "Custom Scalars" page, as `torch.utils.tensorboard` takes them."""
    logged = {(run.game, name) for run in comparison.runs() for row in run.rows for name in row}
    layout: dict[str, dict[str, list[Any]]] = {}
    for metric in ("game_return", *MEMORY):
        margins = {
            name_of(game): ["Margin", _tags(game, metric)]
            for game in comparison.games
            if (game, metric) in logged
        }
        if margins:
            layout[f"Comparison: {metric.replace('_', ' ')}, mean over seeds, lowest to highest"] = margins
    for title, metrics in _EVERY_RUN.items():
        layout[f"Every run: {title}"] = {
            metric.replace("_", " "): ["Multiline", [f"^{TAGS[metric]}$"]] for metric in metrics
        }
    return layout


def _add_session(events: EventFile, comparison: Comparison, board: ScoreBoard, game: str, label: str) -> None:
    """Add a row of the "HParams" page: game, core, settings and scores."""
    from torch.utils.tensorboard.summary import hparams

    members = comparison.cells[game, label]
    scores = board.cells.get((game, label), [])
    metrics = {"comparison/score": [s.value for s in scores]}
    metrics["comparison/normalized"] = [s.normalized for s in scores if s.normalized is not None]
    options = {
        "game": name_of(game),
        "core": comparison.core_of[label],
        "seeds": len(members),
        **{
            name: value if isinstance(value, bool | int | float | str) else str(value)
            for name, value in members[0].settings.items()
        },
    }
    for summary in hparams(options, dict.fromkeys(metrics, 0.0)):
        events.summary(summary, 0)
    for tag, values in metrics.items():
        if values:
            events.scalar(tag, statistics.fmean(values), max(score.step for score in scores))


def _tags(game: str, metric: str) -> list[str]:
    """Return the tags of a mean curve, of its lowest and of its highest seed."""
    tag = f"{name_of(game)}/{metric}"
    mean = f"comparison/{tag}" if metric == "game_return" else f"comparison_memory/{tag}"
    return [mean, f"comparison_spread/{tag}/low", f"comparison_spread/{tag}/high"]


def _path(label: str) -> str:
    """Return a game or series as the name of a folder, which TensorBoard shows; no name leads elsewhere."""
    plain = "".join(c if c.isalnum() or c in "_-., " else "-" for c in label.replace(" · ", ", "))
    plain = plain.strip(". ") or "-"
    return plain if len(plain) <= 80 else file_name(plain)
