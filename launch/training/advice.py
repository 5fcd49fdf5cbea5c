"""Warnings for a run whose log shows that it is unlikely to learn: each once, with what to try."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from statistics import median

_ROWS = 5
"""Consecutive rows of the log that must show a symptom."""
_CLIPPED = 0.95
"""`clipped_grad_share >= _CLIPPED`: nearly all updates were clipped."""
_FAR_ABOVE = 100
"""`grad_norm >= _FAR_ABOVE * max_grad_norm`; agents with normalised advantages learn at up to 25."""
_EXPLORES = 0.02
"""`entropy <= _EXPLORES * log(num_actions)`: the policy hardly explores."""
_GAIN = 0.1
"""`best <= first + _GAIN * abs(first)`: the best return has not grown over that of the first episodes."""
_RANDOM = 0.99
"""`entropy >= _RANDOM * log(num_actions)`: the policy is about that of random play."""
_GAMES = 100
"""Fewer games of the same return may be chance."""
_EXPLODED = 1e3
"""`abs(loss) >= _EXPLODED * max(1, median(abs(earlier losses)))`; 1, as a solved task has losses near 0."""


def clipped(row: Mapping[str, float], max_grad_norm: float) -> str | None:
    """Warn if nearly all gradients were clipped to a hundredth of their norm or less, else None.

    The size of an update then carries no information.
    """
    share = row.get("clipped_grad_share", 0.0)
    if share < _CLIPPED or row["grad_norm"] < _FAR_ABOVE * max_grad_norm:
        return None
    return (
        f"gradients were clipped in {share:.0%} of the updates (norm {row['grad_norm']:,.0f}, --max-grad-norm"
        f" {max_grad_norm:g}): try a smaller --reward-scale, --learning-rate or --batch-size"
    )


def collapsed(row: Mapping[str, float], first_return: float | None, num_actions: int) -> str | None:
    """Warn if the policy no longer explores although returns are those of the first episodes, else None."""
    best = row.get("best_game_return")
    if first_return is None or best is None or num_actions < 2:
        return None
    explores = row.get("entropy", math.inf) > _EXPLORES * math.log(num_actions)
    if explores or best > first_return + _GAIN * abs(first_return):
        return None
    return (
        f"the policy hardly explores (entropy {row['entropy']:.1e}), and returns are those of the first games"
        f" ({first_return:.3g}): try a larger --entropy-cost, or a smaller --learning-rate or --reward-scale"
    )


def unrewarded(row: Mapping[str, float], first_return: float | None, num_actions: int) -> str | None:
    """Warn if returns stay what they were and the policy random, else None.

    Where advantages are zero the entropy bonus alone moves the policy, towards random play. With a mask of
    actions that is less than log(num_actions), and nothing is said.
    """
    returns = [row.get(name, math.nan) for name in ("game_return", "best_game_return")]
    same = first_return is not None and all(math.isclose(each, first_return) for each in returns)
    is_random = row.get("entropy", 0.0) >= _RANDOM * math.log(num_actions)
    if not same or not is_random or row.get("episodes", 0) < _GAMES or num_actions < 2:
        return None
    return (
        f"after {row['episodes']:,.0f} games returns are still {first_return:.3g} and the policy is still "
        "random: try --normalise-advantages, which moves it even where all returns are equal"
    )


def exploded(loss: float, before: list[float]) -> str | None:
    """Warn if the loss is far above those of the rows before, else None."""
    if len(before) < _ROWS or abs(loss) < _EXPLODED * max(1.0, median(map(abs, before))):
        return None
    return (
        f"the loss rose to {loss:,.0f}, from {median(map(abs, before)):,.3g}: try a smaller --learning-rate"
        " or --reward-scale"
    )


class Advice:
    """Checks each row of a run's log."""

    def __init__(self, num_actions: int, max_grad_norm: float, normalises_advantages: bool = False) -> None:
        self._num_actions = num_actions
        self._max_grad_norm = max_grad_norm
        self._normalises_advantages = normalises_advantages
        self._losses: list[float] = []
        self._rows: Counter[str] = Counter()
        """consecutive rows that showed each symptom"""

    def of(self, row: Mapping[str, float], first_return: float | None) -> list[str]:
        """Return the warnings for a row; `first_return` is the mean of the run's first games."""
        loss = row.get("total_loss", 0.0)
        symptoms = {
            "clipped": (clipped(row, self._max_grad_norm), _ROWS),
            "collapsed": (collapsed(row, first_return, self._num_actions), _ROWS),
            "unrewarded": (
                None if self._normalises_advantages else unrewarded(row, first_return, self._num_actions),
                _ROWS,
            ),
            "exploded": (exploded(loss, self._losses), 1),
        }
        self._losses.append(loss)
        said = []
        for name, (text, needed) in symptoms.items():
            if self._rows[name] == needed:  # said before
                continue
            self._rows[name] = self._rows[name] + 1 if text else 0
            if text and self._rows[name] == needed:
                said.append(f"warning: {text}")
        return said
