"""Names of the Atari games, and what is known about each."""

import difflib
import functools
import re
from dataclasses import dataclass

import ale_py
from ale_py import roms


@dataclass(frozen=True)
class PaperGame:
    """One of the twenty games of the published recurrent fast-weight results."""

    paper_name: str
    random: float  # score of uniform random play, whole games
    human: float  # score of a human player, whole games


# Scores of random and human play: the table shipped with DQN Zoo (whole games, no-op starts, 108k frames).
PAPER_GAMES: dict[str, PaperGame] = {
    "alien": PaperGame("Alien", 227.8, 7127.7),
    "amidar": PaperGame("Amidar", 5.8, 1719.5),
    "assault": PaperGame("Assault", 222.4, 742.0),
    "battle_zone": PaperGame("Battlezone", 2360.0, 37187.5),
    "berzerk": PaperGame("Berzerk", 123.7, 2630.4),
    "bank_heist": PaperGame("B. Heist", 14.2, 753.1),
    "beam_rider": PaperGame("B. Rider", 363.9, 16926.5),
    "demon_attack": PaperGame("D. Attack", 152.1, 1971.0),
    "gopher": PaperGame("Gopher", 257.6, 2412.5),
    "jamesbond": PaperGame("James Bond", 29.0, 302.8),
    "kung_fu_master": PaperGame("Kung-fu", 258.5, 22736.3),
    "ms_pacman": PaperGame("MsPacman", 307.3, 6951.6),
    "pong": PaperGame("Pong", -20.7, 14.6),
    "qbert": PaperGame("Q*Bert", 163.9, 13455.0),
    "robotank": PaperGame("Robotank", 2.2, 11.9),
    "seaquest": PaperGame("Seaquest", 68.4, 42054.7),
    "space_invaders": PaperGame("S. Invaders", 148.0, 1668.7),
    "star_gunner": PaperGame("Stargunner", 664.0, 10250.0),
    "up_n_down": PaperGame("Up'n down", 533.4, 11693.2),
    "zaxxon": PaperGame("Zaxxon", 32.5, 9173.3),
}


@dataclass(frozen=True)
class GameInfo:
    """What a game offers. `fire`: its action 1 is FIRE, which may be what starts it."""

    name: str
    actions: tuple[str, ...]  # the minimal action set
    fire: bool
    lives: int  # the counter right after a reset; 0 where the game has none or starts it later
    paper_name: str | None
    random: float | None
    human: float | None


_TWO_PLAYERS_ONLY = frozenset({"combat", "joust", "maze_craze", "warlords"})
"""ROMs for the emulator's multi-player interface: to open one alone ends the process."""


def game_names() -> list[str]:
    """Every single-player game of the installed emulator, by ROM name ("space_invaders")."""
    return sorted({str(name) for name in roms.get_all_rom_ids()} - _TWO_PLAYERS_ONLY)


def canonical_game(name: str) -> str:
    """The ROM name of a game given in any usual spelling; a ValueError with near names otherwise."""
    known = _names_by_letters()
    letters = _letters(name)
    if letters in known:
        return known[letters]
    near = [known[close] for close in difflib.get_close_matches(letters, known, n=3, cutoff=0.6)]
    hint = (
        f"did you mean {' or '.join(dict.fromkeys(near))}?" if near else "`deltabeast games` lists them all"
    )
    raise ValueError(f"unknown game {name!r}: {hint}")


@functools.cache
def game_info(name: str) -> GameInfo:
    game = canonical_game(name)
    ale = _console(game)
    actions = tuple(action.name for action in ale.getMinimalActionSet())
    paper = PAPER_GAMES.get(game)
    return GameInfo(
        name=game,
        actions=actions,
        fire=len(actions) > 2 and actions[1] == "FIRE",
        lives=ale.lives(),
        paper_name=paper.paper_name if paper else None,
        random=paper.random if paper else None,
        human=paper.human if paper else None,
    )


@functools.cache
def action_meanings(name: str, full: bool = False) -> tuple[str, ...]:
    """The names of a game's actions by index: its minimal set, or all eighteen."""
    if not full:
        return game_info(name).actions
    return tuple(action.name for action in _console(canonical_game(name)).getLegalActionSet())


@functools.cache
def screen_size(name: str) -> tuple[int, int]:
    """Height and width of a game's screen, in pixels."""
    height, width = _console(canonical_game(name)).getScreenDims()
    return height, width


def human_normalized(name: str, score: float) -> float | None:
    """0 for random play and 1 for a human player; None where no human score is known."""
    paper = PAPER_GAMES.get(canonical_game(name))
    return (score - paper.random) / (paper.human - paper.random) if paper else None


def _letters(name: str) -> str:
    """The part of a name that tells games apart: no namespace, version, case or punctuation."""
    bare = re.sub(r"^ALE/", "", name.strip(), flags=re.IGNORECASE)
    bare = re.sub(r"(-ram)?(NoFrameskip|Deterministic)?-v\d+$", "", bare, flags=re.IGNORECASE)
    return re.sub(r"[^a-z0-9]", "", bare.lower())


@functools.cache
def _names_by_letters() -> dict[str, str]:
    names = {_letters(paper.paper_name): game for game, paper in PAPER_GAMES.items()}
    return names | {_letters(game): game for game in game_names()}


def _console(game: str) -> ale_py.ALEInterface:
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    ale = ale_py.ALEInterface()
    path = roms.get_rom_path(game)
    assert path is not None
    ale.loadROM(path)
    return ale
