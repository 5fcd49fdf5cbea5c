"""Names as a report shows them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from ...envs import PAPER_GAMES

_PAPER_CORES = {
    "feedforward": "Feedforward",
    "gated_feedforward": "Gated feedforward",
    "lstm": "LSTM",
    "linear_transformer": "Linear Transformer",
    "delta_net": "Delta Net",
    "delta_rnn": "Delta RNN",
    "rdn": "RDN",
    "rdn_large": "Larger RDN",
}


def name_of(game: str) -> str:
    """A game as a title; of an environment's id the part after its module."""
    return game.split(":")[-1].split("/")[-1].removeprefix("popgym-")


def paper_game(game: str) -> str:
    """A game as the publication writes it."""
    return PAPER_GAMES[game]


def paper_core(core: str) -> str:
    """A core as the publication writes it."""
    return _PAPER_CORES.get(core, core)


def file_name(name: str) -> str:
    """A game or series as part of a file's name; of a long one the beginning, and a digest of all."""
    plain = "".join(c if c.isalnum() or c in "_-" else "-" for c in name_of(name)).strip("-")
    return plain if len(plain) <= 80 else f"{plain[:70]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def versus(series: str, baseline: str) -> str:
    """A pair as the label of a row, in two lines where one would be long."""
    return f"{series}{chr(10) if len(series) + len(baseline) > 26 else ' '}over {baseline}"


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def join(games: Sequence[str]) -> str:
    return ", ".join(map(name_of, games))
