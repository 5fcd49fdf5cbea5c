"""A report as Markdown, for repositories and issues: text, links to the PNGs, tables."""

from __future__ import annotations

from ..foreign import markdown
from .report import Report


def to_markdown(report: Report) -> str:
    lines = [f"# {markdown(report.title)}", "", markdown(report.subtitle), ""]
    for section in report.sections:
        lines += [f"## {markdown(section.title)}", ""]
        for paragraph in section.text:
            lines += [markdown(paragraph), ""]
        lines += [*(f"* {markdown(point)}" for point in section.points), *([""] if section.points else [])]
        for plot in section.plots:
            caption = markdown(plot.caption)
            lines += [f"![{caption}](plots/{plot.name}.png)", "", f"*{caption}*", ""]
        for table in section.tables:
            shown = f"See [`tables/{table.name}.csv`](tables/{table.name}.csv)." if table.csv_only else ""
            lines += [shown or table.to_markdown(), ""]
    lines += ["## How this was made", "", "| | |", "|---|---|"]
    lines += [f"| {markdown(name)} | {markdown(value)} |" for name, value in report.provenance]
    return "\n".join(lines) + "\n"
