"""Assign each run one score: from its evaluation or, where no run has one, from the end of its training."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from ...envs import find_protocol, human_normalized, task_normalized
from ..runs.consent import consent
from ..runs.directory import eval_command
from .curves import Way, curve_of, way_of
from .grouping import Cell, Comparison, commonest_protocol
from .names import join, name_of
from .runs import Evaluation, Run

_STEP_TOLERANCE = 0.05
"""Share by which the steps of scores may differ: a run ends, or saves, a batch after its mark."""


class Score(NamedTuple):
    """What a run reached."""

    run: Run
    value: float
    """mean return of the agent's episode: a life under paper-code, a game elsewhere"""
    whole_game: float | None
    """mean return of a whole game, where an episode is a life; None elsewhere, and where none ended"""
    normalized: float | None
    """mean return of a whole game with 0 for random play and 1 for a human, or in a task of memory for the
    best there is; None where these are not known"""
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
    """games whose scores are evaluations with sampled actions; empty where nothing was evaluated"""
    cells: dict[Cell, list[Score]]
    left_out: list[str]


def score_board(comparison: Comparison) -> ScoreBoard:
    """Score the runs of a game in one way, and Atari games under one protocol; runs that cannot be scored are
    left out, with a line that says why."""
    runs = comparison.runs()
    evaluated = any(run.evaluations for run in runs)
    protocol = _evaluated_under(runs) if evaluated else comparison.protocol
    kind = _kind(comparison, protocol)
    sampled = _sampled(runs, lambda run: _for_run(run, protocol)) if evaluated else []
    left_out: list[str] = []
    cells: dict[Cell, list[Score]] = {}
    for (game, label), members in comparison.cells.items():
        found = [
            _evaluated(run, _for_run(run, protocol), game not in sampled)
            if evaluated
            else _trained(run, _for_run(run, protocol))
            for run in members
        ]
        left_out += [why for why in found if isinstance(why, str)]
        if scores := _same_step([each for each in found if isinstance(each, Score)], left_out):
            cells[game, label] = scores
    scored = {game for game, _ in cells}
    return ScoreBoard(
        description=_describe(comparison, protocol, kind, _how(sampled, scored))
        if evaluated
        else _describe_training(kind),
        kind=kind,
        protocol=protocol,
        evaluated=evaluated,
        sampled=[game for game in sampled if game in scored],
        cells=cells,
        left_out=left_out,
    )


def _evaluated_under(runs: Sequence[Run]) -> str | None:
    """Return the protocol under which most runs were evaluated; None where no evaluation has one."""
    return commonest_protocol(
        name for run in runs for name in {each.protocol for each in run.evaluations} if name is not None
    )


def _for_run(run: Run, protocol: str | None) -> str | None:
    """Return the protocol of a run's scores, where those of Atari games are under `protocol`."""
    return protocol if run.protocol else None


def _sampled(runs: Sequence[Run], protocol_of: Callable[[Run], str | None]) -> list[str]:
    """Return the games of which more runs were evaluated with sampled actions than greedily, under the
    protocol of each; those without such an evaluation are as most others are."""
    more: dict[str, int] = {}
    for run in runs:
        for greedy in {each.greedy for each in run.evaluations if each.protocol == protocol_of(run)}:
            more[run.game] = more.get(run.game, 0) + (-1 if greedy else 1)
    usual = sum(more.values())
    return sorted({run.game for run in runs if more.get(run.game, usual) > 0})


def _how(sampled: Collection[str], games: Collection[str]) -> str:
    """Say how the evaluations of these games were made."""
    here = [game for game in sampled if game in games]
    if here and len(here) == len(games):
        return "with sampled actions"
    return f"greedy, on {join(here)} with sampled actions" if here else "greedy"


def own_scores(runs: Sequence[Run]) -> tuple[list[Score], str, list[str]]:
    """Score each run under the protocol that it was trained under, those of a game in one way.

    Returns scores, what they are, and a line for each run without one.
    """
    evaluated = any(each.protocol == run.protocol for run in runs for each in run.evaluations)
    sampled = _sampled(runs, lambda run: run.protocol)
    found = [
        _evaluated(run, run.protocol, run.game not in sampled) if evaluated else _trained(run, run.protocol)
        for run in runs
    ]
    scores = [each for each in found if isinstance(each, Score)]
    what = "the last 100 training games, since no run was evaluated with the view it was trained with"
    if any(score.evaluation for score in scores):
        what = f"evaluations with the view in training, {_how(sampled, {score.run.game for score in scores})}"
    return scores, what, [each for each in found if isinstance(each, str)]


def about_equal(step: int, usual: int) -> bool:
    """Return whether numbers of steps are the same but for a batch or so."""
    return abs(step - usual) <= _STEP_TOLERANCE * usual


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


def _best_evaluation(run: Run, way: Way) -> Evaluation | None:
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
    evaluation = _best_evaluation(run, (protocol, greedy))
    if evaluation is None:
        return _not_evaluated(run, protocol, greedy)
    value = evaluation.life if evaluation.life is not None else evaluation.game
    if value is None:
        return f"{evaluation.path}: no episode in it; evaluate again with more episodes"
    whole_game = evaluation.game if _of_lives(protocol) else None
    return Score(run, value, whole_game, _normalized(run, evaluation.game), evaluation.step, evaluation)


def _of_lives(protocol: str | None) -> bool:
    """Return whether an agent's episode is a life."""
    return protocol is not None and find_protocol(protocol).life_ends_episode


def _normalized(run: Run, game_return: float | None) -> float | None:
    if game_return is None:
        return None
    return (human_normalized if run.protocol else task_normalized)(run.game, game_return)


def _same_step(scores: list[Score], left_out: list[str]) -> list[Score]:
    """Keep the scores of a series near its median step; leave out the others."""
    if not scores:
        return []
    usual = statistics.median_low(score.step for score in scores)
    at_usual_step = []
    for score in scores:
        if about_equal(score.step, usual):
            at_usual_step.append(score)
        else:
            left_out.append(
                f"{score.run.path}: evaluated at step {score.step:,}, others of its series at {usual:,}; "
                "its score is left out"
            )
    return at_usual_step


def _trained(run: Run, protocol: str | None) -> Score | str:
    """Return the mean return of the last 100 training games of a run that reached its budget, or a line."""
    game = curve_of(run.rows, "game_return").y
    returns = curve_of(run.rows, "life_return").y if _of_lives(protocol) else game
    if not len(returns):
        return f"{run.path}: no game finished yet, so it has no score"
    if run.steps is not None and run.last_step < run.steps:
        return (
            f"{run.path}: at step {run.last_step:,} of {run.steps:,}, so it has no score yet; its learning "
            "curve is drawn"
        )
    last = float(game[-1]) if len(game) else None
    whole_game = last if _of_lives(protocol) else None
    return Score(run, float(returns[-1]), whole_game, _normalized(run, last), run.last_step)


def _kind(comparison: Comparison, protocol: str | None) -> str:
    if protocol is None or comparison.is_mixed:
        return "return"
    return "life return" if _of_lives(protocol) else "game return"


def _describe_training(kind: str) -> str:
    return (
        f"No run has an evaluation, so a score is the mean {kind} of the last 100 "
        "training games (lives, where an episode is one), with sampled actions. `deltabeast eval RUN` makes "
        "scores to publish."
    )


def _describe(comparison: Comparison, protocol: str | None, kind: str, how: str) -> str:
    of_atari = " of Atari games" if comparison.is_mixed else ""
    whose = f", that{of_atari}" if of_atari else ""
    under = f"{whose} under {protocol}" if protocol else ""
    text = (
        f"A score is a run's mean {kind} in its evaluation{under}, {how}: of several the one at the highest "
        "step, of most episodes, and newest."
    )
    if _of_lives(protocol):
        of_games = "Of Atari games it" if comparison.is_mixed else "It"
        text += f" {of_games} is the return of one life; human-normalised scores are of whole games."
    if protocol != comparison.protocol:
        text += f" The agents{of_atari} were trained under {comparison.protocol}."
    others = {e.protocol for run in comparison.runs() for e in run.evaluations if e.protocol} - {protocol}
    if others:
        text += f" Evaluations under {', '.join(sorted(others))} are left out: they do not compare."
    return text
