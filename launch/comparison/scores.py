"""Assign each run one score: from its evaluation or, where no run has one, from the end of its training."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from ...envs import find_protocol, human_normalized, task_normalized
from ..runs.consent import consent
from ..runs.directory import eval_command
from .curves import Way, curve_of, way_of
from .grouping import Cell, Comparison
from .names import join, name_of
from .runs import TRAINED_UNDER, Evaluation, Run

_STEP_TOLERANCE = 0.05
"""Share by which the steps of scores may differ: a run ends, or saves, a batch after its mark."""


class Score(NamedTuple):
    """What a run reached."""

    run: Run
    value: float
    """mean return of the agent's episode: a life under paper-code, a game elsewhere"""
    whole_game: float | None
    """mean return of a whole game; None where none ended"""
    normalized: float | None
    """that with 0 for random play and 1 for a human, or in a task of memory for the best there is; None where
    these are not known"""
    step: int
    evaluation: Evaluation | None = None
    """that says so; None for a score of training"""


class ScoreBoard(NamedTuple):
    """The scores of a comparison, by game and series."""

    description: str
    """what a score is, in a sentence"""
    kind: str
    """life return, game return or return"""
    protocol: str | None
    """that of the evaluation; None if there is none, or no Atari game"""
    evaluated: bool
    sampled: list[str]
    """games of which the scores are evaluations with sampled actions; of the others they are greedy"""
    cells: dict[Cell, list[Score]]
    left_out: list[str]


def score_board(comparison: Comparison) -> ScoreBoard:
    """Score the runs of a game in one way, and Atari games under one protocol; runs that cannot be scored are
    left out, with a line that says why."""
    runs = comparison.runs()
    evaluated = any(run.evaluations for run in runs)
    protocol = _usual_protocol(runs) if evaluated else comparison.protocol
    sampled = _sampled(runs, lambda run: protocol if run.protocol else None)
    left_out: list[str] = []
    cells: dict[Cell, list[Score]] = {}
    for (game, label), members in comparison.cells.items():
        found = [
            _evaluated(run, protocol, game not in sampled) if evaluated else _trained(run, protocol)
            for run in members
        ]
        left_out += [why for why in found if isinstance(why, str)]
        if scores := _same_step([each for each in found if isinstance(each, Score)], left_out):
            cells[game, label] = scores
    return ScoreBoard(
        description=_describe(comparison, protocol, sampled)
        if evaluated
        else _describe_training(_kind(comparison, protocol)),
        kind=_kind(comparison, protocol),
        protocol=protocol,
        evaluated=evaluated,
        sampled=sampled,
        cells=cells,
        left_out=left_out,
    )


def _usual_protocol(runs: Sequence[Run]) -> str | None:
    """Return the protocol under which most runs were evaluated; None where no evaluation has one."""
    protocols = Counter(
        each for run in runs for each in {one.protocol for one in run.evaluations} if each is not None
    )
    return min(protocols, key=lambda name: (-protocols[name], name != TRAINED_UNDER, name), default=None)


def _sampled(runs: Sequence[Run], protocol_of: Callable[[Run], str | None]) -> list[str]:
    """Return the games of which more runs were evaluated with sampled actions than greedily, under the
    protocol of each."""
    counts = {run.game: 0 for run in runs}
    for run in runs:
        ways = {each.greedy for each in run.evaluations if each.protocol == protocol_of(run)}
        counts[run.game] += (False in ways) - (True in ways)
    return sorted(game for game, more in counts.items() if more > 0)


def _how(sampled: Sequence[str], games: Collection[str]) -> str:
    if len(sampled) < len(games):
        return f"greedy, on {join(sampled)} with sampled actions" if sampled else "greedy"
    return "with sampled actions"


def own_scores(runs: Sequence[Run]) -> tuple[list[Score], str, list[str]]:
    """Score each run under the protocol that it was trained under, those of a game in one way.

    Returns scores, what they are, and a line for each run without one.
    """
    if any(each.protocol == run.protocol for run in runs for each in run.evaluations):
        sampled = _sampled(runs, lambda run: run.protocol)
        found = [_evaluated(run, run.protocol, run.game not in sampled) for run in runs]
        what = f"evaluations with the view in training, {_how(sampled, {run.game for run in runs})}"
    else:
        found = [_trained(run, run.protocol) for run in runs]
        what = "the last 100 training games, since no run was evaluated with the view it was trained with"
    scores = [each for each in found if isinstance(each, Score)]
    return scores, what, [each for each in found if isinstance(each, str)]


def of_equal_steps(scores: Sequence[Score]) -> bool:
    """Return whether agents were scored after as many steps, but for a batch."""
    steps = [score.step for score in scores]
    return min(steps) >= (1 - _STEP_TOLERANCE) * max(steps)


def unequal_steps(board: ScoreBoard) -> list[str]:
    """Note each game in which some series have trained longer than others."""
    lines = []
    for game in dict.fromkeys(game for game, _ in board.cells):
        first = {label: scores[0] for (g, label), scores in board.cells.items() if g == game}
        if not of_equal_steps(list(first.values())):
            named = ", ".join(f"{label} {score.step:,}" for label, score in first.items())
            lines.append(f"Scores on {name_of(game)} are of different steps: {named}.")
    return lines


def older_scores(board: ScoreBoard) -> list[str]:
    """Note, in a line, the runs that have trained on since the evaluation that scores them."""
    every = [score for scores in board.cells.values() for score in scores]
    found = [score for score in every if score.step < (1 - _STEP_TOLERANCE) * score.run.last_step]
    if not found:
        return []
    run, step = found[0].run, found[0].step
    some = f"{run.path} is" if len(found) == 1 else f"{len(found)} runs are, such as {run.path},"
    anew = eval_command(run.path, *consent(run.core, run.game))
    return [f"{some} scored at step {step:,} of {run.last_step:,} trained; `{anew}` scores the newest agent."]


def _best_known(run: Run, way: Way) -> Evaluation | None:
    """Return the run's evaluation made in this way: highest step first, then most episodes, then newest.

    A quick look of a few episodes, for a video say, does not displace a whole evaluation.
    """
    fitting = [each for each in run.evaluations if way_of(each) == way]
    return max(fitting, key=lambda e: (e.step, e.episodes, e.time), default=None)


def _not_evaluated(run: Run, protocol: str | None, greedy: bool) -> str:
    options = [*(_spelled(protocol, run.protocol) if protocol else []), *([] if greedy else ["--sample"])]
    command = eval_command(run.path, *consent(run.core, run.game), *options)
    if not run.evaluations:
        return f"{run.path}: no evaluation, so it has no score; make one with `{command}`"
    others = {
        f"{e.protocol or 'its environment'}, {'greedy' if e.greedy else 'sampled'}" for e in run.evaluations
    }
    return f"{run.path}: evaluated otherwise ({'; '.join(sorted(others))}), so it has no score; `{command}`"


def _spelled(protocol: str, trained_under: str | None) -> list[str]:
    """Spell a protocol for `eval`, which takes what of it is seen from the agent, unless told."""
    base, _, _ = protocol.partition("+")
    rules = find_protocol(protocol)
    trained = rules if trained_under is None else find_protocol(trained_under)
    shares = {name: getattr(rules, name) for name in ("flicker", "blink")}
    others = {name: share for name, share in shares.items() if share != getattr(trained, name)}
    return ["--protocol", base, *(word for name, x in others.items() for word in (f"--{name}", str(x)))]


def _evaluated(run: Run, protocol: str | None, greedy: bool) -> Score | str:
    """Return the score by the evaluation made in this way, or a line that says why there is none."""
    way = (protocol if run.protocol else None, greedy)
    evaluation = _best_known(run, way)
    if evaluation is None:
        return _not_evaluated(run, *way)
    value = evaluation.life if evaluation.life is not None else evaluation.game
    if value is None:
        return f"{evaluation.path}: no episode in it; evaluate again with more episodes"
    game = evaluation.game
    return Score(run, value, game, _normalized(run, game), evaluation.step, evaluation)


def _normalized(run: Run, game_return: float | None) -> float | None:
    if game_return is None:
        return None
    return (human_normalized if run.protocol else task_normalized)(run.game, game_return)


def _same_step(scores: list[Score], left_out: list[str]) -> list[Score]:
    """Keep the scores of a series near its median step; leave out the others."""
    if not scores:
        return []
    usual = statistics.median_low(score.step for score in scores)
    kept = []
    for score in scores:
        if abs(score.step - usual) <= _STEP_TOLERANCE * usual:
            kept.append(score)
        else:
            left_out.append(
                f"{score.run.path}: evaluated at step {score.step:,}, others of its series at {usual:,}; "
                "its score is left out"
            )
    return kept


def _trained(run: Run, protocol: str | None) -> Score | str:
    """Return the mean return of the last 100 training games of a run that reached its budget, or a line."""
    lives = protocol is not None and run.protocol and find_protocol(protocol).life_ends_episode
    game = curve_of(run.rows, "game_return").y
    returns = curve_of(run.rows, "life_return").y if lives else game
    if not len(returns):
        return f"{run.path}: no game finished yet, so it has no score"
    if run.steps is not None and run.last_step < run.steps:
        return (
            f"{run.path}: at step {run.last_step:,} of {run.steps:,}, so it has no score yet; its learning "
            "curve is drawn"
        )
    whole_game = float(game[-1]) if len(game) else None
    return Score(run, float(returns[-1]), whole_game, _normalized(run, whole_game), run.last_step)


def _kind(comparison: Comparison, protocol: str | None) -> str:
    if protocol is None or comparison.is_mixed:
        return "return"
    return "life return" if find_protocol(protocol).life_ends_episode else "game return"


def _describe_training(kind: str) -> str:
    return (
        f"No run has an evaluation, so a score is the mean {kind} of the last 100 "
        "training games (lives, where an episode is one), with sampled actions. `deltabeast eval RUN` makes "
        "scores to publish."
    )


def _describe(comparison: Comparison, protocol: str | None, sampled: Sequence[str]) -> str:
    of_atari = " of Atari games" if comparison.is_mixed else ""
    whose = f", that{of_atari}" if of_atari else ""
    under = f"{whose} under {protocol}" if protocol else ""
    text = (
        f"A score is a run's mean {_kind(comparison, protocol)} in its evaluation{under}, "
        f"{_how(sampled, comparison.games)}: of several the one at the highest step, of most episodes, and "
        "newest."
    )
    if protocol and find_protocol(protocol).life_ends_episode:
        of_games = "Of Atari games it" if comparison.is_mixed else "It"
        text += f" {of_games} is the return of one life; human-normalised scores are of whole games."
    if protocol != comparison.protocol:
        text += f" The agents{of_atari} were trained under {comparison.protocol}."
    others = {e.protocol for run in comparison.runs() for e in run.evaluations if e.protocol} - {protocol}
    if others:
        text += f" Evaluations under {', '.join(sorted(others))} are left out: they do not compare."
    return text
