"""Who learned from what: every unroll is learned from once, and what is not is counted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

COUNTS = ("learned", "lost", "doubled", "undone", "died")


class Identity(NamedTuple):
    """One unroll: who made it, in which of its lives, and the how manieth of that life."""

    actor: int
    incarnation: int
    sequence: int


class Ledger:
    """Counts unrolls from when their actor hands them over.

    `learned`: in the weights. `doubled`: handed over again, and refused. `lost`: never handed over though
    later ones of the same life were. `died`: their machine was gone before the learner had them. `undone`:
    learned after the checkpoint that a learner's death sent the run back to.
    """

    def __init__(self) -> None:
        self.counts = dict.fromkeys(COUNTS, 0)
        self.waiting: set[Identity] = set()
        """handed over, not learned from yet"""
        self._next: dict[int, tuple[int, int]] = {}
        """of each actor: its incarnation, and the sequence number that comes next"""

    def accept(self, identity: Identity) -> bool:
        """Whether an unroll that is handed over may be learned from."""
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

    def learn(self, identities: Iterable[Identity]) -> None:
        self._settle(identities, "learned")

    def bury(self, identities: Iterable[Identity]) -> None:
        """Their machine is gone, and they with it."""
        self._settle(identities, "died")

    def roll_back(self, saved: Mapping[str, int]) -> None:
        """The weights are those of a checkpoint again: what they learned since is undone."""
        self.counts["undone"] += self.counts["learned"] - saved["learned"]
        self.counts["learned"] = saved["learned"]

    def _settle(self, identities: Iterable[Identity], how: str) -> None:
        for identity in identities:
            self.waiting.remove(identity)
            self.counts[how] += 1
