"""The page of a memory card: a figure, and a table with what each memory costs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...agents.shapes import count_numbers
from ...cores import Core
from ...cores.fast_weights import FastWeights
from ...cores.registry import read_core_options
from ..comparison import plots
from ..comparison.plots import looks
from ..comparison.tables import Table
from ..core_list import make_default, measure_cores
from ..output import tell
from ..pages import PageFolder, is_page
from ..tables import plain_table, show
from .snr import noise_ratios

ABILITIES = {
    "capacity": "keys told apart: retrieval, setting 1",
    "overwriting": "the last value of a key: retrieval, setting 2",
    "tracking": "a state that permutes: swap, at the last step",
    "hierarchy": "nested lists: ListOps",
}
"""in the order of the card"""
COSTS = ("SNR, dB", "step, ms", "unroll, ms", "state, floats")
_OF_SHARES = "1 is all that was asked, 0 what is right without memory; what is empty was not tried. "
_OF_COSTS = (
    "SNR: of a value that is read among as many others as a key has numbers, by random keys, before anything "
    "is learned. A step is one of 32 rows, an unroll 50 of them with gradients, on this machine."
)
_OF_RETURNS = " Under the name of an environment: the mean return of a run's last training games."
_ROUNDS = 200


@dataclass(frozen=True)
class Model:
    """A core with its options, and what its runs reached."""

    core: str
    options: Mapping[str, Any]
    shares: dict[str, list[float]] = field(default_factory=dict)
    """of each ability that was tried, between 0 and 1"""
    returns: dict[str, list[float]] = field(default_factory=dict)
    """of each environment that was trained on"""


def write_page(out: Path, models: Mapping[str, Model]) -> Path:
    """Write card.md, its figure card.png and card.svg, and its table card.csv."""
    tried = [name for name in ABILITIES if any(name in model.shares for model in models.values())]
    played = sorted({name for model in models.values() for name in model.returns})
    names = [*tried, *played, *COSTS]
    costs = _costs(models)
    cells: dict[str, list[float | str | None]] = {}
    for name, model in models.items():
        shares = [_mean(model.shares.get(ability)) for ability in tried]
        returns = [_mean(model.returns.get(env)) for env in played]
        cells[name] = [*shares, *map(_shown, returns), *costs[name]]
    rows = [[name, *map(_shown, row)] for name, row in cells.items()]
    table = Table("card", ["core", *names], rows, text_columns=1 + len(names))
    figures = plots.abilities(cells, names, looks({name: model.core for name, model in models.items()}))
    pages = PageFolder(out, tell, is_ours=is_page(out / "card.md", b"# Memory card"))
    pages.write("card.png", figures.png)
    pages.write("card.svg", figures.svg)
    page = ["# Memory card", "", "![What each memory can do](card.png)", "", table.to_markdown(), ""]
    page += [f"* {name}: {ABILITIES[name]}" for name in tried]
    note = (_OF_SHARES if tried else "") + _OF_COSTS + (_OF_RETURNS if played else "")
    pages.write("card.csv", table.to_csv())
    pages.write_page("card.md", "\n".join([*page, "", note]) + "\n")
    printed = plain_table(*table.columns)
    for row in rows:
        printed.add_row(*row)
    show(printed)
    tell(f"card: {out / 'card.md'}; its figure is card.png, its table card.csv")
    return out / "card.md"


def _mean(values: Sequence[float] | None) -> float | None:
    return statistics.fmean(values) if values else None


def _shown(cell: float | str | None) -> str:
    return cell if isinstance(cell, str) else "" if cell is None else f"{cell:.2f}"


def _costs(models: Mapping[str, Model]) -> dict[str, list[str]]:
    """Return the cells of `COSTS` of each model, empty for cores that are not here."""
    torch.manual_seed(0)
    cores: dict[str, Core] = {}
    for name, model in models.items():
        try:
            cores[name] = make_default(model.core, **read_core_options(model.core, model.options))
        except ValueError:  # a core of another version, or of somebody else's
            continue
    cells = {name: [""] * len(COSTS) for name in models}
    for name, (step, unroll) in measure_cores(cores).items():
        state = count_numbers(cores[name].initial_state(1))
        cells[name] = [_snr(cores[name]), f"{1000 * step:.2f}", f"{1000 * unroll:.1f}", f"{state:,}"]
    return cells


@torch.no_grad()
def _snr(core: Core) -> str:
    """Return the signal to noise ratio of a core's first memory in decibels, if it has one of this kind."""
    memory = next((part for part in core.modules() if isinstance(part, FastWeights)), None)
    if memory is None:
        return ""
    size = memory.head_size
    if memory.similarity(torch.zeros(1, size), torch.zeros(size)) is None:
        return ""

    def similarity(keys: Any, query: Any) -> Any:
        weights = memory.similarity(*(torch.from_numpy(part).float() for part in (keys, query)))
        assert weights is not None
        return weights.numpy()

    ratios = noise_ratios(similarity, size, size, _ROUNDS, np.random.default_rng(0))
    return f"{-10 * math.log10(ratios.mean()):.1f}"
