"""Tables and texts that the command line prints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import NoneType
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from .units import format_score

if TYPE_CHECKING:  # evaluate imports torch, which listing games needs not wait for
    from ..cores.options import Option
    from ..envs import GameInfo
    from .bench.env import EnvSpeed
    from .bench.kernels import Measured
    from .bench.throughput import Throughput
    from .evaluation.evaluate import Evaluation, Summary
    from .runs.published import PublishedScore


def games_table(games: Sequence[GameInfo], published: Mapping[str, str]) -> Table:
    """Every game: its name in the publication, actions and lives, and the scores that frame an agent's."""
    table = _table("game", "published as", "actions", "lives", "FIRE", "random", "human")
    for game in games:
        table.add_row(
            game.name,
            published.get(game.name, ""),
            str(game.actions),
            str(game.lives or "-"),
            "yes" if game.fire else "",
            _number(game.random),
            _number(game.human),
        )
    return table


def cores_table(cores: Sequence[tuple[str, int, str]]) -> Table:
    """Every core: its name, the parameters of a whole agent with it, and what it is."""
    table = _table("core", "parameters", "what it is")
    table.columns[2].justify = "left"
    table.columns[2].no_wrap = False
    for name, parameters, description in cores:
        table.add_row(name, f"{parameters:,}", description)
    return table


def core_options_table(options: Iterable[Option]) -> Table:
    """Every option of a core: its type, its default, the values a listed choice has, and what it is."""
    table = _table("option", "type", "default", "values", "what it is")
    for column in table.columns[1:]:
        column.justify = "left"
    table.columns[4].no_wrap = False
    for option in options:
        kinds = dict.fromkeys(_type_name(kind) for kind in (*map(type, option.choices), *option.types))
        default = "required" if option.is_required else str(option.default)
        values = ", ".join(map(str, option.choices))
        table.add_row(option.name, " or ".join(kinds) or "any", default, values, option.description)
    return table


def kernel_table(kernels: Sequence[Measured]) -> Table:
    """Every backend of every rule: whether it is right, and if so how fast."""
    table = _table("rule", "backend", "error", "forward", "with backward", "vs reference", "peak memory")
    for kernel in kernels:
        row = [kernel.rule, kernel.backend, f"{kernel.error:.0e}"]
        if kernel.forward is None or kernel.both is None:
            row.append("WRONG: not timed" if not kernel.right else "")
        else:
            row += [f"{kernel.forward * 1e3:.2f} ms", f"{kernel.both * 1e3:.2f} ms"]
            row.append("" if kernel.ratio is None else f"{kernel.ratio:.1f}x")
            row.append("" if kernel.peak_bytes is None else f"{kernel.peak_bytes / 2**20:.1f} MiB")
        table.add_row(*row)
    return table


def env_speed_table(speeds: Sequence[EnvSpeed]) -> Table:
    """Agent steps a second of every game, number of environments and threads."""
    table = _table("game", "environments", "threads", "agent steps/s")
    for speed in speeds:
        row = speed.game, str(speed.num_envs), str(speed.threads), f"{speed.steps_per_second:,.0f}"
        table.add_row(*row)
    return table


def throughput_table(results: Sequence[Throughput]) -> Table:
    """Each stage alone, the bound they make, and what training reaches of it."""
    table = _table("", "agent steps/s")
    for result in results:
        for name in ("emulation", "inference", "learning"):
            table.add_row(f"{name} alone", f"{getattr(result, name):,.0f}")
        table.add_row("bound", f"{result.bound:,.0f}")
        table.add_row(Text("training", style="bold"), Text(f"{result.trained:,.0f}", style="bold"))
        table.add_row("of the bound", f"{result.share_of_bound:.0%}")
        table.add_row("of emulation alone", f"{result.share_of_emulation:.0%}")
        shares = ", ".join(f"{name} {share:.0%}" for name, share in result.time_shares.items())
        table.add_row("time", shares)
        table.add_row("core, of learning alone", f"{result.core_share:.1%}")
        table.add_row("policy lag", f"{result.policy_lag:.2f} updates")
        if result.bus_bytes:
            table.add_row("over the bus", f"{result.bus_bytes:,.0f} bytes/step")
        table.add_row("peak memory", f"{result.peak_memory_bytes / 2**30:.2f} GiB")
    return table


def evaluation_table(
    players: Mapping[str, Evaluation],
    published: Mapping[int, PublishedScore],
    lives: bool,
    normalized: Mapping[str, float | None],
) -> RenderableType:
    """Evaluations side by side, published scores of the same kind beside them.

    lives: whether an episode is a life; if not, life and game returns are one and the same.
    normalized: human-normalised game scores by player, where they exist.
    """
    table = _table("", *players, *(f"published {millions}M" for millions in published))
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


def evaluation_notes(players: Mapping[str, Evaluation], lives: bool) -> list[str]:
    """What a reader of an evaluation has to know beside its numbers."""
    notes = [
        "mean ± population standard deviation of the repeats' means; 95% bootstrap interval over episodes, "
        "which says nothing of other training seeds"
    ]
    if lives and any(player.life.returns != player.game.returns for player in players.values()):
        notes.append(
            "an episode is one life here: life returns do not compare with scores of whole games, "
            "and a game that was under way at the end of a repeat is in no game return"
        )
    for name, player in players.items():
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
                means = "  ".join(_number(mean, summary.mean) for mean in summary.repeat_means)
                lines.append(Text.assemble((f"{name}, {label} of each repeat: ", "dim"), means))
    return lines


def _span(low: float, high: float) -> str:
    size = max(abs(low), abs(high))
    return f"{_number(low, size)} to {_number(high, size)}"


_DETAILS = {
    "95% interval": lambda summary: _span(*summary.interval),
    "range": lambda summary: _span(summary.minimum, summary.maximum),
    "mean length": lambda summary: f"{_number(summary.mean_length)} steps",
    "episodes": lambda summary: str(summary.count),
}


def _type_name(kind: type) -> str:
    return "None" if kind is NoneType else kind.__name__


def _mean_std(score: Summary | PublishedScore) -> str:
    return f"{_number(score.mean)} ± {_number(score.std, score.mean)}"


def _number(value: float | None, beside: float | None = None) -> str:
    """As a score, without decimals where the number is large or whole."""
    if value is None:
        return ""
    whole = abs(value) >= 1000 or value == int(value)
    return f"{value:,.0f}" if whole else format_score(value, beside)


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column(first, no_wrap=True)
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    return table
