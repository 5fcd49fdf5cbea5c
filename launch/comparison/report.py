"""A report as data: sections of text, figures and tables. `html.py` and `markdown.py` write it down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from .plots import Figures
from .tables import Table


@dataclass(frozen=True)
class Plot:
    """A figure with its name, which is that of its PNG, and what to see in it."""

    name: str
    caption: str
    figures: Figures


@dataclass(frozen=True)
class Section:
    """Text, then points, plots (side by side where there is room) and tables."""

    title: str
    text: Sequence[str] = ()
    points: Sequence[str] = ()
    plots: Sequence[Plot] = ()
    tables: Sequence[Table] = ()
    folded: bool = False
    """shown on demand: for what only some readers need"""


@dataclass
class Report:
    title: str
    subtitle: str
    sections: list[Section] = field(default_factory=list)
    provenance: Sequence[tuple[str, str]] = ()
    """what made it: command, versions, commit"""
