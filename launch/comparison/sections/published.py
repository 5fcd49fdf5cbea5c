"""The publication's own figures and scores, redrawn from its tables: `deltabeast compare --published`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ....envs import PAPER_GAMES
from ...runs.published import published_scores
from .. import plots
from ..aggregation import pairs
from ..differences import ABOUT_PUBLISHED_GAMES, ABOUT_THE_PUBLISHED
from ..names import paper_core
from ..relative import BUDGETS, CLEAR, LATER_CORES, PUBLISHED_CORES, is_published, published_improvement, wins
from ..report import Plot, Section
from ..tables import Cell, Table


def published_sections() -> list[Section]:
    """Scores, wins, and a pair of bar charts for every pair of cores."""
    return [
        Section(
            "What the published numbers are", points=[*ABOUT_THE_PUBLISHED, *ABOUT_PUBLISHED_GAMES.values()]
        ),
        Section(
            "Published scores",
            [
                "Tables 9 and 10 of Irie et al. (2021). Bold: the highest mean of a game at a budget. "
                "Below, the two agents of Tables 3 and 8, which have scores of four games each after 200M "
                "steps."
            ],
            tables=[_scores(), _later_scores()],
        ),
        Section(
            "Wins",
            [
                "The number of games, out of 20, in which the first core's published mean is higher, the "
                "same, or lower.",
                "The paper's own counts treat small differences as ties, by a margin that it does not "
                f"state. A margin of {CLEAR:g}% of the other's mean is inferred here: it gives seven of its "
                "eight counts. The eighth is feedforward against LSTM after 200M steps: the paper says 4 "
                "even and 10 lower.",
            ],
            tables=[_wins("published-wins"), _wins("published-clear-wins", CLEAR)],
        ),
        Section(
            "Relative improvement of every core over every other",
            [
                "(score − baseline) / baseline, in percent of the published means: the charts that the "
                "paper's Figures 1 to 12 show for some of these pairs. Games are in the same order left and "
                f"right, by their improvement after {BUDGETS[-1]}M agent steps. Axes are linear to ±100 % "
                "and logarithmic beyond."
            ],
            tables=[_improvements()],
        ),
        *(
            Section(
                f"{paper_core(core)} over {paper_core(baseline)}",
                [_win_text(core, baseline)],
                plots=published_pair(
                    core, baseline, _best_first(core, baseline), f"published-{core}-over-{baseline}"
                ),
                folded=core != "rdn",
            )
            for core, baseline in sorted(
                pairs(PUBLISHED_CORES), key=lambda pair: -PUBLISHED_CORES.index(pair[0])
            )
        ),
    ]


def published_pair(
    core: str, baseline: str, games: Mapping[str, str], name: str, beside: Sequence[float | None] = ()
) -> list[Plot]:
    """Draw improvements after 50M and 200M steps of those of the games that were published, in their order.

    games: names to show. name: what plots' names begin with. beside: percentages that share their axis.
    """
    changes = {
        millions: {game: published_improvement(game, core, baseline, millions) for game in games}
        for millions in BUDGETS
    }
    order = [game for game in games if changes[BUDGETS[-1]][game] is not None]
    better, worse = paper_core(core), paper_core(baseline)
    return [
        Plot(
            f"{name}-{millions}M",
            f"Published: {better} relative to {worse} after {millions}M agent steps.",
            plots.improvements(
                [(games[game], changes[millions][game]) for game in order],
                f"{better} over {worse}: published, {millions}M",
                "relative improvement of the score of one life",
                better,
                worse,
                beside=[*beside, *(changes[other][game] for other in BUDGETS for game in order)],
            ),
        )
        for millions in BUDGETS
        if any(changes[millions][game] is not None for game in order)
    ]


def _best_first(core: str, baseline: str) -> dict[str, str]:
    """Order the published games by the improvement at the larger budget."""
    changes = {game: published_improvement(game, core, baseline, BUDGETS[-1]) for game in PAPER_GAMES}
    return {game: PAPER_GAMES[game] for game in sorted(changes, key=lambda game: -(changes[game] or 0.0))}


def score_text(game: str, core: str, millions: int) -> str | None:
    """Format a published score with its standard deviation; None where there is none."""
    if not is_published(game) or (score := published_scores(game, core).get(millions)) is None:
        return None
    return f"{_as_published(score.mean)} ± {_as_published(score.std)}"


def _as_published(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def _scores() -> Table:
    rows: list[list[Cell]] = []
    bold = set()
    for game in PAPER_GAMES:
        for millions in BUDGETS:
            means = [published_scores(game, core)[millions].mean for core in PUBLISHED_CORES]
            bold |= {(len(rows), 2 + i) for i, value in enumerate(means) if value == max(means)}
            texts = [score_text(game, core, millions) for core in PUBLISHED_CORES]
            rows.append([PAPER_GAMES[game], f"{millions}M", *texts])
    columns = ("game", "steps", *map(paper_core, PUBLISHED_CORES))
    return Table("published-scores", columns, rows, 2, bold=frozenset(bold))


def _later_scores() -> Table:
    """Tabulate the games that any of the later agents played, with the scores of all agents."""
    cores = (*PUBLISHED_CORES, *LATER_CORES)
    budget = BUDGETS[-1]
    rows: list[list[Cell]] = [
        [PAPER_GAMES[game], *(score_text(game, core, budget) for core in cores)]
        for game in PAPER_GAMES
        if any(published_scores(game, core) for core in LATER_CORES)
    ]
    return Table("published-later-scores", ("game", *map(paper_core, cores)), rows, 1)


def _wins(name: str, margin: float = 0.0) -> Table:
    rows: list[list[Cell]] = []
    for core, baseline in pairs(PUBLISHED_CORES):
        counts = [wins(core, baseline, millions, margin) for millions in BUDGETS]
        rows.append([paper_core(core), paper_core(baseline), *counts[0], *counts[1]])
    kinds = ("clearly higher", "even", "clearly lower") if margin else ("higher", "same", "lower")
    columns = ("core", "over", *(f"{kind}, {m}M" for m in BUDGETS for kind in kinds))
    return Table(name, columns, rows, 2)


def _win_text(core: str, baseline: str) -> str:
    parts = []
    for millions in BUDGETS:
        higher, same, lower = wins(core, baseline, millions)
        parts.append(f"{higher} higher, {same} the same, {lower} lower after {millions}M")
    return f"{paper_core(core)}'s published mean against {paper_core(baseline)}'s: {'; '.join(parts)}."


def _improvements() -> Table:
    rows = [
        [PAPER_GAMES[game], paper_core(core), paper_core(baseline), f"{millions}M",
         published_improvement(game, core, baseline, millions)]
        for core, baseline in pairs(PUBLISHED_CORES)
        for millions in BUDGETS
        for game in PAPER_GAMES
    ]  # fmt: skip
    columns = ("game", "core", "over", "steps", "improvement, %")
    return Table("published-improvement", columns, rows, 4, csv_only=True)
