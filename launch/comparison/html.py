"""A report as one HTML file that needs nothing else: figures are inline SVG whose colours follow the page."""

from __future__ import annotations

import re
from importlib.resources import files

from .. import foreign
from .plots import COLORS, INK, PAPER
from .report import Plot, Report, Section


def to_html(report: Report) -> str:
    sections = "\n".join(_section(section, number) for number, section in enumerate(report.sections))
    links = "".join(
        f'<li><a href="#s{number}">{foreign.html(section.title)}</a></li>'
        for number, section in enumerate(report.sections)
        if not section.folded
    )
    facts = "".join(
        f"<dt>{foreign.html(name)}</dt><dd>{foreign.html(value)}</dd>" for name, value in report.provenance
    )
    body = f"""<nav aria-label="Contents"><ol>{links}</ol></nav>
<main>
{sections}
<section id="made"><h2>How this was made</h2><dl>{facts}</dl></section>
</main>"""
    return document(report.title, report.subtitle, body)


def document(title: str, lead: str, body: str, style: str = "") -> str:
    """Return a page in light and dark with a title, a lead of plain text, a body of HTML and more CSS."""
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{foreign.html(title)}</title>
<style>
{_style()}{style}
</style>
</head>
<body>
<header><h1>{foreign.html(title)}</h1><p class="lead">{foreign.html(lead)}</p></header>
{body}
</body>
</html>
"""


def _section(section: Section, number: int) -> str:
    parts = [f"<p>{foreign.html(paragraph)}</p>" for paragraph in section.text]
    if section.points:
        points = "".join(f"<li>{foreign.html(point)}</li>" for point in section.points)
        parts.append(f"<ul>{points}</ul>")
    if section.plots:
        parts.append('<div class="plots">' + "".join(map(_figure, section.plots)) + "</div>")
    parts += [table.to_html() for table in section.tables if not table.csv_only]
    body, title = "\n".join(parts), foreign.html(section.title)
    if section.folded:
        body = f"<details><summary><h2>{title}</h2></summary>\n{body}\n</details>"
        return f'<section id="s{number}">{body}</section>'
    return f'<section id="s{number}"><h2>{title}</h2>\n{body}\n</section>'


def _figure(plot: Plot) -> str:
    return f"<figure>{inline(plot)}<figcaption>{foreign.html(plot.caption)}</figcaption></figure>"


def inline(plot: Plot) -> str:
    """Adapt an SVG to a page: no prologue, unique ids, the page's font, colours as CSS variables."""
    svg = plot.figures.svg
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<!--.*?-->\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\1{plot.name}-", svg)
    svg = re.sub(r"font: ([^;\"]*?)'DejaVu Sans'[^;\"]*", r"font: \1var(--font)", svg)
    svg = re.sub("|".join(COLORS), lambda match: f"var({_variable(match[0])})", svg, flags=re.IGNORECASE)
    head = f'<svg role="img" aria-label="{foreign.html(plot.caption)}"'
    return re.sub(r"\n\s*", "\n", head + svg.removeprefix("<svg"))


def _variable(color: str) -> str:
    return f"--c{color.lower().removeprefix('#')}"


def _style() -> str:
    light = "".join(f"{_variable(color)}:{color};" for color in COLORS)
    dark = "".join(f"{_variable(color)}:{other};" for color, other in COLORS.items())
    sheet = (files(__package__) / "report.css").read_text(encoding="utf-8")
    names = f"--ink:var({_variable(INK)});--paper:var({_variable(PAPER)});"
    return f":root{{{light}{names}}}\n@media (prefers-color-scheme:dark){{:root{{{dark}}}}}\n{sheet}".rstrip()
