"""Renew both digests.json: `make digests`, which first compares C with the eager code and the references.

Those comparisons (tests/agents/cpu, tests/kernels) are on inputs on which every term, branch and option
counts. A digest says that they passed.
"""

from __future__ import annotations

import json
from typing import Any

from deltabeast.agents.adam import adam_if_finite
from deltabeast.agents.cpu.verify import DIGESTS, classes_of, eager_counterparts
from deltabeast.agents.learner import UpdateOps
from deltabeast.agents.losses import actor_critic
from deltabeast.agents.network import Agent, AgentSpec
from deltabeast.agents.rmsprop import rmsprop_if_finite
from deltabeast.agents.sampling import sample
from deltabeast.agents.stems import IMAGE_STEMS
from deltabeast.cores import core_names, make_core
from deltabeast.kernels import dispatch, sources
from deltabeast.kernels.rules import RULES

_SHAPES = {**dict.fromkeys(IMAGE_STEMS, (4, 84, 84)), "small": (3, 7, 7), "mlp": (5,)}


def of_agents() -> dict[str, str]:
    """Return the digests of all that a part may take the place of, by name."""
    found: dict[Any, None] = dict.fromkeys((actor_critic, rmsprop_if_finite, adam_if_finite, sample))
    for stem, shape in _SHAPES.items():
        agent = Agent(AgentSpec(shape, 4, "feedforward", stem))
        found |= dict.fromkeys(eager_counterparts("trunk", agent, UpdateOps()))
    for core in core_names():
        found |= dict.fromkeys(classes_of(make_core(core, 5)))
    return sources.digests(*found)


def of_rules() -> dict[str, str]:
    """Return the digests of the references of all rules."""
    return sources.digests(*(rule.reference for rule in RULES.values()))


if __name__ == "__main__":
    for file, found in ((DIGESTS, of_agents()), (dispatch.DIGESTS, of_rules())):
        file.write_text(json.dumps(found, indent=1) + "\n")
