"""The answers of a certificate in words: without torch, since cards of agents are read without it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..tables import format_number
from ..units import count

LEAST_PAIRS = 10
"""Pairs of episodes below which nothing is said of use: intervals of so few are too narrow."""
HORIZON = 200
"""How many steps are looked at after a moment at which a memory is put in, at most."""


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
    answers = [("correct", f"no: {faults[0]}{more}" if faults else "yes"), ("used", _use(certificate))]
    if certificate["read_age"] is not None:
        beyond = certificate["read_beyond"].items()
        parts = [f"{_steps(certificate['read_age'])} back (median of what is read)"]
        answers.append(
            ("reads", ", ".join([*parts, *(f"{part:.0%} beyond {int(n):,}" for n, part in beyond)]))
        )
    if certificate["recovery"] is not None:
        answers.append(("recovers", _recovers(Recovery(**certificate["recovery"]))))
    return answers


def _use(certificate: Mapping[str, Any]) -> str:
    cost, pairs, kl = certificate["cost"], count(certificate["pairs"], "pair"), certificate["kl_wiped"]
    policy = "" if kl is None else f"; KL of the policy {kl:.2g} nats a step"
    if cost is None:
        return f"unknown: an episode of either, with the memory wiped or not, has no return{policy}"
    if certificate["used"] is None:
        return f"unknown: {pairs} of episodes; at least {LEAST_PAIRS} say something{policy}"
    size = max(map(abs, cost["interval"]))
    mean, low, high = (format_number(each, size) for each in (cost["mean"], *cost["interval"]))
    answer = "yes" if certificate["used"] else "no" if size == 0 else "not shown"
    changes = f"with the memory wiped at each step an episode's return changes by {mean} ({low} to {high}"
    return f"{answer}: {changes}; {pairs}{policy})"


def _recovers(found: Recovery) -> str:
    moments, lost = count(len(found.steps), "moment"), sum(n is None for n in found.steps)
    if not found.steps:
        return "nothing to recover from: another moment's memory does not change the policy"
    kl = f"largest KL {found.kl:.2g} nats"
    recovered = f"{len(found.steps) - lost} of {moments} recovered within the episode and {HORIZON} steps"
    if found.median is None:
        return f"{recovered} ({kl})"
    return (
        f"{recovered}; median of all: {_steps(found.median)} after another moment's memory is put in ({kl})"
    )


def _steps(number: float) -> str:
    return count(int(number), "step") if number == int(number) else f"{number:,} steps"
