"""`deltabeast compare` as a person meets it: files, pages, TensorBoard, and one line for wrong input."""

from __future__ import annotations

import csv
import json
import re
import shutil
import warnings
from contextlib import redirect_stderr, redirect_stdout
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from comparison_runs import add_evaluation, make_run
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.hparams import plugin_data_pb2 as hparams_plugin_data_pb2

from deltabeast.cores import core_names
from deltabeast.launch import cli
from deltabeast.launch.comparison import command
from deltabeast.launch.comparison.aggregation import ONE_SEED, OVER_GAMES
from deltabeast.launch.comparison.grouping import Comparison, compare
from deltabeast.launch.comparison.plots import COLORS, improvements, looks
from deltabeast.launch.comparison.report import Section
from deltabeast.launch.comparison.runs import find_runs, read_run
from deltabeast.launch.comparison.scores import ScoreBoard, score_board
from deltabeast.launch.comparison.sections.profile import profile
from deltabeast.launch.comparison.sections.published import published_sections
from deltabeast.launch.comparison.sections.ranking import ranking
from deltabeast.launch.comparison.sections.relative import relative
from deltabeast.launch.comparison.sections.scores import aggregates, conclusions, improvement
from deltabeast.launch.comparison.tables import Table
from deltabeast.launch.runs.published import published_scores


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = 0
    try:
        cli.main([str(argument) for argument in arguments])
    except SystemExit as exit_:
        code = int(exit_.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


class Page(HTMLParser):
    """Every tag that is not closed, every id, and everything a page would load or link to."""

    VOID = frozenset({"meta", "br", "img", "link", "hr", "input", "use", "path", "rect"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.references: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id":
                self.ids.append(str(value))
            if name in ("src", "href", "xlink:href", "clip-path"):
                self.references.append(str(value))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


def make_runs(folder: Path) -> Path:
    """Two games, two cores, two seeds; one run is not evaluated."""
    for game in ("gopher", "pong"):
        for core, factor in (("lstm", 1), ("rdn", 2)):
            for seed in (1, 2):
                scores = [] if (game, core, seed) == ("pong", "rdn", 2) else [10 * factor + seed]
                make_run(folder, game, core, seed, scores=scores)
    return folder


@pytest.fixture(scope="module")
def published() -> list[Section]:
    """The sections of published scores, drawn once for all reports that have them: 30 figures."""
    return published_sections()


@pytest.fixture(scope="module")
def reported(published: list[Section], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Runs that were compared, with the published scores, and what the command printed."""
    runs = make_runs(tmp_path_factory.mktemp("reported") / "runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "published_sections", lambda: published)
        with redirect_stdout(StringIO()) as printed, redirect_stderr(StringIO()) as error:
            cli.main(["compare", str(runs), "--published"])
    assert not error.getvalue()
    return runs, printed.getvalue()


@pytest.mark.parametrize(
    "core",
    [
        "</text><script>alert(1)</script>",
        "[click](javascript:alert(1)) | `x` <img src=x onerror=alert(2)>",
        "a$\\frac$b",
        "$HOME $x \x1b[2J\nforged",
        "x" * 5_000,
        "..",
        "a\0b",
    ],
    ids=("svg", "link", "mathematics", "terminal", "long", "folder", "zero"),
)
def test_names_are_shown_as_they_are_whatever_they_hold(
    core: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    env = f"mine:{core}" if len(core) < 1000 else "CartPole-v1"
    run_dir = make_run(tmp_path, "CartPole-v1", "rdn", 1, None, scores=[3], env=True, checkpoint=False)
    about = json.loads((run_dir / "config.json").read_text())
    about["config"] |= {"core": core, "env": env, "core_options": {"path": core}}
    (run_dir / "config.json").write_text(json.dumps(about))
    code, printed, error = run(capsys, "compare", run_dir, "--out", tmp_path / "out")
    assert (code, error) == (0, "") and "\x1b" not in printed and "\nforged" not in printed
    assert "no TensorBoard layout" not in printed
    events = [path for path in tmp_path.rglob("events.*") if ".comparison" in path.name]
    layouts = list(tmp_path.rglob("comparison/tensorboard"))
    assert len(events) == 2 and len(layouts) == 1 and all(layouts[0] in path.parents for path in events)
    for name in ("report.html", "report.md"):
        text = (tmp_path / "out" / name).read_text()
        assert not re.search(r"<script|<img src=x|\x1b|^forged", text, re.MULTILINE), name
        assert name == "report.html" or "](javascript" not in text
        assert len(text) < 1_000_000
    page = Page((tmp_path / "out" / "report.html").read_text())
    assert page.open == [] and len(page.ids) == len(set(page.ids))


def test_a_report_of_runs(reported: tuple[Path, str]) -> None:
    runs, printed = reported
    out = runs / "comparison"
    assert f"{runs}/pong/rdn/seed-2: no evaluation" in printed and str(out / "report.html") in printed

    scores = {(row["game"], row["series"]): row for row in rows(out / "tables" / "scores.csv")}
    assert float(scores["gopher", "lstm"]["mean"]) == 11.5 and float(scores["gopher", "rdn"]["mean"]) == 21.5
    assert scores["gopher", "rdn"]["published 200M"] == "86,008 ± 11,815"
    assert scores["pong", "rdn"]["seeds"] == "1" and scores["gopher", "rdn"]["steps"] == "300000"
    assert (float(scores["gopher", "rdn"]["low"]), float(scores["gopher", "rdn"]["high"])) == (21.0, 22.0)
    changes = {row["game"]: row for row in rows(out / "tables" / "relative-improvement.csv")}
    assert float(changes["gopher"]["improvement, %"]) == pytest.approx(100 * (21.5 / 11.5 - 1))
    assert float(changes["gopher"]["difference"]) == 10.0
    (chance,) = rows(out / "tables" / "probability-of-improvement.csv")
    assert (chance["series"], chance["over"], float(chance["probability"])) == ("rdn", "lstm", 1.0)
    assert {row["series"] for row in rows(out / "tables" / "memory.csv")} == {"lstm", "rdn"}
    assert {row["statistic"] for row in rows(out / "tables" / "aggregates.csv")} == {
        "IQM", "median", "mean", "optimality gap"
    }  # fmt: skip
    curve = [
        row
        for row in rows(out / "tables" / "curves.csv")
        if (row["game"], row["series"]) == ("gopher", "rdn")
    ]
    assert float(curve[-1]["mean"]) == 9.0 and curve[-1]["seeds"] == "2"  # 3 a life, three lives a game

    page = (out / "report.html").read_text()
    text = (out / "report.md").read_text()
    plots = {path.stem for path in (out / "plots").glob("*.png")}
    assert {"learning-gopher-steps", "learning-gopher-time", "aggregate-iqm", "relative-rdn-over-lstm",
            "relative-rdn-over-lstm-published-200M", "memory-pong-write-strength"} <= plots  # fmt: skip
    assert set(re.findall(r"\]\(plots/(.+?)\.png\)", text)) == plots
    assert page.count("<figure>") == len(plots)
    for words in (
        "no evaluation",
        "one seed does not vary at all",
        "bptt full (published: per_step)",
        f"deltabeast compare {runs}",
    ):
        assert words in page and words in text


def test_cores_are_told_apart_by_colour_or_dashes() -> None:
    style = looks({core: core for core in core_names()})
    assert len(set(style.values())) == len(style)
    assert all(look.color in COLORS for look in style.values())


def test_settings_of_one_core_are_told_apart_by_colour() -> None:
    style = looks({f"lstm · {i}": "lstm" for i in range(12)})
    assert len({look.color for look in style.values()}) == 8 and len(set(style.values())) == 12
    assert looks({"lstm": "lstm"})["lstm"].color == style["lstm · 0"].color
    assert all(look.color in COLORS for look in style.values())


def test_long_names_leave_room_for_what_is_drawn() -> None:
    """Above the axes they would cover each other; the title has them."""
    short, long = "lstm · discount 0.995", "lstm · entropy cost 0.02 · normalise advantages True"
    for name, sides in ((short, f"← {short} better"), (long, "← the second better")):
        with warnings.catch_warnings(action="error"):  # matplotlib's, where axes collapse
            figures = improvements([("boxing", 5.0)], f"{name} over {name}: our runs", "change", name, name)
        assert sides in figures.svg and figures.svg.count("better") == 2


def test_a_page_needs_nothing_else(reported: tuple[Path, str]) -> None:
    text = (reported[0] / "comparison" / "report.html").read_text()
    page = Page(text)
    assert page.open == [] and len(page.ids) == len(set(page.ids))
    for reference in page.references:
        assert reference.startswith(("#", "url(#")), reference
        assert reference.removeprefix("url(").strip("#)") in page.ids
    assert not re.search(r"@import|<script|url\((?!#)", text)
    # Colours in figures follow the page: none is left that a dark page could not change.
    figures = "".join(re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL))
    assert set(re.findall(r"#[0-9a-f]{6}\b", figures)) == set() and "var(--c" in figures
    assert "prefers-color-scheme:dark" in text and "width=device-width" in text
    assert all(f":{other};" in text for other in COLORS.values())


def test_a_new_report_finds_the_runs_beside_an_old_one(
    reported: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = Path(shutil.copytree(reported[0], tmp_path / "runs"))
    before = (runs / "comparison" / "tables" / "scores.csv").read_text()
    add_evaluation(runs / "pong" / "rdn" / "seed-2", 50)
    assert run(capsys, "compare", runs)[0] == 0
    after = rows(runs / "comparison" / "tables" / "scores.csv")
    assert before != after and [row["seeds"] for row in after] == ["2"] * 4


def test_a_report_that_cannot_be_written_is_refused_before_it_is_made(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    runs = make_runs(tmp_path / "runs")
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        code, printed, error = run(capsys, "compare", runs, "--out", out)
        assert (code, printed) == (2, "") and error.count("\n") == 1
        assert f"{tmp_path / 'file'}: it is a file; give another" in error
    assert not (runs / "comparison").exists()


def test_the_published_figures_need_no_runs(
    published: list[Section], capsys: pytest.CaptureFixture[str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "published_sections", lambda: published)
    assert run(capsys, "compare", "--published")[0] == 0
    out = tmp_path / "published-comparison"
    # 15 pairs of six cores, two budgets.
    assert len(list((out / "plots").glob("*.png"))) == 30
    changes = rows(out / "tables" / "published-improvement.csv")
    assert len(changes) == 20 * 15 * 2 and all(row["improvement, %"] for row in changes)
    scores = rows(out / "tables" / "published-scores.csv")
    assert len(scores) == 40 and len(scores[0]) == 2 + 6
    seaquest = next(row for row in scores if (row["game"], row["steps"]) == ("Seaquest", "200M"))
    assert (seaquest["RDN"], seaquest["LSTM"]) == ("4,373 ± 504", "12,643 ± 1,627")
    page = (out / "report.html").read_text()
    assert "+8,475 %" in page and "one life" in page and len(page) < 1_500_000


def test_every_figure_has_a_name_of_its_own(reported: tuple[Path, str]) -> None:
    out = reported[0] / "comparison"
    shown = re.findall(r"\(plots/([^)]+)\)", (out / "report.md").read_text())
    assert len(shown) == len(set(shown)) > 40
    page = Page((out / "report.html").read_text())
    assert len(page.ids) == len(set(page.ids))


def test_runs_are_given_by_relative_and_absolute_paths_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    make_run(Path("here"), core="rdn", scores=[1])
    there = make_run(tmp_path / "there", core="lstm", scores=[2])
    assert run(capsys, "compare", "here", there)[0] == 0
    assert (tmp_path / "comparison" / "report.md").exists()
    Path("deeper").mkdir()
    monkeypatch.chdir(tmp_path / "deeper")
    assert run(capsys, "compare", "../here", "../there")[0] == 0
    assert (tmp_path / "comparison" / "tensorboard").exists() and not Path("comparison").exists()


def test_a_report_writes_over_nothing_but_an_earlier_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = make_run(tmp_path / "runs", scores=[5]).parent
    out, events = tmp_path / "out", runs / "comparison" / "tensorboard"
    name = "learning-gopher-steps.png"
    theirs = [out / "report.md", out / "plots" / name, events / "events.out.tfevents.1.mine.2"]
    for path in theirs:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    (out / "home").symlink_to(tmp_path)
    _, printed, _ = run(capsys, "compare", runs, "--out", out)
    assert "report.previous.md now" in printed and (out / "report.previous.md").read_text() == "mine"
    assert (out / "plots" / name.replace(".", ".previous.")).read_text() == "mine"
    assert theirs[2].read_text() == "mine"
    (picture := theirs[1]).write_text("old")
    written = sum(1 for _ in events.rglob("*.comparison"))
    before = {path.name for path in out.rglob("*") if "home" not in path.parts}
    run(capsys, "compare", runs, "--out", out)
    assert {path.name for path in out.rglob("*") if "home" not in path.parts} == before
    assert picture.read_bytes()[1:4] == b"PNG" and sum(1 for _ in events.rglob("*.comparison")) == written
    (out / "report.md").write_text((out / "report.md").read_text() + "What I found.\n")
    run(capsys, "compare", runs, "--out", out)
    assert (out / "report.previous-2.md").read_text().endswith("What I found.\n")


def test_tensorboard_shows_the_comparison(reported: tuple[Path, str]) -> None:
    runs, printed = reported
    assert f"tensorboard --logdir {runs}" in printed
    folder = runs / "comparison" / "tensorboard"
    top = EventAccumulator(str(folder))
    top.Reload()
    (event,) = top.Tensors("custom_scalars__config__")
    layout = layout_pb2.Layout.FromString(event.tensor_proto.string_val[0])
    charts = {chart.title: chart for category in layout.category[:1] for chart in category.chart}
    assert set(charts) == {"gopher", "pong"}
    (margin,) = charts["gopher"].margin.series

    series = EventAccumulator(str(folder / "gopher" / "rdn"), size_guidance={"scalars": 0})
    series.Reload()
    tags = series.Tags()["scalars"]
    assert {margin.value, margin.lower, margin.upper} <= set(tags)  # what the chart asks for is there
    last = series.Scalars(margin.value)[-1]
    assert (last.step, last.value) == (300_000, 9.0)
    assert series.Scalars("comparison/score")[0].value == 21.5
    groups = {tag.split("/")[0] for tag in tags}
    assert min(groups) == "comparison", "the group that TensorBoard opens on"
    first = {tag.split("/", 1)[1] for tag in tags if tag.startswith("comparison/")}
    assert first == {"score", "normalized", "gopher/game_return"}
    # The row of the "HParams" page.
    plugin = hparams_plugin_data_pb2.HParamsPluginData.FromString(
        series.PluginTagToContent("hparams")["_hparams_/session_start_info"]
    )
    options = plugin.session_start_info.hparams
    assert options["core"].string_value == "rdn" and options["seeds"].number_value == 2


def test_nothing_to_compare_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for arguments, said in (
        ([], "--published"),
        (["nowhere"], "no run at nowhere"),
        (["a", "b*"], "no run at b*"),
    ):
        code, out, error = run(capsys, "compare", *arguments)
        assert (code, out) == (2, "") and said in error and error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def compared(root: Path) -> tuple[Comparison, ScoreBoard]:
    comparison = compare([found for path in find_runs([str(root)])[0] if (found := read_run(path)[0])])
    return comparison, score_board(comparison)


def test_pairs_are_compared_over_the_games_that_both_have(tmp_path: Path) -> None:
    for seed in (1, 2):
        make_run(tmp_path, "gopher", "lstm", seed, scores=[10 + seed])
        make_run(tmp_path, "gopher", "rdn", seed, scores=[20 + seed])
        make_run(tmp_path, "pong", "lstm", seed, scores=[10 + seed])
        make_run(tmp_path, "pong", "rdn", seed, scores=[seed])
        make_run(tmp_path, "pong", "delta_net", seed, scores=[-seed])
    make_run(tmp_path, "breakout", "feedforward", scores=[1])  # no game that another series has
    comparison, board = compared(tmp_path)
    section = improvement(comparison, board, looks(comparison.core_of))
    chances = {frozenset((row[0], row[1])): tuple(row[2:4]) for row in section.tables[0].rows}
    assert chances == {
        frozenset(("lstm", "rdn")): (2, 0.5),
        frozenset(("lstm", "delta_net")): (1, 1.0),
        frozenset(("rdn", "delta_net")): (1, 1.0),
    }
    assert ONE_SEED not in section.text, "each pair has two seeds"
    make_run(tmp_path, "breakout", "lstm", scores=[2])
    comparison, board = compared(tmp_path)
    assert ONE_SEED in improvement(comparison, board, looks(comparison.core_of)).text


PUBLISHED = ("gopher", "pong", "qbert", "seaquest", "zaxxon", "berzerk")


def test_one_seed_of_several_games_has_intervals_over_games(tmp_path: Path) -> None:
    for n, game in enumerate(PUBLISHED):
        make_run(tmp_path, game, "lstm", scores=[n])
        make_run(tmp_path, game, "rdn", scores=[n + 1 if n else 0])
    comparison, board = compared(tmp_path)
    style = looks(comparison.core_of)
    _, single, better = conclusions(comparison, board)
    assert single.endswith("nothing follows for a single game; intervals are over games.")
    assert better.startswith("A run of rdn scores higher than one of lstm with probability 0.92 [0.75, 1.00]")
    of_scores, of_pairs = aggregates(comparison, board, style), improvement(comparison, board, style)
    for section in (of_scores, of_pairs):
        assert OVER_GAMES in section.text and ONE_SEED not in section.text
        assert "stratified" not in "".join([*section.text, *(plot.caption for plot in section.plots)])
        assert "over games" not in "".join(section.tables[0].columns)
    (of_shares,) = profile(comparison, board, style)
    assert any(float(low) < float(share) < float(high) for *_, share, low, high in of_shares.tables[0].rows)
    (row,) = of_pairs.tables[0].rows
    assert row[:4] == ["rdn", "lstm", 6, pytest.approx(5.5 / 6)] and row[4] < row[3] < row[5] == 1

    # A game that only a further core lacks is left out of the aggregates, not of the pairs.
    make_run(tmp_path, "amidar", "lstm", scores=[1])
    make_run(tmp_path, "amidar", "rdn", scores=[2])
    for game in PUBLISHED:
        make_run(tmp_path, game, "gru", scores=[-1])
    *_, better = conclusions(*compared(tmp_path))
    assert better.startswith("A run of rdn scores higher than one of lstm on 7 games with probability 0.93 [")
    for core in ("gru", "amidar/*"):
        for folder in tmp_path.glob(core if "/" in core else f"*/{core}"):
            shutil.rmtree(folder)

    # With two seeds each, both kinds are there.
    for n, game in enumerate(PUBLISHED):
        for core in ("lstm", "rdn"):
            make_run(tmp_path, game, core, 2, scores=[n + (core == "rdn")])
    comparison, board = compared(tmp_path)
    of_scores, of_pairs = aggregates(comparison, board, style), improvement(comparison, board, style)
    for section in (of_scores, of_pairs):
        assert not {OVER_GAMES, ONE_SEED} & set(section.text)
        assert section.tables[0].columns[-2:] == ("low, over games", "high, over games")
    for row in of_scores.tables[0].rows:
        low, high, lowest, highest = map(float, row[-4:])
        assert row[0] != "mean" or lowest < low <= high < highest
    (row,) = of_pairs.tables[0].rows
    assert row[-2] < row[-4] < row[-3] == row[-1] == 1


def test_a_performance_profile_falls_from_the_lowest_to_the_highest_score(tmp_path: Path) -> None:
    human = 14.6 / 3  # of Pong, by life
    make_run(tmp_path, "pong", "lstm", scores=[human])
    make_run(tmp_path, "pong", "rdn", scores=[5 * human])
    comparison, board = compared(tmp_path)
    style = looks(comparison.core_of)
    assert profile(comparison, board, style) == [], "one game"
    make_run(tmp_path, "gopher", "lstm", scores=[0])
    make_run(tmp_path, "gopher", "rdn", scores=[0])
    comparison, board = compared(tmp_path)
    (section,) = profile(comparison, board, style)
    assert all(row[2:] == [row[2]] * 3 for row in section.tables[0].rows), "two games, with one seed each"
    (table,) = section.tables
    shares = {(row[0], round(float(row[1]), 9)): row[2] for row in table.rows}
    assert shares["lstm", 0.98] == 0.5 and shares["lstm", 1.02] == 0, (
        "one of two games, at what a human scores"
    )
    assert shares["rdn", 0.0] == shares["rdn", 1.98] == 0.5 and ("rdn", 2.02) not in shares
    (plot,) = section.plots
    assert plot.name == "performance-profile" and "rdn" in plot.figures.svg


def test_ranks_stand_beside_the_published_ones(tmp_path: Path) -> None:
    games = PUBLISHED[:5]
    for n, game in enumerate(games):
        for seed in (1, 2):
            make_run(tmp_path, game, "lstm", seed, scores=[10 + seed])
            make_run(tmp_path, game, "rdn", seed, scores=[9 + seed + 2 * (n < 2)])  # better in the first two
        make_run(tmp_path, game, "gru", scores=[100])  # was not published
    comparison, board = compared(tmp_path)
    (section,) = ranking(comparison, board)
    (table,) = section.tables
    theirs = {
        (game, core, m): published_scores(game, core)[m].mean
        for game in games
        for core in ("lstm", "rdn")
        for m in (50, 200)
    }
    published = [
        sum(1.5 + np.sign(theirs[game, other, m] - theirs[game, core, m]) / 2 for game in games) / 5
        for core, other in (("lstm", "rdn"), ("rdn", "lstm"))
        for m in (50, 200)
    ]
    assert table.rows == [["lstm", 1.4, *published[:2]], ["rdn", 1.6, *published[2:]]]
    assert published[0] != published[2] and published[0] + published[2] == 3
    # Neither a core of other games nor one of several series has a rank, and the others keep theirs.
    make_run(tmp_path, "enduro", "delta_net", scores=[1])
    make_run(tmp_path / "short", games[0], "feedforward", scores=[1], unroll_length=20)
    for game in games:
        make_run(tmp_path, game, "feedforward", scores=[1], unroll_length=50)
    (section,) = ranking(*compared(tmp_path))
    assert section.tables[0].rows == table.rows
    shutil.rmtree(tmp_path / games[0])
    assert ranking(*compared(tmp_path)) == [], "four games"
    make_run(tmp_path, games[0], "lstm", scores=[1])
    make_run(tmp_path, PUBLISHED[5], "rdn", scores=[1])
    assert ranking(*compared(tmp_path)) == [], "five each, four of both"


def test_losses_have_no_percentage_but_a_difference(tmp_path: Path) -> None:
    for core, score in (("lstm", -20), ("rdn", -5)):
        make_run(tmp_path, "pong", core, scores=[score])
    (section,) = relative(*compared(tmp_path))
    (row,) = section.tables[0].rows
    assert tuple(row[-2:]) == (15.0, None)
    assert section.plots == [], "no chart without a bar, and none of published scores alone"


def test_one_run_alone_is_reported_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    alone = make_run(tmp_path / "runs", scores=[5])
    assert run(capsys, "compare", alone)[0] == 0
    text = (alone.parent / "comparison" / "report.md").read_text()
    assert "One seed only" in text and "Relative improvement" not in text


def test_a_table_in_its_three_forms() -> None:
    table = Table("t", ("game", "x"), [["a|b<", 1234.5], ["c", None]], bold=frozenset({(0, 1)}))
    assert table.to_csv() == "game,x\na|b<,1234.5\nc,\n"
    assert table.to_markdown() == "| game | x |\n|---|--:|\n| a\\|b< | **1,234** |\n| c |  |"
    assert "<td>a|b&lt;</td>" in table.to_html() and '<td class="n"><b>1,234</b></td>' in table.to_html()


@pytest.mark.parametrize("evaluated", [True, False])
def test_a_protocol_is_said_of_atari_games_alone(
    evaluated: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scores = [3] if evaluated else []
    for core in ("lstm", "rdn"):
        make_run(tmp_path, "CartPole-v1", core, 1, None, scores=scores, env=True)
    run(capsys, "compare", tmp_path)
    report = (tmp_path / "comparison" / "report.md").read_text()
    assert "paper-code" not in report and "2 runs, 1 seed of each series." in report
    make_run(tmp_path, "gopher", "rdn", scores=scores)
    run(capsys, "compare", tmp_path)
    report = (tmp_path / "comparison" / "report.md").read_text()
    assert "3 runs, 1 seed of each series, those of Atari games trained under paper-code." in report
    assert "of the return over CartPole-v1" in report and "life return" not in report
    if evaluated:
        assert "mean return in its evaluation, that of Atari games under paper-code, greedy" in report
        assert "Of Atari games it is the return of one life" in report
    for other in ("lstm", "rdn"):  # without the others it is said of all, as before
        shutil.rmtree(tmp_path / "CartPole-v1" / other)
    run(capsys, "compare", tmp_path)
    report = (tmp_path / "comparison" / "report.md").read_text()
    assert "1 run, 1 seed of each series, trained under paper-code." in report and "life return" in report
