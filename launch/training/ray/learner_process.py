"""The process of a learner."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ....agents import Agent, AgentSpec, Episodes, Unroll, join
from ....agents.accelerate import accelerate
from ...config import TrainConfig
from ...processes.machine import autocast_dtype, prepare_process
from ...units import parse_steps
from ..flat_parameters import flatten, unflatten
from ..local.sources import keep_until_read
from ..plan import make_learner, per_process
from ..randomness import rng_states, seed_everything, set_rng_states
from ..reuse import batches_of_updates, make_replay
from . import cluster
from .cluster import Location, Ref
from .collective import Collective
from .ledger import ShardId
from .packing import unpack

FETCHERS = 4
"""Threads that fetch shards while the learner learns."""
_FETCH_PATIENCE = 10.0
"""Seconds that a thread waits for a shard before others have their turn."""


@dataclass(frozen=True)
class Report:
    """The result of an update, the same for every learner except the episodes: those of its columns."""

    metrics: list[dict[str, float]]
    """one mapping for each step of the optimizer"""
    steps: int
    version: int
    episodes: Episodes
    seconds: float


@dataclass
class LearnerProcess:
    """A `Learner` that takes its unrolls from the object store; number `rank` of those that share batches."""

    config: TrainConfig
    spec: AgentSpec
    parts: Collection[str]
    """those that C may compute on a CPU"""
    device: str
    rank: int

    def begin(self) -> Location:
        """Build everything: here, since Ray tells less of what goes wrong in a constructor."""
        config, spec = self.config, self.spec
        self._device = torch.device(self.device)
        self._collective = Collective(self.rank, config.num_learners, self._device)
        self._unrolls: dict[ShardId, Unroll] = {}
        self._share = per_process(config, config.num_learners)
        prepare_process(max(1, int(config.learner_cpus)))
        seed_everything(config.seed + self.rank, config.deterministic)
        torch.backends.cudnn.benchmark = not config.deterministic
        agent = Agent(spec).to(self._device)
        agent.autocast_dtype = autocast_dtype(config.precision, self._device, spec.stem)
        shares_batches = config.num_learners > 1
        self._learner = make_learner(agent, config, parse_steps(config.steps), shares_batches)
        self._replay = make_replay(self._share, agent, self.rank)
        if shares_batches:
            self._learner.all_reduce = self._collective.total
        if self._device.type == "cpu":
            accelerate(self._learner, self.parts)
        self._stream = torch.cuda.Stream() if self._device.type == "cuda" else None
        return cluster.locate()

    def host(self) -> tuple[str, int]:
        """Let the learners meet here; return address and port."""
        return self._collective.host(cluster.node_address())

    def meet(self, address: tuple[str, int]) -> None:
        self._collective.meet(address, cluster.node_address())

    def load(self, weights: NDArray[np.float32], state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint."""
        unflatten(self._learner.agent, weights)
        self._learner.load_state_dict(state["learner"])
        if self._replay is not None and self.config.deterministic and "replay" in state:
            self._replay.load_state_dict(state["replay"][self.rank])
        if self.rank == 0 and "torch_rng" in state:
            set_rng_states(state, self._device)

    def fetch(self, identity: ShardId, refs: Sequence[Ref]) -> bool:
        """Fetch a shard; return False if it has not come yet. Raises ObjectGone if it never will."""
        try:
            packed = cluster.fetch(refs[0], _FETCH_PATIENCE)
        except TimeoutError:
            return False
        if self._stream is None:
            torch.set_num_threads(1)  # for this thread: the cores are the learner's
            self._unrolls[identity] = unpack(packed, self._device)
            return True
        with torch.cuda.stream(self._stream):
            self._unrolls[identity] = unpack(packed, self._device)
        self._stream.synchronize()
        return True

    def update(self, identities: Sequence[ShardId]) -> tuple[Report, NDArray[np.float32] | None]:
        """Learn from shards that are here, with all other learners; the first returns the new weights.

        Raises NonFiniteError, everywhere, before a step of the optimizer changes any weight.
        """
        learner = self._learner
        start = time.perf_counter()
        batch = join([self._unrolls.pop(identity) for identity in identities])
        # An unroll may come from updates that the death of a learner has undone.
        batch = replace(batch, version=min(batch.version, learner.version))
        keep_until_read(batch)
        metrics: list[dict[str, float]] = []
        for part in batches_of_updates(self._share, batch, learner.version, self._replay):
            partial_updates = self._collective.together(partial(learner.backward, part), learner.agent)
            metrics.append(dict(learner.step(partial_updates)))  # read now: a NonFiniteError is raised here
        weights = flatten(learner.agent) if self.rank == 0 else None
        seconds = time.perf_counter() - start
        return Report(metrics, learner.steps, learner.version, batch.episodes, seconds), weights

    def state(self) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Return weights and state for a checkpoint."""
        return flatten(self._learner.agent), {
            "learner": self._learner.state_dict(),
            **rng_states(self._device),
        }

    def replay_state(self) -> dict[str, Any]:
        """Return what this learner's replay buffer has, for a checkpoint."""
        assert self._replay is not None
        return self._replay.state_dict()
