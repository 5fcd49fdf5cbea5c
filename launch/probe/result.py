"""What a run of a probe leaves for those that read it; imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import NoneType

from ...agents.reading import read_object

RESULT = "scores.json"
"""what a run writes when it ends: `metric`, `best` of it, `updates`, and `test`, scores by name, if there is
one"""
LOWER_IS_BETTER = ("loss", "perplexity")
"""metrics; of all others higher is"""


@dataclass(frozen=True)
class Result:
    """What a run ended with."""

    metric: str
    value: float
    """of the test if there is one, else the best evaluation"""
    is_tested: bool
    updates: int


def read_result(run_dir: Path) -> Result | None:
    """Read `RESULT`; None if there is none that can be read."""
    found = read_object(run_dir / RESULT)
    metric, test, updates = found.get("metric"), found.get("test"), found.get("updates", 0)
    if not isinstance(metric, str) or not isinstance(updates, int) or not isinstance(test, dict | NoneType):
        return None
    value = found.get("best") if test is None else test.get(metric)
    if not isinstance(value, int | float):
        return None
    return Result(metric, float(value), test is not None, updates)
