"""Acting and learning: stems, policy/value network, V-trace, actor, learner, checkpoints.

Imports are lazy, so that `reading` works without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .actor import Actor, make_actor_agent
    from .checkpoint import (
        Checkpoint,
        CheckpointError,
        UntrustedCore,
        find_checkpoints,
        load_agent,
        load_checkpoint,
        load_latest,
        resolve_checkpoint,
        save_checkpoint,
    )
    from .episodes import Episodes
    from .learner import Learner, LearnerConfig, PartialUpdate
    from .network import Agent, AgentOutput, AgentSpec, Bptt
    from .nonfinite import NonFiniteError
    from .stems import STEMS, default_stem
    from .unroll import Unroll, join, split
    from .vtrace import VTrace, vtrace_from_logits
    from .weights import WeightStore

__all__ = [
    "STEMS",
    "Actor",
    "Agent",
    "AgentOutput",
    "AgentSpec",
    "Bptt",
    "Checkpoint",
    "CheckpointError",
    "Episodes",
    "Learner",
    "LearnerConfig",
    "NonFiniteError",
    "PartialUpdate",
    "Unroll",
    "UntrustedCore",
    "VTrace",
    "WeightStore",
    "default_stem",
    "find_checkpoints",
    "join",
    "load_agent",
    "load_checkpoint",
    "load_latest",
    "make_actor_agent",
    "resolve_checkpoint",
    "save_checkpoint",
    "split",
    "vtrace_from_logits",
]

_MODULES = (
    *("actor", "checkpoint", "episodes", "learner", "network", "nonfinite", "stems", "unroll", "vtrace"),
    "weights",
)

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        for module in _MODULES if name in __all__ else ():
            found = import_module(f".{module}", __name__)
            if hasattr(found, name):
                return globals().setdefault(name, getattr(found, name))
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
