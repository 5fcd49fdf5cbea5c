"""Tables of what benchmarks measure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from ..tables import plain_table

if TYPE_CHECKING:  # each benchmark imports its own
    from .env import EnvSpeed
    from .kernels import Measured
    from .throughput import Throughput


def kernel_table(kernels: Sequence[Measured]) -> Table:
    """Show every backend of every rule: whether it is right, and if so how fast."""
    on_gpu = any(kernel.captured is not None for kernel in kernels)
    times = ("forward", "with backward", *(["both in a graph"] if on_gpu else []))
    table = plain_table("rule", "backend", "error", *times, "vs reference", "peak memory")
    for kernel in kernels:
        row = [kernel.rule, kernel.backend, f"{kernel.error:.0e}"]
        if kernel.forward is None or kernel.both is None:
            row.append("WRONG: not timed" if not kernel.right else "")
        else:
            row += map(_milliseconds, (kernel.forward, kernel.both, *([kernel.captured] if on_gpu else [])))
            row.append("" if kernel.ratio is None else f"{kernel.ratio:.1f}x")
            row.append("" if kernel.peak_bytes is None else f"{kernel.peak_bytes / 2**20:.1f} MiB")
        table.add_row(*row)
    return table


def _milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e3:.2f} ms"


def env_speed_table(speeds: Sequence[EnvSpeed]) -> Table:
    """Show agent steps a second of every game, number of environments, processes and threads of each."""
    table = plain_table("game", "environments", "processes", "threads", "agent steps/s")
    for speed in speeds:
        numbers = str(speed.num_envs), str(speed.processes), str(speed.threads)
        table.add_row(speed.game, *numbers, f"{speed.steps_per_second:,.0f}")
    return table


def throughput_table(results: Sequence[Throughput]) -> Table:
    """Show each stage alone, the bound they make, and what training reaches of it."""
    table = plain_table("", "agent steps/s")
    for result in results:
        table.add_row("by", result.uses)
        for name in ("emulation", "inference", "learning"):
            table.add_row(f"{name} alone", f"{getattr(result, name):,.0f}")
        if result.bound != result.bound_apart:
            table.add_row("inference, kept for the learner", f"{result.acting:,.0f}")
            table.add_row("learning from what was kept", f"{result.backward:,.0f}")
            table.add_row("bound if nothing is kept", f"{result.bound_apart:,.0f}")
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
