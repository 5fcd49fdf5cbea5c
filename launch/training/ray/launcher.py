"""Start the processes of a run on a cluster, with what each of them reserves."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from ....agents import AgentSpec
from ...config import TrainConfig
from ...units import parse_steps
from ..randomness import actor_seed
from .actor_process import ActorProcess
from .cluster import Cluster, Handle
from .learner_process import FETCHERS, LearnerProcess


class Launcher:
    """Starts learners and actors of one run."""

    def __init__(
        self,
        cluster: Cluster,
        config: TrainConfig,
        spec: AgentSpec,
        parts: Collection[str],
        device: torch.device,
        columns: int,
        start_step: int,
        actor_states: Sequence[Mapping[str, Any]] | None,
    ) -> None:
        """`parts` are those that C may compute on CPUs; `device` is the learners', `columns` the width of the
        shards that actors hand over.

        `actor_states` are what actors go on from; without them, each begins with a seed of its own, which
        depends on the `start_step` of this process.
        """
        self._cluster = cluster
        self._config = config
        self._spec = spec
        self._parts = parts
        self._device = device
        self._columns = columns
        self._start_step = start_step
        self.actor_states = actor_states

    def learner(self, rank: int) -> Handle:
        config = self._config
        return self._cluster.start(
            LearnerProcess,
            config,
            self._spec,
            self._parts,
            self._device.type,
            parse_steps(config.steps),
            rank,
            config.num_learners,
            cpus=config.learner_cpus,
            gpus=1.0 if self._device.type == "cuda" else 0.0,
            groups={"fetch": FETCHERS},
        )

    def actor(self, index: int, incarnation: int) -> Handle:
        config = self._config
        start_step = 0 if config.deterministic else self._start_step
        return self._cluster.start(
            ActorProcess,
            config,
            self._spec,
            self._parts,
            actor_seed(config.seed, index, incarnation, start_step),
            self._columns,
            self.actor_states[index] if self.actor_states is not None else None,
            cpus=config.actor_cpus,
            gpus=config.actor_gpus,
            spread=True,
        )
