"""The table of an evaluation, and the notes beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from ..runs.published import PublishedScore
from ..tables import format_number, plain_table
from .returns import Difference, Evaluation, Summary, paired_difference

UNALTERED = frozenset({"trained", "random"})
"""Players with the memory they have; others are named by what is done to it."""


def evaluation_table(
    players: Mapping[str, Evaluation],
    published: Mapping[int, PublishedScore],
    lives: bool,
    normalized: Mapping[str, float | None],
) -> RenderableType:
    """Show evaluations side by side, published scores of the same kind beside them.

    lives: whether an episode is a life; if not, life and game returns are one and the same.
    normalized: human-normalised game scores by player, where they exist.
    """
    table = plain_table("", *players, *(f"published {millions}M" for millions in published))
    blanks = [""] * len(published)
    kinds = [("life", "life return"), ("game", "game return")] if lives else [("game", "return")]
    for kind, label in kinds:
        summaries = [getattr(player, kind).summary() for player in players.values()]
        scores = [_mean_std(score) for score in published.values()] if kind == "life" else blanks
        table.add_row(
            Text(label, style="bold"),
            *(Text(_mean_std(s) if s else "none finished", style="bold") for s in summaries),
            *scores,
        )
        for name, show in _DETAILS.items() if any(summaries) else ():
            table.add_row(f"  {name}", *(show(s) if s else "" for s in summaries), *blanks)
    if any(value is not None for value in normalized.values()):
        cells = ["" if normalized[name] is None else f"{normalized[name]:.1%}" for name in players]
        table.add_row("human-normalised game" if lives else "human-normalised", *cells, *blanks)
    table.add_row("agent steps", *(f"{player.steps:,}" for player in players.values()), *blanks)
    return Group(table, *_repeat_lines(players, kinds))


def memory_table(
    altered: Mapping[str, Evaluation],
    untouched: Evaluation,
    lives: bool,
    normalized: Mapping[str, float | None],
) -> RenderableType:
    """Show a row for each operation on the memory, and one without any.

    lives: whether an episode is a life, of which the return is.
    """
    shown = any(value is not None for value in normalized.values())
    columns = ["life return" if lives else "return", "95% interval", "difference", "episodes"]
    table = plain_table("memory", *columns, *(["human-normalised"] if shown else []))
    for name, player in {**altered, "trained": untouched}.items():
        cells, summary = [""] * len(columns), player.life.summary()
        if summary:
            interval, episodes = _DETAILS["95% interval"](summary), _DETAILS["episodes"](summary)
            change = paired_difference(player, untouched, "life") if name in altered else None
            cells = [_mean_std(summary), interval, _difference(change) if change else "", episodes]
        if shown:
            share = normalized[name]
            cells.append("" if share is None else f"{share:.1%}")
        table.add_row("untouched" if name == "trained" else _in_words(name), *cells)
    return table


def _in_words(player: str) -> str:
    """Say what `forgets every N` is, the result of --forget-every N; other operations are their own names."""
    every = player.removeprefix("forgets every ")
    if every == player:
        return player
    return "reset at each step" if every == "1" else f"reset every {every} steps"


def _difference(change: Difference) -> str:
    if change.interval is None:
        return format_number(change.mean, abs(change.mean))
    low, high = change.interval
    return f"{format_number(change.mean, max(abs(low), abs(high)))} ({_span(low, high)})"


def evaluation_notes(players: Mapping[str, Evaluation], lives: bool) -> list[str]:
    """Say what a reader has to know beside the numbers."""
    notes = [
        "mean ± population standard deviation of the repeats' means; 95% bootstrap interval over episodes, "
        "which says nothing of other training seeds"
    ]
    if players.keys() - UNALTERED:
        notes.append(
            "difference: mean over each repeat's n-th episode less the untouched agent's n-th, from the same "
            "seed, with its 95% bootstrap interval; none where an episode of either has no return"
        )
    if lives and any(player.life.returns != player.game.returns for player in players.values()):
        notes.append(
            "an episode is one life here: life returns do not compare with scores of whole games, "
            "and a game that was under way at the end of a repeat is in no game return"
        )
    for name, player in players.items():
        if player.unfinished:
            played = player.episodes * player.repeats
            notes.append(
                f"{name}: scores are of the {played - player.missing} of {played} episodes that ended; "
                f"{player.unfinished} went on for too long"
            )
        if player.discarded_negative:
            notes.append(
                f"{name}: {player.discarded_negative} episodes with a negative return left out and replaced, "
                "as in the published evaluation of this game"
            )
        if player.score_wraps:
            notes.append(
                f"{name}: the score wrapped {player.score_wraps} times; "
                f"{player.discarded_wrapped} episodes left out and replaced"
            )
    return notes


def _repeat_lines(players: Mapping[str, Evaluation], kinds: Sequence[tuple[str, str]]) -> list[Text]:
    lines = []
    for name, player in players.items():
        for kind, label in kinds:
            summary: Summary | None = getattr(player, kind).summary()
            if summary and len(summary.repeat_means) > 1:
                means = "  ".join(format_number(mean, summary.mean) for mean in summary.repeat_means)
                lines.append(Text.assemble((f"{name}, {label} of each repeat: ", "dim"), means))
    return lines


def _span(low: float, high: float) -> str:
    size = max(abs(low), abs(high))
    return f"{format_number(low, size)} to {format_number(high, size)}"


_DETAILS = {
    "95% interval": lambda summary: _span(*summary.interval) if summary.count > 1 else "",
    "range": lambda summary: _span(summary.minimum, summary.maximum),
    "mean length": lambda summary: f"{format_number(summary.mean_length)} steps",
    "episodes": lambda summary: str(summary.count),
}


def _mean_std(score: Summary | PublishedScore) -> str:
    if isinstance(score, Summary) and len(score.repeat_means) < 2:
        return format_number(score.mean)
    return f"{format_number(score.mean)} ± {format_number(score.std, score.mean)}"
