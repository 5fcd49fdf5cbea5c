"""What an agent takes observations for, in words. Imports no torch, so that `info` is quick."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def reading(spec: Mapping[str, Any]) -> str:
    """Describe how the agent with these fields of its `AgentSpec` reads what an environment shows."""
    shape = tuple(spec.get("observation_shape") or ())
    how = spec.get("observations", "plain")
    if len(shape) == 3:
        channels, height, width = shape
        how = ", each pixel normalised by its running mean and deviation" if spec.get("normalised") else ""
        names = "channel" if channels == 1 else "channels"
        return f"a picture of {channels} {names} of {height} x {width}{how}"
    size = math.prod(shape)
    parts = [
        "as they come" if how == "plain" else "scaled by their bounds where these are at most 10,000 apart"
    ]
    if chosen := spec.get("normalised"):
        parts.append(f"{len(chosen)} normalised by their running mean and standard deviation")
    return ", ".join([f"a vector of {size} {'number' if size == 1 else 'numbers'}", *parts])
