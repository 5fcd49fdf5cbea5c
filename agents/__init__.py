"""Acting and learning: stems, policy/value network, V-trace, actor, learner, checkpoints."""

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
from .learner import Contribution, Learner, LearnerConfig
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
    "Contribution",
    "Episodes",
    "Learner",
    "LearnerConfig",
    "NonFiniteError",
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
