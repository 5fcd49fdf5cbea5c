"""Section of the performance profile: how many runs score how much, over games."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...units import count
from .. import plots
from ..aggregation import Aggregation
from ..curves import Band
from ..grouping import Comparison
from ..plots import Look
from ..report import Plot, Section
from ..scores import ScoreBoard
from ..statistics import ends, performance_profile, resample
from ..tables import Cell, Table

_HIGHEST = 2.0
"""Few runs score more than twice a human's, but one game may reach a hundred times that."""


def profile(comparison: Comparison, board: ScoreBoard, style: Mapping[str, Look]) -> list[Section]:
    """Draw the share of runs above every score; no section without normalised scores of several games."""
    over = Aggregation(comparison, board)
    if not over.normalized or len(over.games) < 2:
        return []
    samples = {label: over.of(label) for label in over.series}
    highest = max(float(game.max()) for sample in samples.values() for game in sample)
    thresholds = np.linspace(0.0, min(max(highest, 0.1), _HIGHEST), 101)
    bands = {}
    for label, sample in samples.items():
        (drawn,) = resample(sample, over_games=over.over_games, reps=2_000)
        low, high = ends(performance_profile(drawn, thresholds))
        share = performance_profile(sample, thresholds)
        bands[label] = Band(thresholds, share, low, high, seeds=sum(map(len, sample)))
    title = "Performance profile"
    figures = plots.learning_curves(
        {label: [] for label in bands}, bands, style, over.unit, "share of runs above it", title
    )
    rows: list[list[Cell]] = [
        [label, *map(float, numbers)]
        for label, band in bands.items()
        for numbers in zip(band.x, band.mean, band.low, band.high, strict=True)
    ]
    text = [
        "The share of runs that score more than what the axis says, each game weighing the same (Agarwal et "
        "al. 2021). A series above another throughout scored better, whatever score counts as enough; where "
        "two cross, one is better at scoring something, the other at scoring much; where bands overlap it "
        f"may be chance. Random play scores 0; runs below it, or above {_HIGHEST:g}, are off the axis.",
        f"{count(len(over.games), 'game')}; bands, drawn for up to four series, are 95% intervals from the "
        "same bootstrap as the aggregates'.",
        *over.about_single(*samples.values()),
    ]
    columns = ("series", over.unit, "share above", "low", "high")
    table = Table("performance-profile", columns, rows, 1, csv_only=True)
    return [Section(title, text, plots=[Plot("performance-profile", f"{title}.", figures)], tables=[table])]
