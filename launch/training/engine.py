"""The interface between a run and the engine that makes its updates."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch

from ...agents import Agent, Episodes
from ...envs import EnvironmentFailed
from ..errors import one_line
from ..processes.child import ChildDied
from ..processes.machine import lacks_memory
from .progress import Window


@dataclass(frozen=True)
class Update:
    """One update of the weights; on a cluster, all steps of the optimizer made from one batch."""

    metrics: Sequence[Mapping[str, float]]
    """one mapping for each step of the optimizer"""
    episodes: Sequence[Episodes]


@dataclass(frozen=True)
class ActorsStarted:
    """Actors are running again after none did: speed is measured from here on."""


class ActorError(RuntimeError):
    """An actor, or another process that the run depends on, failed; the cause is attached."""


def actor_failed(who: str, error: BaseException) -> ActorError:
    """Return the failure of `who`, with its cause attached; an environment names itself.

    Where memory is lacking, or a process died, there is no cause: no traceback would say more.
    """
    if lacks_memory(error):
        smaller = "give a smaller --unroll-length, --num-envs or --batch-size"
        return ActorError(f"out of memory: {smaller}")
    if isinstance(error, ChildDied):
        return ActorError(str(error))
    failure = ActorError(str(error) if isinstance(error, EnvironmentFailed) else f"{who} failed: {error!r}")
    failure.__cause__ = error
    return failure


class WeightsLost(ActorError):
    """The process that held the newest weights is gone: the run must go back to its last checkpoint."""


class CannotRepeat(ValueError):
    """A checkpoint cannot be resumed bit for bit; the message says why."""


class CannotRestore(ValueError):
    """A part of a checkpoint is missing, or of another kind; the message names it."""


@contextmanager
def restoring(part: str) -> Iterator[None]:
    """Raise CannotRestore for whatever goes wrong when a part of `state.pt` is taken over."""
    try:
        yield
    except CannotRepeat:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        reason = f"{type(error).__name__}: {one_line(error)}"
        raise CannotRestore(f"{part} in its state.pt is missing or of another kind ({reason})") from error


class Engine(ABC):
    """Makes updates; `Run` calls it, and keeps the files, the log and the scores."""

    agent: Agent
    """the agent, with the newest weights in this process"""
    device: torch.device
    """device of the learner"""
    stop: threading.Event
    """set when the run should end at the next boundary"""
    resolved: Mapping[str, str] = MappingProxyType({})
    """what `auto` resolved to, by option, where the engine decides it"""
    fused_record: str | None = None
    """verification record loaded from a resumed run's config.json; see `cpu_parts.FusedRecord`"""
    notes: Sequence[str] = ()
    """warnings about the environments, for the user"""
    uses: str = ""
    """its processes and threads, in words"""
    pinned_cpus: Collection[int] = ()
    """CPUs that the engine's workers are pinned to, one each, which an evaluation may share; else empty"""

    @abstractmethod
    def start(self, agent: Agent, state: Mapping[str, Any] | None, say: Callable[[str], None]) -> list[str]:
        """Begin with `agent`, which is a checkpoint's where there is a `state`; return notes for the user.

        `say` prints a line while updates are made. Raises CannotRepeat or CannotRestore.
        """

    @property
    @abstractmethod
    def steps(self) -> int:
        """Agent steps learned from."""

    def acting(self) -> AbstractContextManager[object]:
        """Return a context in which actors run: leaving it stops them. A null context where the
        engine stops them elsewhere."""
        return nullcontext()

    @abstractmethod
    def updates(self, should_pause: Callable[[], bool]) -> Iterator[Update | ActorsStarted]:
        """Make updates. After `stop` is set the iterator may end; if it does not, the caller leaves once
        `at_boundary()` is true.

        Where `should_pause()` is true after an update, no other begins before the caller asks for it, so that
        the weights can be saved. Raises ActorError or NonFiniteError, and WeightsLost, after which `restore`
        and another call go on.
        """

    @abstractmethod
    def at_boundary(self) -> bool:
        """Return whether a checkpoint now loses nothing: there is no partly consumed unroll."""

    def finish(self) -> Sequence[Update]:
        """Wait for the update under way, if any. Raises ActorError."""
        return ()

    @abstractmethod
    def snapshot(self, actors: bool) -> dict[str, Any]:
        """Bring `agent` up to date and return the engine's part of a checkpoint.

        Without `actors`, as after a failure in the middle of an unroll, it has no state of theirs. Raises
        ActorError if the weights are out of reach, WeightsLost if they are gone.
        """

    def restore(self, agent: Agent, state: Mapping[str, Any], lost: WeightsLost) -> float:
        """Go back to a checkpoint; return the delay before the restart, in seconds.

        Raises ActorError if the run must end there instead.
        """
        raise lost

    @abstractmethod
    def stages(self) -> str:
        """Describe what everyone is doing, for messages about what hangs."""

    @abstractmethod
    def new_window(self) -> Window:
        """Begin to measure a row of the log."""

    def row(self) -> dict[str, float]:
        """Return further columns for a row of the log."""
        return {}


def saved_actors(state: Mapping[str, Any], count: int) -> list[Mapping[str, Any]]:
    """Return the states of all actors with their environments. Raises CannotRepeat if one is missing."""
    saved: list[Mapping[str, Any]] = state["actors"]
    if len(saved) != count or any("env" not in actor for actor in saved):
        raise CannotRepeat("the run was trained without --deterministic, or with another --num-actors")
    return saved
