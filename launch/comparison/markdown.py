"""A report as Markdown, for repositories and issues: text, links to the PNGs, tables."""

from __future__ import annotations

from .report import Report


def to_markdown(report: Report) -> str:
    lines = [f"# {report.title}", "", report.subtitle, ""]
    for section in report.sections:
        lines += [f"## {section.title}", ""]
        for paragraph in section.text:
            lines += [paragraph, ""]
        lines += [*(f"* {point}" for point in section.points), *([""] if section.points else [])]
        for plot in section.plots:
            lines += [f"![{plot.caption}](plots/{plot.name}.png)", "", f"*{plot.caption}*", ""]
        for table in section.tables:
            shown = f"See [`tables/{table.name}.csv`](tables/{table.name}.csv)." if table.csv_only else ""
            lines += [shown or table.to_markdown(), ""]
    lines += ["## How this was made", "", "| | |", "|---|---|"]
    lines += [f"| {name} | {value} |" for name, value in report.provenance]
    return "\n".join(lines) + "\n"
