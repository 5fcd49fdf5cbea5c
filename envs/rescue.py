"""A guard around a third-party environment: what it raises, or returns of a wrong type, as one error."""

import re
import traceback
import warnings
from itertools import dropwhile
from types import FrameType, TracebackType
from typing import Any

import gymnasium
from gymnasium.vector import SyncVectorEnv, VectorEnv

from .brief import brief
from .misfit import misfit_of_result

_PASSING_ON = re.compile(
    r"gymnasium($|\.(?!envs\.(?!registration)))|numpy|functools|contextlib"
    rf"|{re.escape(__package__)}\.(?!builtin|rewriting|sequences)"
)
"""Modules whose functions stand in a traceback before the environment's own code."""
_LONGEST = 300
"""Characters of an environment's own message."""


_NOTHING = object()
"""in place of the result of a call that has not returned; None would be a result"""


class EnvironmentFailed(Exception):
    """An environment raised, tried to end the process, or returned what its spaces do not hold.

    The message is one line that names the environment and the call. `trace` is the traceback within the
    environment's own code, which its author needs; it is empty where nothing was raised there.
    """

    def __init__(self, message: str, trace: str = "") -> None:
        super().__init__(message)
        self.trace = trace


class DoesNotStart(ValueError):
    """An environment raised before its first step; `trace` as of EnvironmentFailed."""

    def __init__(self, message: str, trace: str = "") -> None:
        super().__init__(message)
        self.trace = trace


class EnvironmentWarning(UserWarning):
    """An environment did something wrong that changes nothing of what was played."""


class Witness(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Remembers what a single environment returned last, to name what is wrong with it if reading it fails.

    A step that ends an episode is followed by a reset before anybody looks at it: both are remembered.
    """

    _step: Any = _NOTHING
    _reset: Any = _NOTHING

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._reset = _NOTHING
        self._reset = self.env.reset(seed=seed, options=options)
        return self._reset

    def step(self, action: Any) -> Any:
        self._step = self._reset = _NOTHING
        self._step = self.env.step(action)
        return self._step

    def misfit(self) -> str | None:
        """Say what of it does not fit, in a line; None if all does, or no call has returned."""
        for call, returned in (("step", self._step), ("reset", self._reset)):
            if returned is _NOTHING:
                continue
            if wrong := misfit_of_result(call, returned, self.env.observation_space):
                return f"{call} returned {wrong}"
        return None


class Rescue:
    """`with rescue:` turns whatever a vector environment raises within into EnvironmentFailed."""

    def __init__(self, env: VectorEnv[Any, Any, Any], name: str) -> None:
        self._env, self._name = env, name

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception | SystemExit) and not isinstance(error, EnvironmentFailed):
            raise _failure(self._env, self._name, error) from error


def close(env: VectorEnv[Any, Any, Any], name: str) -> None:
    """Close an environment. What its `close` raises is a warning: it must not hide what came before."""
    try:
        env.close()
    except (Exception, SystemExit) as problem:
        warnings.warn(f"{name}: close failed: {describe(problem)}", EnvironmentWarning, stacklevel=2)


def describe(error: BaseException) -> str:
    """Return what somebody's code raised, as one line of limited length."""
    if isinstance(error, SystemExit):
        return f"it called sys.exit({'' if error.code is None else repr(error.code)})"
    return f"{type(error).__name__}: {brief(error, _LONGEST)}"


def own_trace(error: BaseException) -> str:
    """Return the traceback within the environment's own code; empty where nothing was raised there."""
    frames = traceback.walk_tb(error.__traceback__)
    own = traceback.StackSummary.extract(dropwhile(_passes_on, frames)).format()
    if not own:
        return ""
    lines = ["Traceback (most recent call last):\n", *own, *traceback.format_exception_only(error)]
    return "".join(lines).rstrip()


def _failure(env: VectorEnv[Any, Any, Any], name: str, error: BaseException) -> EnvironmentFailed:
    """Describe what went wrong in a call of `env.reset` or `env.step`."""
    frames = list(traceback.walk_tb(error.__traceback__))
    call = [frame.f_code.co_name for frame, _ in frames if frame.f_code.co_name in ("reset", "step")][-1]
    trace = own_trace(error)
    if not trace:  # raised in Gymnasium's code or ours, by what it returned
        return EnvironmentFailed(f"{name}: {first_misfit(env) or _refused(call, error, frames[-1][0])}")
    return EnvironmentFailed(f"{name}: {call} failed: {describe(error)}", trace)


def _refused(call: str, error: BaseException, frame: FrameType) -> str:
    """Say why what `call` returned was refused: in our own words, or in those of whoever passes it on."""
    ours = _module(frame).startswith(__package__)
    return brief(error) if ours else f"{call} failed: {describe(error)}"


def _passes_on(place: tuple[FrameType, int]) -> bool:
    return _PASSING_ON.match(_module(place[0])) is not None


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def first_misfit(env: VectorEnv[Any, Any, Any]) -> str | None:
    """Say what one of the single environments returned last that does not fit; None if all does."""
    singles = env.envs if isinstance(env, SyncVectorEnv) else ()
    wrong = (each.get_wrapper_attr("misfit")() for each in singles if each.has_wrapper_attr("misfit"))
    return next(filter(None, wrong), None)
