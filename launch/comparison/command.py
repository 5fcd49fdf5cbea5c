"""`deltabeast compare`: read runs, compare them, write the report."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from ...agents import files
from ..config import CompareConfig
from ..errors import RunError, UsageError
from ..output import tell
from ..pages import PageFolder, is_page
from ..runs.directory import versions
from ..sharing.hub import run_here
from ..units import count
from .grouping import Comparison, compare
from .html import to_html
from .layout import write_layout
from .markdown import to_markdown
from .names import join
from .plots import looks
from .probes import Probe
from .reading import read_runs
from .report import Report, Section
from .runs import Run
from .scores import ScoreBoard, older_scores, score_board, unequal_steps
from .sections import curves as curve_sections
from .sections import runs as run_sections
from .sections import scores as score_sections
from .sections.abilities import abilities
from .sections.forgetting import forgetting
from .sections.observability import TITLE, observability
from .sections.operations import operations
from .sections.probes import probes as probe_section
from .sections.profile import profile
from .sections.published import published_sections
from .sections.ranking import ranking
from .sections.relative import relative


def compare_runs(config: CompareConfig) -> Path:
    """Write the report of the runs, of the published table, or of both; the path of its page.

    Raises UsageError, with nothing written, if there is nothing to compare.
    """
    if not config.runs and not config.published:
        raise UsageError("no run given; say deltabeast compare runs, or --published for the published scores")
    config = replace(config, runs=tuple(str(run_here(run)) for run in config.runs))
    _check_out(config.out)
    runs, probed, problems = read_runs(config.runs)
    if config.runs and not runs and not probed:
        raise UsageError("; ".join(problems))
    folder = _common_folder(config.runs, [*(run.path for run in runs), *(run.path for run in probed)])
    out = config.out or folder / ("comparison" if runs or probed else "published-comparison")
    if not runs and probed:
        report = Report("Probes of memories", count(len(probed), "run"), [probe_section(probed)])
        tell(*problems)
    elif not runs:
        report = Report(
            "Six cores on twenty games, as published",
            "Scores of Irie, Schlag, Csordás and Schmidhuber (2021), Tables 9 and 10, after 50M and 200M "
            "agent steps.",
            published_sections(),
        )
    else:
        comparison = compare(runs)
        board = score_board(comparison)
        of_views = observability(runs)
        where = [f"Runs of one core with more and with less to see: section {TITLE!r}."] if of_views else []
        notes = [*unequal_steps(board), *older_scores(board), *comparison.notes, *where]
        left_out = list(dict.fromkeys([*problems, *comparison.left_out, *board.left_out]))
        tell(*left_out, *notes)
        report = _report(comparison, board, notes, left_out, of_views)
        if probed:
            report.sections.append(probe_section(probed))
        if config.published:
            report.sections += published_sections()
        _write_layout(folder, comparison, board)
    report.provenance = _provenance(config, [*runs, *probed])
    _write(out, report)
    page = out / "report.html"
    tell(f"report: {page}; the same as report.md, its plots in plots/, its numbers in tables/")
    return page


def _check_out(out: Path | None) -> None:
    """Raise UsageError if no report can be written there, before much work is done for one."""
    if out is None:
        return
    nearest = next(path for path in (out, *out.absolute().parents) if path.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK):
        reason = "it cannot be written to" if nearest.is_dir() else "it is a file"
        raise UsageError(f"--out {out}: {nearest}: {reason}; give another")


def _common_folder(arguments: Sequence[str], paths: Sequence[Path]) -> Path:
    """Return the folder that was given, or the innermost one that holds all runs."""
    if not paths:
        return Path()
    if len(arguments) == 1 and Path(arguments[0]).is_dir() and paths[0] != Path(arguments[0]):
        return Path(arguments[0])
    common = os.path.commonpath([os.path.abspath(path.parent) for path in paths])
    return Path(common if any(path.is_absolute() for path in paths) else os.path.relpath(common))


def _report(
    comparison: Comparison,
    board: ScoreBoard,
    notes: Sequence[str],
    left_out: Sequence[str],
    of_views: Sequence[Section],
) -> Report:
    style = looks(comparison.core_of)
    of_pairs = []
    if len(comparison.series) > 1:
        of_pairs = [score_sections.improvement(comparison, board, style), *relative(comparison, board)]
    few = len(comparison.series) <= 4 and len(comparison.games) <= 2
    seeds = sorted({len(members) for members in comparison.cells.values()})
    seed_text = count(seeds[0], "seed") if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]} seeds"
    whose = ", those of Atari games" if comparison.is_mixed else ","
    under = f"{whose} trained under {comparison.protocol}" if comparison.protocol else ""
    return Report(
        f"{', '.join(comparison.series)} on {join(comparison.games)}"
        if few
        else f"{len(comparison.series)} series on {count(len(comparison.games), 'game')}",
        f"{count(len(comparison.runs()), 'run')}, {seed_text} of each series{under}.",
        [
            Section("In short", points=[*score_sections.conclusions(comparison, board), *notes]),
            curve_sections.learning(comparison, style),
            *abilities(comparison, board, style),
            score_sections.scores(comparison, board),
            score_sections.aggregates(comparison, board, style),
            *profile(comparison, board, style),
            *of_pairs,
            *ranking(comparison, board),
            curve_sections.memory(comparison, style),
            *forgetting(comparison, style),
            *of_views,
            *operations(comparison),
            run_sections.published_differences(comparison, board),
            Section("Left out", [] if left_out else ["Nothing."], points=left_out),
            run_sections.runs(comparison, board),
        ],
    )


def _provenance(config: CompareConfig, runs: Sequence[Run | Probe]) -> list[tuple[str, str]]:
    words = ["deltabeast", "compare", *config.runs, *(["--published"] if config.published else [])]
    words += ["--out", str(config.out)] if config.out else []
    ours = versions()
    made = [
        ("command", shlex.join(words)),
        ("deltabeast", f"{ours['deltabeast']}, commit {ours['commit'] or 'unknown'}"),
        ("with", f"Python {ours['python']}, NumPy {ours['numpy']}, matplotlib {version('matplotlib')}"),
        ("at", f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"),
    ]
    for name, key in (("runs trained at commit", "commit"), ("runs trained with torch", "torch"),
                      ("runs trained on", "platform")):  # fmt: skip
        values = sorted({str(run.versions[key]) for run in runs if run.versions.get(key)})
        made += [(name, ", ".join(values))] if values else []
    return made


def _write(out: Path, report: Report) -> None:
    pages = PageFolder(out, tell, is_ours=is_page(out / "report.md", b"| deltabeast |"))
    try:
        for section in report.sections:
            for plot in section.plots:
                pages.write(f"plots/{plot.name}.png", plot.figures.png)
            for table in (table for table in section.tables if table.name):
                pages.write(f"tables/{table.name}.csv", table.to_csv())
        pages.write_page("report.md", to_markdown(report))
        pages.write_page("report.html", to_html(report))
    except OSError as error:
        raise RunError(f"cannot write to {out}: {files.why(error)}; give another --out") from error


def _write_layout(folder: Path, comparison: Comparison, board: ScoreBoard) -> None:
    target = folder / "comparison" / "tensorboard"
    try:
        write_layout(target, comparison, board)
    except OSError as error:
        tell(f"no TensorBoard layout: cannot write to {target}: {files.why(error)}")
        return
    logdir = shlex.quote(str(folder))
    tell(f"TensorBoard: tensorboard --logdir {logdir}, then http://localhost:6006/#custom_scalars")
