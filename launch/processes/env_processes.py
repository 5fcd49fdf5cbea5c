"""A vector environment whose environments are stepped in processes beside this one.

What they show lies in memory that all see; for a step this process writes once and waits once, however many
processes there are. The games are those that one process would play, bit for bit.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space

from ...envs.checks import check_actions, environment_seeds, rows_to_reset
from .child import ChildDied, Pipe
from .env_arrays import Described, Layout
from .env_servers import LAST, MASKS, MESSAGE, RESET, STEP, WORKING, EnvServers, unless_failed

Flags = npt.NDArray[np.bool_]
Observations = npt.NDArray[Any]

_LOOK_SECONDS = 1
"""The death of a process is noticed after this time at most."""


class ProcessEnvs(VectorEnv[Observations, npt.NDArray[np.int64], npt.NDArray[Any]]):
    """N environments in P processes, which step them at the same time.

    A step takes as long as the slowest process: each has N / P environments, rounded up or down.
    """

    def __init__(self, servers: EnvServers, described: Described, copy: bool) -> None:
        """See `process_envs`."""
        self._servers, self._rows, self._children = servers, servers.rows, servers.children
        self._copy, self._turn, self._under_way = copy, 0, False
        self._masks: Flags | None = None
        self._noted: set[str] = set()
        self._wakers: list[Any] = []
        self._messages: list[Pipe] = []
        self._describe(described)
        self._answers, theirs = socket.socketpair()
        with ExitStack() as undo, closing(theirs):
            undo.callback(self.close)
            timeout = struct.pack("ll", _LOOK_SECONDS, 0)
            self._answers.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)
            self._share(described, theirs.fileno())
            undo.pop_all()

    def _share(self, described: Described, answers: int) -> None:
        """Share arrays and pipes with the processes."""
        layout = Layout(described, self.num_envs, len(self._children))
        with ExitStack() as stack:
            arrays = layout.new_file()
            stack.callback(os.close, arrays)
            self._arrays, self._infos = layout.arrays(arrays), tuple(described.infos)
            sleepers = []
            for _ in range(2):
                sleeper, waker = os.pipe()
                stack.callback(os.close, sleeper)
                sleepers.append(sleeper)
                self._wakers.append(os.fdopen(waker, "wb", buffering=0))
            for child in self._children:
                child.send_file(arrays)
                self._messages.append(child.new_pipe())
                for file in (*sleepers, answers):
                    child.send_file(file)

    def _describe(self, described: Described) -> None:
        self.num_envs = self._servers.num_envs
        self.metadata = described.metadata
        self.single_observation_space = described.observation_space
        self.single_action_space = described.action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        for name, value in described.attributes.items():
            setattr(self, name, value)

    def reset(
        self, *, seed: Any = None, options: dict[str, Any] | None = None
    ) -> tuple[Observations, dict[str, Any]]:
        rows = rows_to_reset(options, self.num_envs)
        seeds = None if seed is None else environment_seeds(seed, self.num_envs)
        messages = []
        for own in self._rows:
            theirs = options
            if options is not None and "reset_mask" in options:
                theirs = {**options, "reset_mask": rows[own]}
            messages.append((None if seeds is None else seeds[own].tolist(), theirs))
        notes = self._let_all(RESET, messages)
        return self._observations(), self._shown(notes, rows)

    def step(
        self, actions: npt.ArrayLike
    ) -> tuple[Observations, npt.NDArray[Any], Flags, Flags, dict[str, Any]]:
        count = int(self.single_action_space.n)  # type: ignore[attr-defined]
        checked, arrays = check_actions(actions, self.num_envs, count), self._arrays
        arrays["actions"][...] = checked
        notes = self._let_all(STEP)
        rewards, terminated, truncated = (
            arrays[name].copy() for name in ("rewards", "terminated", "truncated")
        )
        return self._observations(), rewards, terminated, truncated, self._shown(notes)

    @property
    def observations(self) -> Observations:
        """The memory `[N, ...]` that each step overwrites."""
        return self._arrays["observations"]

    def _observations(self) -> Observations:
        return self.observations.copy() if self._copy else self.observations

    def _shown(self, notes: list[str], reset: Flags | None = None) -> dict[str, Any]:
        """Return the infos of a step, or of a `reset` of some environments `[N]`."""
        arrays, status = self._arrays, self._arrays["status"]
        infos: dict[str, Any] = {name: arrays[name].copy() for name in self._infos}
        if (status & LAST).any():
            infos |= {name: self._where(LAST, name, 0) for name in ("final_obs", "_final_obs")}
        if (status & MASKS).any():
            masks = self._where(MASKS, "action_mask", True)
            if reset is not None and self._masks is not None:
                masks = np.where(reset[:, None], masks, self._masks)
            infos["action_mask"] = self._masks = masks
        if new := [note for note in dict.fromkeys(notes) if note not in self._noted]:
            self._noted.update(new)
            infos["notes"] = new
        return infos

    def _where(self, part: int, name: str, other: int) -> npt.NDArray[Any]:
        """Return an array as the processes wrote it that have this part of an answer, `other` elsewhere."""
        array = np.full_like(self._arrays[name], other)
        for rows, status in zip(self._rows, self._arrays["status"], strict=True):
            if status & part:
                array[rows] = self._arrays[name][rows]
        return array

    def _let_all(self, order: bytes, messages: Sequence[Any] = ()) -> list[str]:
        """Let all processes carry out an order, to which each may get a message, wait for them, and return
        what their environments noted.

        Raises what an environment raised, or ChildDied.
        """
        self._check_open()
        if self._under_way:  # answers to it may still come, and would pass for those to this order
            raise RuntimeError("a call before was not carried out to its end: make the environments anew")
        self._under_way = True
        self._arrays["status"][...] = WORKING
        try:
            self._wake(order)
            for pipe, message in zip(self._messages, messages, strict=False):
                pipe.send(message)  # only now that it reads: a pipe holds some 100 KB
            self._wait()
            asked = np.flatnonzero(self._arrays["status"] & MESSAGE)
            answers = [self._messages[index].receive() for index in asked]
        except (ChildDied, OSError, ValueError):
            self._check_open()  # another thread may have closed it meanwhile
            raise
        self._under_way = False
        return [note for notes in unless_failed(answers) for note in notes]

    def _wake(self, order: bytes) -> None:
        with suppress(BrokenPipeError):  # all are dead, as `_wait` finds
            self._wakers[self._turn].write(order * len(self._children))
        # Two pipes take turns: in one, a fast process could take a byte that is meant for a slow one.
        self._turn = 1 - self._turn

    def _wait(self) -> None:
        missing = len(self._children)
        while missing:
            with suppress(BlockingIOError):  # none in all this time
                missing -= len(self._answers.recv(missing, socket.MSG_WAITALL))
            if missing:
                self._check_open()
                for child in self._children:
                    child.check()

    def _check_open(self) -> None:
        if not self._servers.open:
            raise RuntimeError("this environment is closed")

    def working(self) -> list[str]:
        """Name the processes whose step or reset is under way, for messages about what hangs."""
        under_way = self._arrays["status"] == WORKING
        return [str(child) for child, works in zip(self._children, under_way, strict=True) if works]

    def close_extras(self, **kwargs: Any) -> None:
        """End the processes, and with them all groups, even while a step waits in another thread."""
        self._servers.open = False
        for waker in self._wakers:
            waker.close()  # they read its end, and end
        for pipe in self._messages:
            pipe.close()
        self._servers.close()
        with suppress(OSError):
            self._answers.shutdown(socket.SHUT_RDWR)  # wakes a thread that waits for an answer
        self._answers.close()


def process_envs(servers: EnvServers, copy: bool = True) -> list[ProcessEnvs]:
    """Wait until the environments of all groups are made, and return those of each.

    Args:
        servers: the processes, which an error here, or closing the environments of a group, ends.
        copy: whether observations are copies. Others are overwritten by the next step.

    Raises what `make` raises, ChildDied for a process that died, OSError where there is no memory.
    """
    with ExitStack() as undo:
        undo.callback(servers.close)
        described = unless_failed([child.receive() for child in servers.children])[0]
        envs = []
        for _ in range(servers.groups):
            envs.append(ProcessEnvs(servers, described, copy))
            undo.callback(envs[-1].close)
        undo.pop_all()
        return envs
