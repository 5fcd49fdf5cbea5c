"""Names and facts of the Atari games."""

import csv
import difflib
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import ale_py
from ale_py import roms


@functools.cache
def _table() -> list[dict[str, str]]:
    """games.csv. Its scores are those of DQN Zoo's table: whole games, no-op starts, 108k frames at most."""
    with Path(__file__).with_name("games.csv").open(newline="") as file:
        return list(csv.DictReader(file))


PAPER_GAMES = {row["game"]: row["published"] for row in _table() if row["published"]}
"""The twenty games of the published recurrent fast-weight results in their order, with their names there."""


@dataclass(frozen=True)
class GameInfo:
    """A game's actions and lives, and the random and human scores that frame an agent's."""

    name: str
    actions: int
    """in the minimal action set"""
    fire: bool
    """whether action 1 is FIRE, which may be what starts the game"""
    lives: int
    """the counter right after a reset; 0 where the game has none or starts it later"""
    random: float | None
    """score of uniform random play, whole games; known for 57 games"""
    human: float | None
    """score of a human player"""


_TWO_PLAYERS_ONLY = frozenset({"combat", "joust", "maze_craze", "warlords"})
"""ROMs for the emulator's multi-player interface: to open one alone ends the process."""


def game_names() -> list[str]:
    """List every single-player game of the installed emulator, by ROM name ("space_invaders")."""
    return sorted({str(name) for name in roms.get_all_rom_ids()} - _TWO_PLAYERS_ONLY)


def canonical_game(name: str) -> str:
    """Return a game's ROM name from any usual spelling; raises ValueError with near names."""
    names = _names_by_letters()
    letters = _letters(name)
    if letters in names:
        return names[letters]
    if letters in map(_letters, _TWO_PLAYERS_ONLY):
        raise ValueError(f"{name} is for two players only; `deltabeast games` lists those for one")
    near = [names[close] for close in difflib.get_close_matches(letters, names, n=3, cutoff=0.65)]
    hint = (
        f"did you mean {' or '.join(dict.fromkeys(near))}?" if near else "`deltabeast games` lists them all"
    )
    raise ValueError(f"unknown game {name!r}: {hint}")


def game_info(name: str) -> GameInfo:
    """Look a game up in games.csv, since the emulator takes a tenth of a second to load it; a game that the
    table lacks is loaded."""
    game = canonical_game(name)
    return _known_games().get(game) or ask_emulator(game)


@functools.cache
def ask_emulator(game: str) -> GameInfo:
    """Load a game to learn its facts, without scores: a row of games.csv."""
    ale = load_game(game)
    actions = [action.name for action in action_set(ale)]
    fire = len(actions) > 2 and actions[1] == "FIRE"
    return GameInfo(game, len(actions), fire, ale.lives(), random=None, human=None)


@functools.cache
def action_meanings(name: str, full: bool = False) -> tuple[str, ...]:
    """Return the names of a game's actions by index: its minimal set, or all eighteen."""
    return tuple(action.name for action in action_set(load_game(canonical_game(name)), full))


@functools.cache
def screen_size(name: str) -> tuple[int, int]:
    """Height and width of a game's screen, in pixels."""
    height, width = load_game(canonical_game(name)).getScreenDims()
    return height, width


def human_normalized(name: str, score: float) -> float | None:
    """Scale a score to 0 for random and 1 for human play; None where no human score is known."""
    game = game_info(name)
    if game.random is None or game.human is None:
        return None
    return (score - game.random) / (game.human - game.random)


def _letters(name: str) -> str:
    """Reduce a name to the part that tells games apart: no namespace, version, case or punctuation."""
    bare = re.sub(r"^ALE/", "", name.strip(), flags=re.IGNORECASE)
    bare = re.sub(r"(-ram)?(NoFrameskip|Deterministic)?-v\d+$", "", bare, flags=re.IGNORECASE)
    return re.sub(r"[^a-z0-9]", "", bare.lower())


@functools.cache
def _names_by_letters() -> dict[str, str]:
    names = {_letters(published): game for game, published in PAPER_GAMES.items()}
    return names | {_letters(game): game for game in game_names()}


@functools.cache
def _known_games() -> dict[str, GameInfo]:
    return {
        row["game"]: GameInfo(
            name=row["game"],
            actions=int(row["actions"]),
            fire=row["fire"] == "yes",
            lives=int(row["lives"]),
            random=float(row["random"]) if row["random"] else None,
            human=float(row["human"]) if row["human"] else None,
        )
        for row in _table()
    }


def load_game(
    game: str, seed: int = 0, sticky: float = 0.0, limit: int = 0, choices: Mapping[str, int] | None = None
) -> ale_py.ALEInterface:
    """Load a game into an emulator of its own; `limit`: frames of its longest episode, 0 for none; `choices`:
    its mode and difficulty, where they are not the usual ones."""
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    ale = ale_py.ALEInterface()
    ale.setInt("random_seed", seed)
    ale.setInt("max_num_frames_per_episode", limit)
    ale.setFloat("repeat_action_probability", sticky)
    path = roms.get_rom_path(game)
    assert path is not None
    ale.loadROM(path)
    if choices and "mode" in choices:
        ale.setMode(choices["mode"])
    if choices and "difficulty" in choices:
        ale.setDifficulty(choices["difficulty"])
    return ale


@functools.cache
def opening_frames(game: str, choices: frozenset[tuple[str, int]] = frozenset()) -> int:
    """Return the emulator's frame count when a game begins: 20 in Berzerk, which it starts by buttons of its
    own, 0 in most games, more in other modes, which it selects by buttons. `choices`: mode, difficulty."""
    ale = load_game(game, choices=dict(choices))
    ale.reset_game()
    return ale.getEpisodeFrameNumber()


def action_set(ale: ale_py.ALEInterface, full: bool = False) -> list[ale_py.Action]:
    """Return the actions of a loaded game by index: its minimal set, or all eighteen."""
    return ale.getLegalActionSet() if full else ale.getMinimalActionSet()
