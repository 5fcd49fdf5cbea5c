"""A replay buffer of unrolls, and batches of fresh and replayed ones side by side.

As in IMPALA with replay (Espeholt et al. 2018, section 5.2.2) and LASER (Schmitt et al. 2019): whole unrolls
are drawn uniformly, and V-trace corrects them, like fresh ones, for the policy that acted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..cores.base import State
from .network import Agent
from .truncations import Truncations, join_truncations
from .unroll import PER_STEP, Unroll, join

Place = tuple[int, int]
"""Where an unroll is stored: slot and environment."""


class _Slot(NamedTuple):
    """What is stored of a batch beside its tensors."""

    truncations: Truncations | None
    origins: list[tuple[int, int]]
    """`Unroll.origin`; empty if unknown."""


class ReplayBuffer:
    """A ring of the last batches `[T, B]` of one process, each copied into a slot of preallocated tensors
    `[slots, T + 1, B, ...]` on the batches' device.
    """

    def __init__(
        self, slots: int, agent: Agent, seed: tuple[int, ...] = (1,), max_age: int = 0, burn_in: int = 0
    ) -> None:
        """Allocate nothing yet: the first batch has the shapes.

        Args:
            slots: number of batches that are stored.
            agent: recomputes states, with the weights that it has when unrolls are drawn.
            seed: decides, with the version of the weights, what is drawn. It must not end in 0, since NumPy
                ignores trailing zeros: seeds that differ in those alone would draw alike.
            max_age: unrolls whose acting weights are more than so many updates old are not drawn; 0: all are.
            burn_in: number of preceding unrolls through which states are recomputed; 0: as stored.

        Raises:
            ValueError: for fewer than two slots; nothing could be drawn beside the batch just added.
        """
        if slots < 2:
            raise ValueError(f"a replay buffer has two slots or more, got {slots}")
        self._num_slots = slots
        self._agent = agent
        self._seed = seed
        self._max_age = max_age
        self._burn_in = burn_in
        self._added = 0
        """Number of batches added."""
        self._rings: list[Tensor] = []
        """Tensors `[slots, *shape]`, in the order of `Unroll.tensors`."""
        self._versions = np.full(slots, -1)
        """Versions of the weights that acted, by slot; -1 in one that is empty."""
        self._slots: list[_Slot] = []
        self._places: dict[tuple[int, int], Place] = {}
        """Places of the stored unrolls, by their origins."""

    def __len__(self) -> int:
        """Number of batches stored."""
        return len(self._slots)

    def add(self, batch: Unroll) -> None:
        """Copy a batch, in the place of the oldest once all slots are taken; all have the same shapes."""
        if not self._rings:
            self._rings = [x.new_empty((self._num_slots, *x.shape)) for x in batch.tensors()]
        at = self._added % self._num_slots
        for ring, x in zip(self._rings, batch.tensors(), strict=True):
            ring[at].copy_(x)
        origins = [] if batch.origin is None else batch.origin.tolist()
        self._register(at, batch.version, _Slot(batch.truncations, [(env, n) for env, n in origins]))
        self._added += 1

    def _register(self, at: int, version: int, slot: _Slot) -> None:
        for overwritten in self._slots[at : at + 1]:
            for origin in overwritten.origins:
                self._places.pop(origin, None)
        self._versions[at] = version
        self._slots[at : at + 1] = [slot]
        self._places.update({origin: (at, env) for env, origin in enumerate(slot.origins)})

    def sample(self, n: int, version: int) -> Unroll | None:
        """Draw n unrolls `[T, n]` uniformly, with replacement, from all but the batch just added.

        `version` is the learner's. Of the result `replayed` has the versions that acted, and no episode
        counts again. None if there is nothing to be drawn.
        """
        oldest = max(0, version - self._max_age) if self._max_age else 0
        may_be_drawn = self._versions >= oldest
        may_be_drawn[(self._added - 1) % self._num_slots] = False
        slots = np.flatnonzero(may_be_drawn)
        if not len(slots) or not n:
            return None
        rng = np.random.default_rng((version, *self._seed))
        draws = rng.integers((len(slots), self._rings[0].shape[2]), size=(n, 2))
        places = [(int(slots[i]), env) for i, env in draws.tolist()]
        unroll = self._gather(places)
        return replace(
            unroll,
            state=self._burned_in(places) if self._burn_in else unroll.state,
            truncations=join_truncations(
                (number, truncations and truncations.narrow(env, 1))
                for number, (at, env) in enumerate(places)
                for truncations in [self._slots[at].truncations]
            ),
            replayed=torch.tensor([int(self._versions[at]) for at, _ in places]),
        )

    def _gather(self, places: Sequence[Place]) -> Unroll:
        """Copy the tensors of stored unrolls, one environment each."""
        at, env = torch.tensor(places, device=self._rings[0].device).unbind(1)
        per_step = [ring[at, :, env].transpose(0, 1) for ring in self._rings[: len(PER_STEP)]]
        return Unroll.of([*per_step, *(ring[at, env] for ring in self._rings[len(PER_STEP) :])])

    @torch.no_grad()
    def _burned_in(self, places: Sequence[Place]) -> State:
        """Recompute the states before unrolls with the weights of today (Kapturowski et al. 2019, R2D2).

        Each begins as stored with the earliest of its `burn_in` predecessors that follow one another in the
        buffer, and is carried through these; without a predecessor it stays as stored.
        """
        chains = [self._predecessors(place) for place in places]
        state = self._gather([[place, *chain][-1] for place, chain in zip(places, chains, strict=True)]).state
        for back in reversed(range(self._burn_in)):
            which = [i for i, chain in enumerate(chains) if back < len(chain)]
            if not which:
                continue
            # The last observation is the first of the next unroll.
            part = self._gather([chains[i][back] for i in which])
            steps = part.observation[:-1], part.reward[:-1], part.done[:-1]
            _, carried, _ = self._agent.unroll(*steps, tuple(x[which] for x in state))
            for x, new in zip(state, carried, strict=True):
                x[which] = new
        return state

    def _predecessors(self, place: Place) -> list[Place]:
        """List the places of the unrolls before this one, newest first, as far as they are stored."""
        at, column = place
        if not self._slots[at].origins:
            return []
        env, number = self._slots[at].origins[column]
        chain: list[Place] = []
        while len(chain) < self._burn_in and (env, number - len(chain) - 1) in self._places:
            chain.append(self._places[env, number - len(chain) - 1])
        return chain

    def state_dict(self) -> dict[str, Any]:
        """Return what is stored, as plain types and tensors on the CPU; the next `add` may overwrite them."""
        # A part of a tensor would be saved with all of its memory.
        stored = self._rings
        if len(self) < self._num_slots:
            stored = [ring[: len(self)].to("cpu", copy=True) for ring in self._rings]
        return {
            "added": self._added,
            "tensors": [x.cpu() for x in stored],
            "versions": self._versions[: len(self)].tolist(),
            "truncations": [[x.cpu() for x in slot.truncations or ()] for slot in self._slots],
            "origins": [torch.tensor(slot.origins).view(-1, 2) for slot in self._slots],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Store what `state_dict` of a buffer of as many slots has returned, on the agent's device."""
        device = self._agent.policy.weight.device
        self._added = state["added"]
        self._rings = [x.new_empty((self._num_slots, *x.shape[1:]), device=device) for x in state["tensors"]]
        for ring, x in zip(self._rings, state["tensors"], strict=True):
            ring[: len(x)].copy_(x)
        self._versions[:] = -1
        self._slots, self._places = [], {}
        described = state["versions"], state["truncations"], state["origins"]
        for at, (version, several, origins) in enumerate(zip(*described, strict=True)):
            if several:
                step, env, observation = several
                several = Truncations(step, env, observation.to(device))
            slot = _Slot(several or None, [(env, n) for env, n in origins.tolist()])
            self._register(at, version, slot)


def with_replayed(fresh: Unroll, replayed: Unroll | None) -> Unroll:
    """Put replayed unrolls beside fresh ones, which alone count in steps, episodes, running statistics and
    `version`; without any return the fresh ones."""
    if replayed is None or replayed.replayed is None:
        return fresh
    versions = torch.cat([torch.full((fresh.num_envs,), -1), replayed.replayed])
    return replace(join([fresh, replayed]), version=fresh.version, counted=fresh, replayed=versions)


def ages(replayed: Tensor, version: int) -> tuple[int, int]:
    """Return the number of replayed environments, and the sum of their ages in updates; `replayed` is that
    of `Unroll`, `version` the learner's."""
    versions = replayed[replayed >= 0]
    return len(versions), int((version - versions).sum())
