"""What the panel of a probe shows."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

SCORES = ("loss", "accuracy", "sequence_accuracy", "print_accuracy", "final_accuracy", "perplexity")


class ProbeShown:
    """Scores of the last evaluation, the best so far, and how long sequences are."""

    step, steps, rate = "update", "updates", "updates/s"

    def __init__(self, metric: str) -> None:
        """`metric` is what is compared."""
        self._metric = metric

    def line(self, row: Mapping[str, float]) -> list[str]:
        return [f"{name} {text}" for name, text in self._named(row)]

    def figures(self, row: Mapping[str, float], width: int, ascii_only: bool) -> list[RenderableType]:
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(style="bright_black")
        table.add_column(justify="right")
        for name, text in self._named(row):
            table.add_row(name, text)
        return [Text(), Text("last evaluation", style="bold"), table]

    def _named(self, row: Mapping[str, float]) -> list[tuple[str, str]]:
        first = ("train_loss", self._metric, *(name for name in SCORES if name != self._metric))
        named = [(name.replace("_", " "), f"{row[name]:.4g}") for name in first if name in row]
        if "best" in row:
            named.insert(2, (f"best {self._metric.replace('_', ' ')}", f"{row['best']:.4g}"))
        if "length" in row:
            named.append(("length", f"{row['length']:,.0f}"))
        named.append(("tokens/s", f"{row['tokens_per_second']:,.0f}" if "tokens_per_second" in row else "-"))
        return named
