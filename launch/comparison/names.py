"""Names as a report shows them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

PAPER_CORES = {
    "feedforward": "Feedforward",
    "gated_feedforward": "Gated feedforward",
    "lstm": "LSTM",
    "linear_transformer": "Linear Transformer",
    "delta_net": "Delta Net",
    "delta_rnn": "Delta RNN",
    "rdn": "RDN",
    "rdn_large": "Larger RDN",
}
"""Names of the publication, in its order."""


def name_of(game: str) -> str:
    """Return a game as a title. Of an id it is what follows the module that registers it; what a module
    makes itself is named with it, since another may make another of that name.
    """
    name = game.rpartition(":")[2]
    return (
        game
        if name != game and name.isidentifier()
        else name.removeprefix("deltabeast/").removeprefix("popgym-")
    )


def paper_core(core: str) -> str:
    """Return a core's name in the publication."""
    return PAPER_CORES.get(core, core)


def file_name(name: str) -> str:
    """Return a game or series as part of a file name; a long one is cut and ends in its digest."""
    plain = "".join(c if c.isalnum() or c in "_-" else "-" for c in name_of(name)).strip("-")
    return plain if len(plain) <= 80 else f"{plain[:70]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def versus(series: str, baseline: str) -> str:
    """Label a row with a pair, in two lines where one would be long."""
    return f"{series}{chr(10) if len(series) + len(baseline) > 26 else ' '}over {baseline}"


def join(games: Sequence[str]) -> str:
    return ", ".join(map(name_of, games))
