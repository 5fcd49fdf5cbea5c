"""The process of an actor."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ....agents import Actor, Agent, AgentSpec, Unroll, split
from ....agents.accelerate import inference_for
from ...config import TrainConfig
from ...processes.child import leave_signals_to_parent
from ...processes.machine import autocast_dtype, prepare_process
from ..flat_parameters import FlatWeights
from ..plan import make_env, returns_discount
from ..randomness import seed_generators
from ..reading_ages import ReadingAges
from . import cluster
from .cluster import Location, Ref
from .packing import pack

_WEIGHTS_PATIENCE = 30.0
"""Seconds to wait for new weights before the actor goes on with those it has."""


@dataclass(frozen=True)
class Order:
    """The weights to collect the next unroll with."""

    version: int
    weights: list[Ref]
    """one reference, in a list: Ray would replace a bare one by its object"""


@dataclass(frozen=True)
class Header:
    """An unroll without its data, which may have been cut into several shards."""

    sequence: int
    """sequence number of its first shard"""
    num_steps: int
    """agent steps of all shards"""
    nbytes: int
    seconds: Mapping[str, float]
    """seconds that this unroll took, by stage"""
    reading_ages: Mapping[str, float]
    """how far back the actor's first environment reads, as `ReadingAges.sample` has it; most often empty"""


@dataclass
class ActorProcess:
    """An `Actor` that puts its unrolls into the object store, in shards of `columns` columns."""

    config: TrainConfig
    spec: AgentSpec
    parts: Collection[str]
    """those that C may compute on a CPU"""
    seed: int
    columns: int
    state: Mapping[str, Any] | None
    """of the `Actor`, where it goes on"""
    first_env: int = 0
    """number of its first environment among those of all actors and incarnations"""
    explains: bool = False
    """whether it looks now and then how far back its first environment reads"""

    _sequence = 0
    _rest_until = 0.0

    def begin(self) -> Location:
        """Build everything: here, since Ray tells less of what goes wrong in a constructor."""
        leave_signals_to_parent()
        config, spec = self.config, self.spec
        threads = max(1, int(config.actor_cpus))
        prepare_process(threads)
        seed_generators(self.seed)
        # Ray lets a process without a GPU of its own see all of the node's.
        device = torch.device("cuda" if config.actor_gpus else "cpu")
        agent = Agent(spec).to(device)
        agent.autocast_dtype = autocast_dtype(config.precision, device, spec.stem)
        self._weights = FlatWeights()
        env = make_env(config, threads)
        length, exact = config.unroll_length, config.deterministic
        discount = returns_discount(config)
        run = inference_for(device, self.parts, exact)
        self._actor = Actor(
            env,
            agent,
            self._weights,
            length,
            self.seed,
            exact,
            run,
            discount=discount,
            first_env=self.first_env,
        )
        if self.state is not None:
            self._actor.load_state_dict(self.state)
        self._reading_ages = ReadingAges(agent, self.first_env) if self.explains else None
        return cluster.locate()

    def collect(self, order: Order) -> tuple[Any, ...]:
        """Collect the next unroll; return its Header and its shards, packed."""
        self._take_weights(order)
        stopwatch = self._actor.stopwatch
        before = dict(stopwatch.seconds)
        unroll = self._actor.collect()
        with stopwatch("packing"):
            packed = [pack(part) for part in split(unroll, self.columns)]
        reading_ages = self._explain(unroll)
        seconds = {stage: now - before.get(stage, 0.0) for stage, now in stopwatch.seconds.items()}
        nbytes = sum(part.nbytes for part in packed)
        header = Header(self._sequence, unroll.num_steps, nbytes, seconds, reading_ages)
        self._sequence += len(packed)
        return header, *packed

    def _explain(self, unroll: Unroll) -> dict[str, float]:
        if self._reading_ages is None:
            return {}
        with self._actor.stopwatch("explaining"):
            self._reading_ages.add(unroll)
            return self._reading_ages.sample()

    def _take_weights(self, order: Order) -> None:
        """Fetch the weights of an order; over a slow link that takes at most half of the time."""
        start = time.monotonic()
        # Another version, not only a newer one: a learner that died goes back to its last checkpoint.
        if order.version == self._weights.version or start < self._rest_until:
            return
        try:
            self._weights.take(order.version, cluster.fetch(order.weights[0], _WEIGHTS_PATIENCE))
        except (TimeoutError, cluster.ObjectGone):
            if self._weights.version < 0:
                raise
        if not self.config.deterministic:
            end = time.monotonic()
            self._rest_until = end + (end - start)

    def state_dict(self) -> dict[str, Any]:
        return self._actor.state_dict()
