"""Masks of actions: which ones an environment allows at what it shows, by `info["action_mask"]`."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Flags = npt.NDArray[np.bool_]

KEY, VALID = "action_mask", "_action_mask"
"""as Gymnasium's environments name it (Taxi), and where its vector environments say which of them gave one"""


class ActionMasks:
    """The masks of N environments with A actions each: arrays `[A]` of 0 and 1, 1 where one is allowed.

    An environment that gives none with an observation allows all actions there.
    """

    def __init__(self, num_envs: int, num_actions: int) -> None:
        self._shape = num_envs, num_actions
        self._allowed: Flags | None = None
        self._announced: set[str] = set()
        self.notes: list[str] = []
        """messages about them, each once, for the caller to take"""

    def read(self, infos: dict[str, Any], rows: Flags | None = None) -> dict[str, Any]:
        """Return the infos for agents: `action_mask`, bool `[N, A]`, once an environment has given one.

        rows: which environments `infos` is of, if not of all. Raises ValueError for a mask that allows
        nothing, or that is none.
        """
        if KEY not in infos and self._allowed is None:
            return {}
        allowed = np.ones(self._shape, bool)
        for row in np.flatnonzero(infos.get(VALID, np.ones(self._shape[0], bool))) if KEY in infos else ():
            mask = np.asarray(infos[KEY][row])
            if mask.shape != self._shape[1:] or mask.dtype.kind not in "biuf":
                self._note(f"its action_mask is no array of {self._shape[1]} numbers, and is ignored")
                return {}
            if not ((mask == 0) | (mask == 1)).all() or not mask.any():
                wrong = "holds others than 0 and 1" if mask.any() else "allows none of the actions"
                raise ValueError(f"its action_mask {wrong}: {mask}")
            allowed[row] = mask
        self._note("its action_mask is heeded: actions are chosen, and learned, among those that it allows")
        if rows is not None and self._allowed is not None:
            allowed = np.where(rows[:, None], allowed, self._allowed)
        self._allowed = allowed
        return {KEY: allowed}

    def _note(self, note: str) -> None:
        if note not in self._announced:
            self._announced.add(note)
            self.notes.append(note)


def without(infos: dict[str, Any], rows: Flags) -> dict[str, Any]:
    """Return a vector environment's infos without the masks of these environments."""
    valid = infos.get(VALID, np.ones(len(rows), bool)) & ~rows
    return {**infos, VALID: valid} if KEY in infos else infos


def joined(infos: dict[str, Any], others: dict[str, Any], rows: Flags) -> dict[str, Any]:
    """Return the masks of the environments in `rows` from `others`, of the rest from `infos`."""
    masks, valid = np.full(len(rows), None, object), np.zeros(len(rows), bool)
    for source in (without(infos, rows), without(others, ~rows)):
        for row in np.flatnonzero(source[VALID]) if KEY in source else ():
            masks[row], valid[row] = source[KEY][row], True
    return {KEY: masks, VALID: valid} if valid.any() else {}
