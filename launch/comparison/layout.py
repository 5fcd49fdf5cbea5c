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
from pathlib import Path
from typing import Any

from ...agents import files
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
    from torch.utils.tensorboard import SummaryWriter

    files.remove_files(folder, _ENDING)
    with SummaryWriter(str(folder), filename_suffix=_ENDING) as writer:
        writer.add_custom_scalars(custom_scalars(comparison))
    for game, label in comparison.cells:
        inner = folder / _path(name_of(game)) / _path(label)
        with SummaryWriter(str(inner), filename_suffix=_ENDING) as writer:
            for metric in ("game_return", *MEMORY):
                _, bands = series_curves(comparison, game, metric)
                if label in bands:
                    _add_band(writer, _tags(game, metric), bands[label])
            _add_session(writer, comparison, board, game, label)


def _add_band(writer: Any, tags: Sequence[str], of: Band) -> None:
    for x, *values in zip(of.x, of.mean, of.low, of.high, strict=True):
        for tag, value in zip(tags, values, strict=True):
            writer.add_scalar(tag, value, round(float(x)))


def custom_scalars(comparison: Comparison) -> dict[str, dict[str, list[Any]]]:
    """Return the charts of the "Custom Scalars" page, as `SummaryWriter.add_custom_scalars` takes them."""
    logged = {(run.game, name) for run in comparison.runs() for row in run.rows for name in row}
    layout: dict[str, dict[str, list[Any]]] = {}
    for metric in ("game_return", *MEMORY):
        charts = {
            name_of(game): ["Margin", _tags(game, metric)]
            for game in comparison.games
            if (game, metric) in logged
        }
        if charts:
            layout[f"Comparison: {metric.replace('_', ' ')}, mean over seeds, lowest to highest"] = charts
    for title, metrics in _EVERY_RUN.items():
        layout[f"Every run: {title}"] = {
            metric.replace("_", " "): ["Multiline", [f"^{TAGS[metric]}$"]] for metric in metrics
        }
    return layout


def _add_session(writer: Any, comparison: Comparison, board: ScoreBoard, game: str, label: str) -> None:
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
        writer._get_file_writer().add_summary(summary, 0)
    for tag, values in metrics.items():
        if values:
            writer.add_scalar(tag, statistics.fmean(values), max(score.step for score in scores))


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
