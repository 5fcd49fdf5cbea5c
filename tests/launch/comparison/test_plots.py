"""Figures: what they name, and that it can be read."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pytest

from deltabeast.launch.comparison import plots
from deltabeast.launch.comparison.curves import Band, Curve
from deltabeast.launch.comparison.statistics import Interval


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


@pytest.mark.parametrize(
    "name", ["rdn", "delta_net · beta_max 2 feature_map unit normalise none residual gate · unroll length 52"]
)
def test_names_leave_room_for_what_is_drawn(name: str) -> None:
    names = [f"{name} {i}\nover {name}" for i in range(4)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # matplotlib's, where a layout cannot be
        drawn = [
            plots.intervals(
                [(label, Interval(0.5, 0.2, 0.7), plots.BETTER) for label in names], "title", "x"
            ),
            plots.improvements([(label, 30.0) for label in names], "title", "x"),
        ]
    for figures in drawn:
        places = re.findall(
            r'<text [^>]*?(?:translate\(|x=")([-\d.]+) ([-\d.]+)[^>]*>([^<]+)</text>', figures.svg
        )
        assert all(float(x) >= 0 for x, _, _ in places)
        written = " ".join(text for _, _, text in places)
        assert (
            written.count("beta_max 2" if "beta" in name else "rdn") == 8
        )  # whole, in as many lines as it takes


def test_abilities_are_cells_with_their_numbers_the_fuller_the_nearer_to_one() -> None:
    style = plots.looks({"rdn": "rdn", "lstm": "lstm"})
    rows: dict[str, list[float | str | None]] = {"rdn": [-0.4, None, "7.5"], "lstm": [0.5, 1.2, ""]}
    svg = plots.abilities(rows, ["hold", "recall in another order", "step, ms"], style).svg
    texts = re.findall(r">([^<>\n]+)</text>", svg)
    for text in ("rdn", "lstm", "hold", "step, ms", "−0.40", "0.50", "1.20", "7.5"):
        assert text in texts
    assert re.findall(r"fill: #0072b2; opacity: ([\d.]+)", svg) == ["0.3", "0.6"]  # not below 0, nor text
    for count in (1, 3, 5):
        heads = ["overwriting", *["recall in another order"] * (count - 1)]
        svg = plots.abilities({"rdn": [1.0] * count}, heads, style).svg
        assert svg.count(">overwriting<") == 1, "in one line"
        assert ">recall in another order<" not in svg, "there is no room for that"


def test_small_losses_are_told_apart_and_long_titles_stay_whole() -> None:
    assert [plots.precise(value) for value in (0.00063, 2.65e-5, 0.42, 1553.1, 0.0)] == [
        "0.00063", "2.65e-05", "0.42", "1,553", "0"
    ]  # fmt: skip
    title = " ".join(["text level word path"] * 5)
    style = plots.looks({"rdn": "rdn"})
    curve = Curve(np.array([0.0, 1.0]), np.array([0.0, 1.0]))
    svg = plots.learning_curves(
        {"rdn": [curve]}, {"rdn": Band(curve.x, curve.y, curve.y, curve.y, 1)}, style, "x", "y", title
    ).svg
    lines = [line for line in re.findall(r">([^<>\n]+)</text>", svg) if "level" in line or "path" in line]
    assert " ".join(lines) == title and len(lines) > 1


@pytest.mark.parametrize(("count", "seeds", "shades"), [(1, 3, 1), (4, 2, 4), (5, 2, 0), (2, 1, 0)])
def test_few_series_of_several_seeds_are_shaded(count: int, seeds: int, shades: int) -> None:
    x = np.arange(1.0, 4.0)
    labels = [f"rdn {number}" for number in range(count)]
    curves = {label: [Curve(x, x + seed) for seed in range(seeds)] for label in labels}
    bands = {label: Band(x, x + 0.5, x, x + 1, seeds) for label in labels}
    style = plots.looks(dict.fromkeys(labels, "rdn"))
    svg = plots.learning_curves(curves, bands, style, "steps", "return", "task").svg
    assert svg.count("FillBetween") == shades
