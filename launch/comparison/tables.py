"""A table, and its three forms: HTML, Markdown, CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, field

from .. import foreign
from .plots import number, precise

Cell = str | float | int | None


@dataclass(frozen=True)
class Table:
    """Rows under columns. Text cells stand left, numbers right; None is an empty cell."""

    name: str | None
    """of its CSV file; None without one, where another has the numbers"""
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    text_columns: int = 1
    """number of columns from the left that hold text"""
    note: str = ""
    csv_only: bool = False
    """too long to be read: its file alone has it"""
    bold: frozenset[tuple[int, int]] = field(default_factory=frozenset)
    """(row, column) of the cells to stress"""
    small: bool = False
    """whether its numbers tell something where they are less than a thousandth, as losses do"""

    def to_csv(self) -> str:
        """Return the table as CSV, numbers in full."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows([_raw(cell) for cell in row] for row in self.rows)
        return text.getvalue()

    def to_markdown(self) -> str:
        lines = ["| " + " | ".join(map(foreign.markdown, self.columns)) + " |"]
        lines.append(
            "|" + "|".join("---" if self._is_text(i) else "--:" for i in range(len(self.columns))) + "|"
        )
        for r, row in enumerate(self.rows):
            cells = [foreign.markdown(self._shown(cell)) for cell in row]
            cells = [f"**{cell}**" if (r, c) in self.bold and cell else cell for c, cell in enumerate(cells)]
            lines.append("| " + " | ".join(cells) + " |")
        return "\n".join([*lines, *(["", foreign.markdown(self.note)] if self.note else [])])

    def to_html(self) -> str:
        head = "".join(f"<th{self._side(i)}>{foreign.html(name)}</th>" for i, name in enumerate(self.columns))
        body = []
        for r, row in enumerate(self.rows):
            cells = []
            for c, cell in enumerate(row):
                text = foreign.html(self._shown(cell))
                text = f"<b>{text}</b>" if (r, c) in self.bold else text
                cells.append(f"<td{self._side(c)}>{text}</td>")
            body.append(f"<tr>{''.join(cells)}</tr>")
        note = f'<p class="note">{foreign.html(self.note)}</p>' if self.note else ""
        return (
            f'<div class="scroll" tabindex="0"><table><thead><tr>{head}</tr></thead>\n'
            f"<tbody>\n{chr(10).join(body)}\n</tbody></table></div>{note}"
        )

    def _shown(self, cell: Cell) -> str:
        """Format a cell for readers."""
        if isinstance(cell, float):
            return (precise if self.small else number)(cell)
        return f"{cell:,}" if isinstance(cell, int) else cell or ""

    def _is_text(self, column: int) -> bool:
        return column < self.text_columns

    def _side(self, column: int) -> str:
        return "" if self._is_text(column) else ' class="n"'


def highest(values: Sequence[float | None]) -> list[int]:
    """Return the places of the highest of some values, and of those that read the same."""
    best = max((value for value in values if value is not None), default=0.0)
    return [i for i, value in enumerate(values) if value is not None and number(value) == number(best)]


def _raw(cell: Cell) -> str:
    if cell is None:
        return ""
    return f"{cell:.8g}" if isinstance(cell, float) else str(cell)
