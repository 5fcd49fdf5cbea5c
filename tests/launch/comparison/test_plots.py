"""Figures: what they name, and that it can be read."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pytest

from deltabeast.launch.comparison import plots
from deltabeast.launch.comparison.curves import Band, Curve


@pytest.mark.parametrize("name", ["rdn {}", "linear_transformer feature_map favor favor_features {}"])
def test_every_series_is_named_whole(name: str) -> None:
    """However long its name and however many there are, and none looks like another."""
    labels = [name.format(number) for number in range(7)]
    x = np.arange(1.0, 4.0)
    curves = {label: [Curve(x, x * i)] for i, label in enumerate(labels)}
    bands = {label: Band(x, x * i, x * i, x * i, 1) for i, label in enumerate(labels)}
    style = plots.looks(dict.fromkeys(labels, "rdn"))
    assert len({(look.color, str(look.dashes)) for look in style.values()}) == len(labels)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # matplotlib's, where a layout cannot be
        svg = plots.learning_curves(curves, bands, style, "updates", "loss", "task").svg
    width = float(svg.split('viewBox="0 0 ')[1].split()[0])
    places = re.findall(r'<text [^>]*?(?:translate\(|x=")([-\d.]+)[^>]*>([^<]+)</text>', svg)
    for label in labels:
        (at,) = (float(x) for x, text in places if text == label)
        assert at >= 0 and at + 4.5 * len(label) <= width, label  # 9 points: half as wide as high
