"""The display of a run: a live panel on a terminal, one line per row of the log anywhere else."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel as Frame
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ..foreign import terminal
from ..output import say
from ..units import format_duration, format_rate, format_score

PARTS = {
    "emulation": ("blue", "more CPU cores would help"),
    "inference": ("cyan", "a GPU or more environments per batch would help"),
    "learning": ("green", "a GPU, or a faster one, or a smaller core would help"),
    "waiting": ("yellow", "more actors or a longer queue may help"),
}
"""Parts of a run's time, in the order of the bar: colour, and remedy where it bounds the run."""

MAX_WIDTH = 100
FIRST_LOOK = 5.0
"""Seconds after the first update until the measured speed is used to predict the run's length."""


def bottleneck(shares: Mapping[str, float], reuse: float = 1.0) -> str:
    """Say in one sentence which part of its time bounds a run, and what would help.

    `shares` maps emulation, inference, learning and waiting to shares of the time, 0 to 1; each step is
    learned from `reuse` times.
    """
    finite = {part: shares[part] for part in PARTS if math.isfinite(shares.get(part, math.nan))}
    if not finite or max(finite.values()) <= 0:
        return "Not measured yet."
    first, *others = sorted(finite, key=lambda part: -finite[part])
    if others and finite[first] - finite[others[0]] < 0.05:
        return f"{first.capitalize()} and {others[0]} bound this run alike."
    often = f", each step {reuse:g} times," if first == "learning" and reuse > 1 else ""
    return f"{first.capitalize()}{often} bounds this run: {PARTS[first][1]}."


class PanelContent(Protocol):
    """What a kind of run shows of a row of its log, beside its progress."""

    step: str
    """what a step is called"""
    steps: str
    """many of them, where there is room"""
    rate: str
    """steps per second"""

    def line(self, row: Mapping[str, float]) -> list[str]:
        """Return parts of a line."""

    def figures(self, row: Mapping[str, float], width: int, ascii_only: bool) -> list[RenderableType]:
        """Return what is drawn below one another."""


class Panel:
    """Shows how a run goes. Use as a context manager; `update` at every log interval."""

    def __init__(
        self,
        title: str,
        total_steps: int,
        start_step: int = 0,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
        shown: PanelContent | None = None,
    ) -> None:
        self.title = terminal(title)
        self._shown = shown or TrainingShown()
        self.total_steps = total_steps
        self.console = console or Console()
        self._clock = clock
        self._began = clock()
        self._step = start_step
        self._live: Live | None = None
        self._first: tuple[float, int] | None = None
        """time and step of the first update; before it there may be much to prepare"""
        self._eta_printed = False

    def __enter__(self) -> Panel:
        if self.console.is_terminal:
            self._live = Live(self._render({}), console=self.console, auto_refresh=False)
            self._live.start(refresh=True)
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def update(self, step: int, row: Mapping[str, float]) -> None:
        """Show a row of metrics (the keys of logs.csv) at an agent step."""
        self._step = step
        numbers = {key: float(value) for key, value in row.items() if math.isfinite(value)}
        if self._live is not None:
            self._live.update(self._render(numbers), refresh=True)
        else:
            say(self.console, self._line(numbers))

    def print_eta(self, step: int) -> None:
        """Say once, soon after the first update, how long the run will take, unless it is a minute."""
        now = self._clock()
        since, first = self._first = self._first or (now, step)
        if self._eta_printed or now < since + FIRST_LOOK or step <= first:
            return
        self._eta_printed = True
        speed = (step - first) / (now - since)
        minutes = math.ceil((self.total_steps - step) / speed / 60)
        if minutes < 2:
            return
        text = format_duration(60 * minutes) if minutes > 90 else f"{minutes} minutes"
        self.message(f"about {text} to go at {format_rate(speed)} {self._shown.step}s/s")

    def message(self, text: str) -> None:
        """Print one line above the panel, or on its own."""
        say(self.console, text)

    def _eta(self, row: Mapping[str, float]) -> float | None:
        speed = row.get("sps")
        return max(0.0, (self.total_steps - self._step) / speed) if speed else None

    def _share_done(self) -> str:
        return f"{min(self._step / max(self.total_steps, 1), 1.0):.1%}"

    def _line(self, row: Mapping[str, float]) -> str:
        last, shown = row.get("sps_10s", row.get("sps")), self._shown
        parts = [
            f"{shown.step} {self._step:,} of {self.total_steps:,} ({self._share_done()})",
            f"{format_rate(last)} {shown.rate} (60 s: {format_rate(row.get('sps'))})",
            f"ETA {format_duration(self._eta(row))}",
        ]
        return " | ".join([*parts, *self._shown.line(row)])

    def _render(self, row: Mapping[str, float]) -> Frame:
        width = min(self.console.width, MAX_WIDTH)
        inner = width - 4
        elapsed = format_duration(self._clock() - self._began)
        return Frame(
            Group(
                self._progress(row, inner),
                *self._shown.figures(row, inner, self.console.options.ascii_only),
            ),
            title=Text(self.title, style="bold"),
            title_align="left",
            subtitle=Text(f"running for {elapsed}", style="dim"),
            subtitle_align="right",
            border_style="bright_black",
            width=width,
        )  # fmt: skip

    def _progress(self, row: Mapping[str, float], width: int) -> Group:
        head = Table.grid(expand=True)
        head.add_column()
        head.add_column(justify="right")
        head.add_row(
            Text.assemble((f"{self._step:,}", "bold"), f" of {self.total_steps:,} {self._shown.steps}"),
            Text.assemble((self._share_done(), "bold"), f"   ETA {format_duration(self._eta(row))}"),
        )  # fmt: skip
        bar = Table.grid()  # the bar alone would not end its line
        bar.add_row(ProgressBar(total=max(self.total_steps, 1), completed=self._step, width=width))
        speed = Text.assemble(
            (format_rate(row.get("sps_10s", row.get("sps"))), "bold"), f" {self._shown.step}s/s over 10 s   ",
            (format_rate(row.get("sps")), "bold"), " over 60 s",
        )  # fmt: skip
        return Group(head, bar, speed)


class TrainingShown:
    """What a training run shows: scores, losses, and where its time goes.

    lives: whether games have lives; where they have none, there is one return.
    reuse: how many times each step is learned from.
    """

    step, steps, rate = "step", "agent steps", "SPS"

    def __init__(self, lives: bool = True, reuse: float = 1.0) -> None:
        self.lives = lives
        self.reuse = reuse

    def line(self, row: Mapping[str, float]) -> list[str]:
        parts = [
            f"{'game' if self.lives else 'return'} {_score(row.get('game_return'))}",
            *([f"life {_score(row.get('life_return'))}"] if self.lives else []),
            f"best {_score(row.get('best_game_return'))}",
            f"loss {_metric(row.get('total_loss'))}",
            f"entropy {_metric(row.get('entropy'))}",
            f"lag {_metric(row.get('policy_lag'))}",
        ]
        shares = ", ".join(f"{part} {share:.0%}" for part, share in _shares(row).items())
        return [*parts, shares] if shares else parts

    def figures(self, row: Mapping[str, float], width: int, ascii_only: bool) -> list[RenderableType]:
        time_use = _time_use(_shares(row), self.reuse, width, ascii_only)
        return [Text(), _figures(row, self.lives), Text(), *time_use]


def _figures(row: Mapping[str, float], lives: bool) -> Table:
    """Draw the scores on the left, the learner's metrics on the right."""
    lag = _metric(row.get("policy_lag"))
    if "policy_lag_max" in row:
        lag += f" (max {_count(row['policy_lag_max'])})"
    left = [
        ("game return" if lives else "return", _score(row.get("game_return")), "bold"),
        *([("life return", _score(row.get("life_return")), "")] if lives else []),
        ("best game" if lives else "best return", _score(row.get("best_game_return")), ""),
        ("episodes", _count(row.get("episodes")), ""),
        *([] if lives else [("", "", "")]),
    ]
    right = [
        ("total loss", _metric(row.get("total_loss"))),
        ("policy, value", f"{_metric(row.get('policy_loss'))}, {_metric(row.get('baseline_loss'))}"),
        ("entropy", _metric(row.get("entropy"))),
        ("policy lag", lag),
    ]
    table = Table.grid(expand=True, padding=(0, 1, 0, 0))
    table.add_column(style="bright_black", no_wrap=True)
    table.add_column(justify="right", ratio=1, no_wrap=True)
    table.add_column(width=1)
    table.add_column(style="bright_black", no_wrap=True)
    table.add_column(justify="right", ratio=1, no_wrap=True)
    table.add_row(Text("last 100 episodes", style="bold"), "", "", Text("learner", style="bold"), "")
    for (name, value, style), (other, figure) in zip(left, right, strict=True):
        table.add_row(name, Text(value, style=style), "", other, figure)
    return table


def _time_use(shares: Mapping[str, float], reuse: float, width: int, ascii_only: bool) -> list[Text]:
    """Draw the bar of where the time goes, its legend, and the bottleneck."""
    # The parts differ in glyph as well as in colour, for terminals and eyes without colour.
    glyphs = dict(zip(PARTS, "#=-." if ascii_only else "█▓▒░", strict=True))
    bar, legend = Text(), Text()
    for part, cells in _cells(shares, width).items():
        bar.append(glyphs[part] * cells, style=PARTS[part][0])
    for part, share in shares.items():
        legend.append(glyphs[part], style=PARTS[part][0])
        legend.append(f" {part} {share:.0%}   ")
    lines = [Text("where the time goes", style="bold")]
    return [*lines, *([bar, legend] if shares else []), Text(bottleneck(shares, reuse))]


def _cells(shares: Mapping[str, float], width: int) -> dict[str, int]:
    """Divide `width` cells by the shares; the cells always add up to it."""
    total, ends, before = sum(shares.values()), {}, 0.0
    for part, share in shares.items():
        before += share
        ends[part] = round(width * before / total) if total else 0
    starts = [0, *ends.values()]
    return {part: end - start for (part, end), start in zip(ends.items(), starts, strict=False)}


def _shares(row: Mapping[str, float]) -> dict[str, float]:
    return {part: row[f"share_{part}"] for part in PARTS if f"share_{part}" in row}


def _count(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _score(value: float | None) -> str:
    return "none" if value is None else format_score(value)


def _metric(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}" if abs(value) >= 1000 else f"{value:.3g}"
