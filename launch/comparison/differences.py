"""All differences between the ways our scores and the published ones are made, as a report must state them.

Sources: Irie et al. (2021) and its released code, as `envs/README.md` and `agents/README.md` give them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from ...envs import find_protocol
from ..runs.presets import NOT_PUBLISHED, PRESETS
from ..runs.published import FEWER_ACTIONS, NO_NEGATIVE, PROTOCOL
from .grouping import Comparison
from .names import join
from .relative import is_published
from .runs import Run
from .scores import ScoreBoard

ABOUT_THE_PUBLISHED = (
    "Each published score is given as mean ± population standard deviation of the means of 5 evaluations of "
    "30 episodes by a greedy agent. It seems that there is one training seed for each game, core and "
    "budget: no number is stated, and no spread over seeds.",
    "An episode there is one life, so it is no score of a whole game: it is not human-normalised here, and "
    "must not stand beside scores of other papers.",
    "Steps are agent steps. 50M and 200M of them are 200M and 800M emulator frames, four times the usual "
    "budget at 200M.",
    "The scores at 50M were taken during the 200M run, with a learning rate annealed over 200M.",
    "The paper's text says that actions are not repeated, that they are sticky, and that episodes have no "
    "time limit. Its code holds an action for 4 frames, has no sticky actions, and stops a game after "
    "400,000 frames (Space Invaders: 300,000). The scores come from the code.",
)

ABOUT_PUBLISHED_GAMES = {
    NO_NEGATIVE: (
        "In Battlezone and Up'n Down episodes with a negative return are left out: their score counters wrap."
    ),
    FEWER_ACTIONS: "Amidar's and James Bond's agents chose among the first 6 actions only.",
    frozenset({"pong", "bank_heist", "robotank", "up_n_down"}): (
        "Besides Pong's, four scores at 200M repeat those at 50M to the digit: Bank Heist's LSTM and Delta "
        "Net, Robotank's LSTM, Up'n Down's feedforward."
    ),
}
"""What must be known of some games only."""

_RULES = {
    "frame_skip": "an action is held for {} frames",
    "max_pool": "observations are the maximum of two frames: {}",
    "sticky_probability": "sticky actions with probability {}",
    "noop_frames": "{} no-op frames at the start of a game",
    "full_action_set": "all 18 actions: {}",
    "life_ends_episode": "a life ends the episode: {}",
    "press_fire": "FIRE is pressed for the agent: {}",
    "repeat_first_frame": "the frame stack begins with copies of the first frame, not black: {}",
    "max_frames": "a game is stopped after {} frames",
    "frame_stack": "screens that agents see at once: {}",
    "flicker": "a screen is black with probability {}",
    "blink": "the ball is invisible on a screen with probability {}",
}

_PUBLISHED_SETTINGS = {
    **PRESETS["published"],
    "num_actors": 48,
    "num_envs": 1,
    "core_options": "default",
    "env_options": "default",
    "steps": 200_000_000,
}


def differences(comparison: Comparison, board: ScoreBoard) -> list[str]:
    """List the ways in which the scores of the board are made otherwise than the published ones."""
    atari = [run for run in comparison.runs() if is_published(run.game)]
    others = sorted({run.game for run in comparison.runs()} - {run.game for run in atari})
    lines = [f"{join(others)}: not among the published games; nothing here compares."] if others else []
    if not atari:
        return lines
    lines += _evaluation(board)
    evaluated_under = board.protocol if board.evaluated else None
    for what, protocol in (("Evaluation", evaluated_under), ("Training", comparison.protocol)):
        if protocol not in (None, PROTOCOL):
            lines.append(f"{what} is under {protocol}, not {PROTOCOL}: {_rules(str(protocol))}.")
    lines += _training(atari)
    games = {run.game for run in atari}
    if board.protocol != PROTOCOL and (wrapping := sorted(games & NO_NEGATIVE)):
        lines.append(
            f"{', '.join(wrapping)}: episodes with negative returns are kept; published, they are left out."
        )
    uncut = {run.game for run in atari if run.settings.get("num_actions") is None}
    if fewer := sorted(uncut & FEWER_ACTIONS):
        lines.append(
            f"{', '.join(fewer)}: our agents have all of the game's actions; the published had the first 6."
        )
    seeds = {len(runs) for (game, _), runs in comparison.cells.items() if game in games}
    lines.append(
        f"Ours are means over {_range(seeds)} training seed{'s' if seeds != {1} else ''} for each core; "
        "published is one, it seems, and its ± is over evaluations, not seeds."
    )
    if any(run.core == "linear_transformer" for run in atari):
        lines.append(f"Linear Transformer: {NOT_PUBLISHED['linear_transformer']}.")
    return [*lines, f"The environment: {NOT_PUBLISHED['environment']}."]


def _evaluation(board: ScoreBoard) -> list[str]:
    if not board.evaluated:
        return [
            "Ours are training returns of a policy that changes and samples; theirs is a greedy evaluation."
        ]
    lines = []
    games = dict.fromkeys(game for game, _ in board.cells if is_published(game))
    if sampled := [game for game in games if game in board.sampled]:
        where = "" if len(sampled) == len(games) else f" on {join(sampled)}"
        lines.append(
            f"Our agents sample their actions{where}; the published agents took the most likely one."
        )
    counts = {
        score.evaluation.episodes
        for scores in board.cells.values()
        for score in scores
        if score.evaluation and is_published(score.run.game)
    }
    if counts != {150}:
        lines.append(f"Episodes of our evaluations: {_range(counts)}; of the published ones 150 (5 × 30).")
    return lines


def _rules(protocol: str) -> str:
    """Describe the protocol's rules that differ from the published ones."""
    ours, theirs = asdict(find_protocol(protocol)), asdict(find_protocol(PROTOCOL))
    parts = [
        f"{text.format(_plain(ours[name]))} (published: {_plain(theirs[name])})"
        for name, text in _RULES.items()
        if ours[name] != theirs[name]
    ]
    return "; ".join(parts)


def _training(runs: Sequence[Run]) -> list[str]:
    parts = []
    for name, published in _PUBLISHED_SETTINGS.items():
        ours = sorted({str(_value(run.settings[name])) for run in runs if name in run.settings})
        if ours and ours != [str(_value(published))]:
            parts.append(f"{name.replace('_', ' ')} {' or '.join(ours)} (published: {_value(published)})")
    return [f"Training differs in: {'; '.join(parts)}."] if parts else []


def _value(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple | list):
        return "no" if tuple(value) == (0, 0) else f"{value[0]} to {value[1]}"
    if isinstance(value, int):
        return "no limit of" if value >= 2**30 else f"{value:,}"
    return "no" if value == 0 else str(value)


def _range(counts: set[int]) -> str:
    low, high = min(counts, default=0), max(counts, default=0)
    return str(low) if low == high else f"{low} to {high}"
