"""Relative improvement of one core over another, game by game: what the publication's bar charts show."""

from __future__ import annotations

from ...envs import PAPER_GAMES, canonical_game
from ..runs.published import published_scores

PUBLISHED_CORES = ("feedforward", "lstm", "linear_transformer", "delta_net", "delta_rnn", "rdn")
LATER_CORES = ("gated_feedforward", "rdn_large")
"""Published on four games each, only after 200M agent steps."""
BUDGETS = (50, 200)
"""Millions of agent steps after which the published agents were evaluated."""


def relative_improvement(score: float, baseline: float) -> float | None:
    """Compute 100 (score - baseline) / baseline, in percent; None where the baseline is not positive.

    A percentage of nothing, or of a loss, has no meaning: Pong's untrained -21 would make any gain negative.
    """
    return 100.0 * (score - baseline) / baseline if baseline > 0 else None


def published_improvement(game: str, core: str, baseline: str, millions: int) -> float | None:
    """Return the improvement in the published table; None where it has no score for either."""
    if not is_published(game):
        return None
    ours, theirs = published_scores(game, core), published_scores(game, baseline)
    if millions not in ours or millions not in theirs:
        return None
    return relative_improvement(ours[millions].mean, theirs[millions].mean)


def is_published(game: str) -> bool:
    """Return whether the publication has scores of a game; it has Atari games alone."""
    try:
        return canonical_game(game) in PAPER_GAMES
    except ValueError:
        return False


CLEAR = 5.0
"""Percent by which scores have to differ for a clear win. The paper states no margin for its own counts; this
one is inferred, since with 5 to 6% seven of its eight counts come out."""


def wins(core: str, baseline: str, millions: int, margin: float = 0.0) -> tuple[int, int, int]:
    """Count the games, of twenty, in which the published core scored higher, the same and lower; scores that
    differ by no more than `margin` percent of the baseline's are the same.
    """
    changes = [published_improvement(game, core, baseline, millions) for game in PAPER_GAMES]
    defined = [change for change in changes if change is not None]
    higher, lower = sum(c > margin for c in defined), sum(c < -margin for c in defined)
    return higher, len(defined) - higher - lower, lower
