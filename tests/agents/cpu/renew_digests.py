"""Renew digests.json: `make digests`, which first compares C with the plain code (tests/agents/cpu).

Those comparisons are on inputs on which every term, branch and option counts. A digest says that they passed.
"""

from __future__ import annotations

import json
from typing import Any

from deltabeast.agents.cpu.sources import digest
from deltabeast.agents.cpu.verify import DIGESTS, classes_of, eager_counterparts, name_of
from deltabeast.agents.learner import UpdateOps
from deltabeast.agents.losses import actor_critic
from deltabeast.agents.network import Agent, AgentSpec
from deltabeast.agents.rmsprop import rmsprop_if
from deltabeast.agents.sampling import sample
from deltabeast.agents.stems import IMAGE_STEMS
from deltabeast.cores import core_names, make_core

_SHAPES = {**dict.fromkeys(IMAGE_STEMS, (4, 84, 84)), "small": (3, 7, 7), "mlp": (5,)}


def digests() -> dict[str, str]:
    """Return the digest of all that a part may take the place of, by name."""
    found: dict[Any, None] = dict.fromkeys((actor_critic, rmsprop_if, sample))
    for stem, shape in _SHAPES.items():
        found |= dict.fromkeys(
            eager_counterparts("trunk", Agent(AgentSpec(shape, 4, "feedforward", stem)), UpdateOps())
        )
    for core in core_names():
        found |= dict.fromkeys(classes_of(make_core(core, 5)))
    return {name_of(plain): digest(plain) for plain in sorted(found, key=name_of)}


if __name__ == "__main__":
    DIGESTS.write_text(json.dumps(digests(), indent=1) + "\n")
