"""Accounts of unrolls: each is learned from exactly once, and exceptions are counted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

COUNTS = ("learned", "lost", "doubled", "undone", "died")


class ShardId(NamedTuple):
    """One shard of an unroll: its actor, the actor's incarnation, and its sequence number within that."""

    actor: int
    incarnation: int
    sequence: int


class Ledger:
    """Counts shards from the moment their actor hands them over.

    `learned`: in the weights. `doubled`: handed over again, and refused. `lost`: never handed over though
    later ones of the same incarnation were. `died`: their machine was gone before a learner had fetched them.
    `undone`: learned after the checkpoint that the death of a learner sent the run back to.
    """

    def __init__(self) -> None:
        self.counts = dict.fromkeys(COUNTS, 0)
        self.waiting: set[ShardId] = set()
        """handed over, not learned from yet"""
        self._next: dict[int, tuple[int, int]] = {}
        """each actor's incarnation, and the sequence number that comes next"""

    def accept(self, identity: ShardId) -> bool:
        """Account for a shard that is handed over; return whether it may be learned from."""
        incarnation, expected = self._next.get(identity.actor, (identity.incarnation, 0))
        if identity.incarnation > incarnation:
            incarnation, expected = identity.incarnation, 0
        if identity.incarnation < incarnation or identity.sequence < expected:
            self.counts["doubled"] += 1
            return False
        self.counts["lost"] += identity.sequence - expected
        self._next[identity.actor] = incarnation, identity.sequence + 1
        self.waiting.add(identity)
        return True

    def mark_learned(self, identities: Iterable[ShardId]) -> None:
        self._close(identities, "learned")

    def mark_died(self, identities: Iterable[ShardId]) -> None:
        """Count shards lost with their machine."""
        self._close(identities, "died")

    def roll_back(self, saved: Mapping[str, int]) -> None:
        """Count as undone what was learned since a checkpoint, whose weights are the newest again."""
        self.counts["undone"] += self.counts["learned"] - saved["learned"]
        self.counts["learned"] = saved["learned"]

    def _close(self, identities: Iterable[ShardId], how: str) -> None:
        for identity in identities:
            self.waiting.remove(identity)
            self.counts[how] += 1
