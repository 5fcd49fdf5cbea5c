"""Figures, drawn with matplotlib. Nothing here computes a statistic.

Colours are of Okabe and Ito's palette, which colour-blind readers can tell apart; a core has the same one in
every report, cores of one kind share it, and series of one colour differ in their dashes. Every colour used
is in `COLORS`, with its counterpart for a dark page: `html.py` replaces them in the SVG.
"""

from __future__ import annotations

import io
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import fmean
from textwrap import fill
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import foreign

if TYPE_CHECKING:  # tables, which need numbers' format alone, are made without these
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from .curves import Band, Curve
    from .statistics import Interval

INK, MUTED, RULE, PAPER = "#1c2127", "#5d6670", "#d5dae0", "#ffffff"
BETTER, WORSE = "#0072b2", "#d55e00"
COLORS = {
    INK: "#e8ebee",
    MUTED: "#a3acb6",
    RULE: "#3a424b",
    PAPER: "#14181d",
    "#0072b2": "#55aee6",
    "#d55e00": "#ff8f4a",
    "#009e73": "#35c99b",
    "#cc79a7": "#e39ac3",
    "#e69f00": "#f0b63a",
    "#56b4e9": "#8fd0f7",
    "#767676": "#a8a8a8",
    "#8c564b": "#c69286",
    "#3b3b98": "#9a9aec",
}
"""Colours on white paper -> on a dark page."""

_CORE_COLORS = {
    "feedforward": "#767676",
    "gated_feedforward": "#8c564b",
    "lstm": "#0072b2",
    "linear_transformer": "#56b4e9",
    "delta_net": "#009e73",
    "delta_rnn": "#e69f00",
    "rdn": "#d55e00",
    "softmax_attention": "#cc79a7",
}
_KINDS = {
    "gru": "lstm",
    "gated_linear_attention": "linear_transformer",
    "gated_rule": "linear_transformer",
    "gated_delta_net": "delta_net",
    "momentum_delta_net": "delta_net",
    **dict.fromkeys(("kda", "gated_delta_net_2", "delta_product", "rwkv7"), "delta_net"),
    "delta_delta_net": "delta_net",
    "delta_lstm": "delta_rnn",
    "rdn_large": "rdn",
    "deltaformer": "softmax_attention",
    "gtrxl": "softmax_attention",
    "transformer": "softmax_attention",
}
"""Cores whose colour is that of another."""
_OTHER_COLORS = ("#3b3b98", "#cc79a7")
_DASHES = (
    *("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2))),
    *((0, (6, 2, 1.5, 2, 1.5, 2)), (0, (10, 3)), (0, (3, 1)), (0, (1, 4)), (0, (10, 2, 3, 2))),
)
_WIDTH = 4.9
"""inches; its text is 9 points, so that it can be read on a page 400 pixels wide"""
_MOST_SHADED = 4
"""Shades of more series would hide each other and the lines."""
_WHOLE_WIDTH = 62
"""letters of a name below the axes, which has the whole width except for its line"""
_TITLE_WIDTH = 48
_TITLE_LINE = 0.17
"""inches of a further line of a title"""
_SIDE_BY_SIDE = 45
"""letters of two names above the axes"""


class Look(NamedTuple):
    """Colour and dashes of a series."""

    color: str
    dashes: Any


class Figures(NamedTuple):
    """One figure in two forms."""

    svg: str
    png: bytes


def looks(core_of: Mapping[str, str]) -> dict[str, Look]:
    """Choose a look for every series: colour by core, dashes by its place among the series of that colour.

    Where all are settings of one core, each has a colour of its own.
    """
    kinds = {core: _KINDS.get(core, core) for core in core_of.values()}
    others = [kind for kind in dict.fromkeys(kinds.values()) if kind not in _CORE_COLORS]
    colors = {kind: _OTHER_COLORS[i % len(_OTHER_COLORS)] for i, kind in enumerate(others)} | _CORE_COLORS
    if len(kinds) == 1:
        (kind,) = kinds.values()
        palette = list(dict.fromkeys((colors[kind], *_CORE_COLORS.values())))
        return {
            label: Look(palette[i % len(palette)], _DASHES[i // len(palette) % len(_DASHES)])
            for i, label in enumerate(core_of)
        }
    seen: dict[str, int] = {}
    result = {}
    for label, core in core_of.items():
        color = colors[kinds[core]]
        number = seen[color] = seen.get(color, -1) + 1
        result[label] = Look(color, _DASHES[number % len(_DASHES)])
    return result


def learning_curves(
    curves: Mapping[str, Sequence[Curve]], bands: Mapping[str, Band], style: Mapping[str, Look],
    x_label: str, y_label: str, title: str, seconds: bool = False, ticks: Mapping[float, str] | None = None,
) -> Figures:  # fmt: skip
    """Draw each seed as a thin line and each mean bold, named; shade few series from lowest to highest.

    ticks: names of places on the x axis, where it counts neither steps nor seconds.
    """
    with _axes(_height(bands), title) as (figure, axes):
        few = len(curves) <= _MOST_SHADED
        for label, seeds in curves.items():
            _draw_seeds(axes, seeds, bands[label], style[label], few)
        axes.set(xlabel=x_label, ylabel=y_label)
        if ticks is None:
            axes.set_xlim(left=0)
        else:
            axes.set_xticks(list(ticks), list(ticks.values()))
        axes.margins(x=0.01)
        if seconds:
            _clock_ticks(axes)
        elif ticks is None:
            axes.xaxis.set_major_formatter(_steps)
        _name(figure, axes, bands, style)
        return _drawn(figure)


def _draw_seeds(axes: Axes, seeds: Sequence[Curve], band: Band, look: Look, few: bool) -> None:
    line: dict[str, Any] = {"color": look.color, "linestyle": look.dashes}
    for curve in seeds:
        axes.plot(curve.x, curve.y, **line, linewidth=0.7, alpha=0.45 if few else 0.2)
    if few and band.seeds > 1:
        axes.fill_between(band.x, band.low, band.high, color=look.color, alpha=0.14, linewidth=0)
    point = "o" if len(band.x) == 1 else None  # a line through one point is none
    axes.plot(band.x, band.mean, **line, linewidth=2.0, marker=point)


def _height(names: Collection[str]) -> float:
    """Return the height of a figure of curves, with room below for names that are long."""
    lines = _folded(names, _WHOLE_WIDTH)[0]
    return 3.2 + (0.2 * sum(line.count("\n") + 1 for line in lines) if _are_long(names) else 0.0)


def _are_long(names: Collection[str]) -> bool:
    """Return whether names would take more of the width than curves can spare."""
    return max(map(len, names), default=0) > 30


def _name(figure: Figure, axes: Axes, bands: Mapping[str, Band], style: Mapping[str, Look]) -> None:
    """Name each series at its end, or below the axes where names are long."""
    if not _are_long(bands):
        _name_ends(axes, bands, style)
        return
    from matplotlib.lines import Line2D

    lines = [
        Line2D([], [], color=style[name].color, linestyle=style[name].dashes, linewidth=2.0) for name in bands
    ]
    names, _ = _folded(bands, _WHOLE_WIDTH)
    figure.legend(lines, names, loc="outside lower left", frameon=False, handlelength=3.5)


def _name_ends(axes: Axes, bands: Mapping[str, Band], style: Mapping[str, Look]) -> None:
    """Label each series right of the axes, at the height where its mean ends."""
    low, high = axes.get_ylim()
    heights = spread([(band.mean[-1] - low) / (high - low) for band in bands.values()], 0.062)
    for (label, band), height in zip(bands.items(), heights, strict=True):
        axes.annotate(
            label, xy=(band.x[-1], band.mean[-1]), xytext=(1.04, height), xycoords="data",
            textcoords="axes fraction", color=style[label].color, va="center", fontweight="bold",
            arrowprops={"arrowstyle": "-", "color": style[label].color, "linewidth": 0.6, "alpha": 0.6},
            annotation_clip=False,
        )  # fmt: skip


def spread(positions: Sequence[float], gap: float) -> list[float]:
    """Move positions apart until neighbours are `gap` from each other, in the same order."""
    order = sorted(range(len(positions)), key=lambda i: positions[i])
    # Without the gaps neighbours may meet, but not pass each other: isotonic regression, pooling those that
    # would. Its mean stays where it was.
    pools: list[list[float]] = []
    for place, i in enumerate(order):
        pools.append([positions[i] - place * gap])
        while len(pools) > 1 and fmean(pools[-1]) < fmean(pools[-2]):
            pools[-2:] = [pools[-2] + pools[-1]]
    levels = [fmean(pool) for pool in pools for _ in pool]
    moved = {i: level + place * gap for place, (i, level) in enumerate(zip(order, levels, strict=True))}
    return [moved[i] for i in range(len(positions))]


def intervals(
    rows: Sequence[tuple[str, Interval, str]], title: str, x_label: str,
    reference: float | None = None, limits: tuple[float, float] | None = None,
) -> Figures:  # fmt: skip
    """Draw point estimates with their intervals, a coloured row each, the numbers at the right."""
    names, lines = _folded(label for label, _, _ in rows)
    with _axes(0.85 + (0.22 + 0.1 * lines) * len(rows), title) as (figure, axes):
        for place, (_, value, color) in enumerate(reversed(rows)):
            axes.plot([value.low, value.high], [place, place], color=color, linewidth=6, alpha=0.35,
                      solid_capstyle="butt")  # fmt: skip
            axes.plot([value.value], [place], "|", color=color, markersize=13, markeredgewidth=2.2)
            axes.annotate(number(value.value), (1.02, place), xycoords=("axes fraction", "data"), va="center",
                          color=INK, fontweight="bold", annotation_clip=False)  # fmt: skip
        if reference is not None:
            axes.axvline(reference, color=MUTED, linewidth=1.0, zorder=0)
        _name_rows(axes, names, 0.6)
        axes.set_xlabel(x_label)
        axes.locator_params(axis="x", nbins=4)
        axes.margins(x=0.06)
        if limits is not None:
            room = 0.03 * (limits[1] - limits[0])
            axes.set_xlim(limits[0] - room, limits[1] + room)
        return _drawn(figure)


def _name_rows(axes: Axes, names: Sequence[str], margin: float) -> None:
    """Name rows from the top down, with so much of a row free at either end."""
    axes.set_yticks(range(len(names)), names[::-1])
    axes.set_ylim(-margin, len(names) - 1 + margin)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")


def improvements(
    rows: Sequence[tuple[str, float | None]], title: str, x_label: str,
    better: str = "", worse: str = "", beside: Sequence[float | None] = (),
) -> Figures:  # fmt: skip
    """Draw percentages as bars from zero, labelled at their ends, in the order given; None has no bar.

    beside: the percentages of figures that stand beside this one, and have the same axis.

    The axis is linear to 100 % and logarithmic beyond: one game may gain 40 %, the next 8,000 %.
    """
    names, lines = _folded(label for label, _ in rows)
    with _axes(0.95 + (0.07 + 0.165 * lines) * len(rows), title) as (figure, axes):
        axes.set_xscale("symlog", linthresh=100, linscale=1.0)
        changes = [change for change in (*(change for _, change in rows), *beside) if change is not None]
        left, right = min([*changes, -100.0]), max([*changes, 100.0])
        marks = (-1e4, -1e3, -100, 0, 100, 1e3, 1e4, 1e5, 1e6)
        ticks = [t for t in (*marks, *((-50, 50) if right - left <= 600 else ())) if left <= t <= right]
        for place, (_, change) in enumerate(reversed(rows)):
            if change is None:
                axes.annotate("not defined", (0, place), (4, 0), textcoords="offset points", va="center",
                              color=MUTED, fontsize=8)  # fmt: skip
                continue
            axes.barh(place, change, color=BETTER if change > 0 else WORSE, height=0.68)
            axes.annotate(percent(change), (change, place), (3 if change >= 0 else -3, 0),
                          textcoords="offset points", va="center", ha="left" if change >= 0 else "right",
                          color=INK, fontsize=8)  # fmt: skip
        axes.axvline(0, color=INK, linewidth=1.0)
        # Room for the numbers at the ends of the bars.
        axes.set_xlim(left * (2.5 if left == -100 else 6), right * (2.5 if right == 100 else 4.5))
        axes.set_xticks(ticks, [percent(t) for t in ticks])
        axes.minorticks_off()
        _name_rows(axes, names, 0.7)
        axes.set_xlabel(x_label)
        if better and worse:
            if len(better) + len(worse) > _SIDE_BY_SIDE:  # the title names them
                better, worse = "the first", "the second"
            sides = ((0, "left", f"← {worse} better", WORSE), (1, "right", f"{better} better →", BETTER))
            for x, side, text, color in sides:
                axes.annotate(text, (x, 1.01), xycoords="axes fraction", color=color, fontsize=8, ha=side)
        return _drawn(figure)


def abilities(
    rows: Mapping[str, Sequence[float | str | None]], names: Sequence[str], style: Mapping[str, Look]
) -> Figures:
    """Draw a row of cells for each core, one an ability, the fuller the nearer to 1.

    None stays empty, and what has no such scale stands there as text.
    """
    narrow = len(names) > 5
    heads, most = _folded(names, 16 if narrow else 60 // len(names))
    cores, lines = _folded(rows, 22)
    with _axes(0.6 + (1.0 if narrow else 0.17 * most) + (0.12 + 0.15 * lines) * len(rows), "") as (
        figure,
        axes,
    ):
        figure.suptitle("What each memory can do", x=0.01, ha="left", fontsize=11, fontweight="bold")
        for row, values in enumerate(rows.values()):
            for column, value in enumerate(values):
                text = value if isinstance(value, str) else "" if value is None else number(round(value, 2))
                axes.text(column + 0.5, row, text, ha="center", va="center", color=INK)
                if isinstance(value, float):
                    full = min(max(value, 0.0), 1.0)
                    axes.barh(row, 0.94, left=column + 0.03, height=0.9, color=BETTER, alpha=0.6 * full)
        axes.set(xlim=(0, len(names)), ylim=(len(rows) - 0.5, -0.5))
        axes.set_xticks([column + 0.5 for column in range(len(names))], heads, rotation=90 if narrow else 0)
        axes.xaxis.tick_top()
        axes.set_yticks(range(len(rows)), cores)
        for label, core in zip(axes.get_yticklabels(), rows, strict=True):
            label.set_color(style[core].color)
        axes.tick_params(length=0)
        axes.grid(visible=False)
        axes.spines[:].set_visible(False)
        return _drawn(figure)


def _folded(labels: Iterable[str], width: int = 30) -> tuple[list[str], int]:
    """Break names that leave no room for what is drawn; return them and how many lines the longest has."""
    shown = map(foreign.figure, labels)
    folded = ["\n".join(fill(line, width) for line in label.split("\n")) for label in shown]
    return folded, max((label.count("\n") + 1 for label in folded), default=1)


def percent(value: float) -> str:
    """Format a percentage: +12 %, −50 %, 0 %, +8,475 %, with a real minus sign."""
    rounded = round(value)
    return f"{rounded:+,d} %".replace("-", "−") if rounded else "0 %"


def number(value: float) -> str:
    """Format a number with three significant digits, or with all before the point, or to a thousandth."""
    if abs(value) < 0.0005:
        return "0"
    digits = 0 if abs(value) >= 100 else 2 if abs(value) >= 0.01 else 3
    return f"{value:,.{digits}f}".replace("-", "−")


def precise(value: float) -> str:
    """Format a number with three significant digits however small it is, or with all before the point."""
    return number(value) if abs(value) >= 1 else f"{value:.3g}"


def with_interval(estimate: Interval) -> str:
    """Format an interval, 0.72 [0.63, 0.79]; without brackets where seeds do not vary."""
    if estimate.low == estimate.high:
        return number(estimate.value)
    return f"{number(estimate.value)} [{number(estimate.low)}, {number(estimate.high)}]"


def _steps(value: float, _: object = None) -> str:
    for scale, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= scale:
            return f"{value / scale:g}{letter}"
    return f"{value:g}"


def _clock_ticks(axes: Axes) -> None:
    """Place at most seven ticks at whole seconds, minutes or hours, all in one unit."""
    from matplotlib.ticker import MultipleLocator

    end = axes.get_xlim()[1]
    unit, name = next((u for u in ((3600.0, "h"), (60.0, "min")) if end >= 4 * u[0]), (1.0, "s"))
    counts = [base * 10**power for power in range(6) for base in (1, 2, 5)]
    axes.xaxis.set_major_locator(MultipleLocator(unit * next(c for c in counts if end / unit <= 6 * c)))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value / unit:g} {name}" if value else "0")


_STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlecolor": INK,
    "axes.edgecolor": RULE,
    "axes.labelcolor": MUTED,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.facecolor": "none",
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "figure.facecolor": PAPER,
    "text.color": INK,
    "text.parse_math": False,  # a name may hold a dollar
    "xtick.color": RULE,
    "ytick.color": RULE,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "svg.fonttype": "none",
    "svg.hashsalt": "deltabeast",
}


@contextmanager
def _axes(height: float, title: str) -> Iterator[tuple[Figure, Axes]]:
    """Make a figure of the common width and style. matplotlib is slow to import: only drawing pays for it."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    folded = fill(title, _TITLE_WIDTH)
    with rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH, height + _TITLE_LINE * folded.count("\n")))
        axes = figure.subplots()
        axes.set_title(folded, pad=16)
        yield figure, axes


def _drawn(figure: Figure) -> Figures:
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from matplotlib.text import Text

    for text in figure.findobj(Text):  # but labels of ticks, which are set anew: `_folded` makes those
        text.set_text(foreign.figure(text.get_text()))
    svg, png = io.StringIO(), io.BytesIO()
    ConstrainedLayoutEngine().execute(
        figure
    )  # once: as the figure's own, it would have each form drawn twice
    figure.savefig(png, format="png", dpi=150)
    figure.savefig(svg, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return Figures(svg.getvalue(), png.getvalue())
