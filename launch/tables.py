"""Tables of games and cores, and what all tables of the command line share."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from types import NoneType
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from .foreign import terminal
from .output import tell
from .units import format_score

if TYPE_CHECKING:  # their imports take a while
    from rich.console import RenderableType

    from ..cores.options import Option
    from ..envs import GameInfo
    from .core_list import ListedCore

_WIDE = 160
"""Columns of what is printed to a pipe."""


def games_table(games: Sequence[GameInfo], published: Mapping[str, str]) -> Table:
    """List every game: published name, actions and lives, and the scores of random play and of people."""
    table = plain_table("game", "published as", "actions", "lives", "FIRE", "random", "human")
    for game in games:
        table.add_row(
            game.name,
            published.get(game.name, ""),
            str(game.actions),
            str(game.lives or "-"),
            "yes" if game.fire else "",
            format_number(game.random),
            format_number(game.human),
        )
    return table


def cores_table(cores: Sequence[ListedCore], costs: Mapping[str, tuple[float, float]] | None) -> Table:
    """List every core below its group: sizes, in seconds the costs of a step and an unroll, what it does,
    source and what names a fast weight programmer: what helps least to choose one is last."""
    costs_of = ("step ms", "unroll ms") if costs else ()
    words = ("a step", "source", "slow net", "rule", "fast net")
    table = plain_table("core", "parameters", "state", *costs_of, *words)
    for column in table.columns[-len(words) :]:
        column.justify = "left"
    for column in table.columns[-len(words) :][:2]:
        column.no_wrap = False
        column.min_width = 29  # the same: rich makes both equally narrow, and would cut what is left over
    group = None
    for core in cores:
        if core.group != group:
            group = core.group
            table.add_row(Text(group, style="bold"))
        times = [f"{1000 * seconds:.2f}" for seconds in costs[core.name]] if costs else []
        sizes = f"{core.parameters:,}", f"{core.state:,}"
        table.add_row(f"  {core.name}", *sizes, *times, core.equation, core.source, *(core.nets or "---"))
    return table


def core_options_table(options: Iterable[Option]) -> Table:
    """List every option of a core: its type, its default, the values a listed choice has, and what it is."""
    table = plain_table("option", "type", "default", "values", "what it is")
    for column in table.columns[1:]:
        column.justify = "left"
    table.columns[4].no_wrap = False
    for option in options:
        kinds = dict.fromkeys(_type_name(kind) for kind in (*map(type, option.choices), *option.types))
        default = "required" if option.is_required else str(option.default)
        values = ", ".join(map(str, option.choices))
        table.add_row(option.name, " or ".join(kinds) or "any", default, values, option.description)
    return table


def _type_name(kind: type) -> str:
    return "None" if kind is NoneType else kind.__name__


def format_number(value: float | None, beside: float | None = None) -> str:
    """Format a number as a score, without decimals where it is large or whole; nothing for None."""
    if value is None:
        return ""
    whole = abs(value) >= 1000 or value == int(value)
    return f"{value:,.0f}" if whole else format_score(value, beside)


def plain_table(first: str, *others: str) -> Table:
    """Make a table without lines: the first column is text, the others are numbers."""
    table = _PlainTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column(_cell(first), no_wrap=True)
    for name in others:
        table.add_column(_cell(name), justify="right", no_wrap=True)
    return table


class _PlainTable(Table):
    """A table whose cells are text, not rich's markup."""

    def add_row(self, *cells: RenderableType | None, **how: Any) -> None:
        super().add_row(*map(_cell, cells), **how)


def _cell(content: RenderableType | None) -> RenderableType:
    return Text(terminal(content)) if isinstance(content, str) else content or ""


def output_width() -> int | None:
    """Return how wide the terminal is, or what COLUMNS says; None for a pipe, which has no width."""
    if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdecimal():
        return shutil.get_terminal_size().columns
    return None


def show(renderable: RenderableType) -> None:
    """Print; tables in a pipe are at least as wide as they need to be."""
    from rich.console import Console

    needs = max(output_width() or _WIDE, _narrowest(renderable))
    Console(width=None if sys.stdout.isatty() else needs).print(renderable)


def show_lines(*paragraphs: str) -> None:
    """Print paragraphs, whose lines end where a table's do."""
    width = output_width() or _WIDE
    for text in paragraphs:
        tell(*textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False))


def leave_out_last_columns(table: Table, width: int) -> list[str]:
    """Remove columns, the last one first, until the table fits in `width`; return their names, in order."""
    removed: list[str] = []
    while _narrowest(table) > width and len(table.columns) > 1:
        removed.insert(0, str(table.columns.pop().header))
    return removed


def _narrowest(renderable: RenderableType) -> int:
    from rich.console import Console

    return Console(width=1000).measure(renderable).minimum
