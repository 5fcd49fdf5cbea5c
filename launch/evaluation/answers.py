"""The answers of a certificate in words: without torch, since cards of agents are read without it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..tables import format_number
from ..units import count

HORIZON = 200
"""How many steps after a memory was put in are looked at."""


@dataclass(frozen=True)
class Recovery:
    """What becomes of an agent's policy π with another moment's memory: KL(π ‖ π with it), step by step."""

    steps: list[int | None]
    """For each memory that was put in, after how many steps the KL stays below a tenth of its largest; None
    where it does not before the episode or the horizon ends."""
    kl: float
    """Mean of the largest KL, in nats."""

    @property
    def median(self) -> float | None:
        """Median of the steps; None where half of them or more did not recover."""
        ordered = sorted(self.steps, key=lambda n: (n is None, n or 0))
        middle = ordered[(len(ordered) - 1) // 2 : len(ordered) // 2 + 1]
        return statistics.fmean(n for n in middle if n is not None) if middle and None not in middle else None


def lines(certificate: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Say each answer of a stored certificate in words: its name, and the answer."""
    faults = certificate["violations"]
    more = f", and {len(faults) - 1} more" if len(faults) > 1 else ""
    correct = "yes" if not faults else f"no: {faults[0]}{more}"
    answers = [("correct", correct), ("used", _use(certificate))]
    if certificate["read_age"] is not None:
        parts = ", ".join(
            f"{part:.0%} beyond {int(age):,}" for age, part in certificate["read_beyond"].items()
        )
        answers.append(
            ("reads", f"{certificate['read_age']:,.0f} steps back (median of what is read), {parts}")
        )
    if certificate["recovery"] is not None:
        answers.append(("recovers", _recovers(Recovery(**certificate["recovery"]))))
    return answers


def _use(certificate: Mapping[str, Any]) -> str:
    cost, kl = certificate["cost"], f"KL of the policy {certificate['kl_wiped']:.2g} nats a step"
    if cost is None or cost["interval"] is None:
        return f"unknown: too few episodes that can be paired with those of a wiped memory ({kl})"
    low, high = (format_number(end, max(map(abs, cost["interval"]))) for end in cost["interval"])
    by = f"{format_number(cost['mean'])} ({low} to {high}; {kl})"
    changes = f"with the memory wiped at each step an episode's return changes by {by}"
    return f"{'yes' if certificate['used'] else 'no'}: {changes}"


def _recovers(found: Recovery) -> str:
    lost = sum(n is None for n in found.steps)
    if found.median is None:
        return f"not before the episode or {HORIZON} steps end in {lost} of {len(found.steps)} moments"
    never = f", in {lost} not before the episode or {HORIZON} steps end" if lost else ""
    return (
        f"{found.median:,.0f} steps after the memory of another moment is put in (median of "
        f"{count(len(found.steps), 'moment')}{never})"
    )
