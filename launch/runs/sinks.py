"""What shows a run's numbers elsewhere: TensorBoard, a tracking service. The run outlives each of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

from ..errors import one_line

Options = Mapping[str, bool | int | float | str]


class Sink(ABC):
    """Takes what the log of a run has."""

    @abstractmethod
    def options(self, options: Options, headline: Sequence[str]) -> None:
        """Show the run's options, and the tags of its main metrics beside them."""

    @abstractmethod
    def log(self, step: int, metrics: Mapping[str, float], at: float) -> None:
        """Show metrics by TensorBoard's tags; `at` is their unix time."""

    @abstractmethod
    def close(self) -> None:
        """Show what waits, and end."""


class FailSafeSink(Sink):
    """A sink that is dropped, with one line, when it fails, be it in `begin`, which opens it."""

    def __init__(self, name: str, begin: Callable[[], Sink], say: Callable[[str], None]) -> None:
        self._name, self._say = name, say
        self._sink: Sink | None = None

        def open_it() -> None:
            self._sink = begin()

        self._try(open_it)

    def options(self, options: Options, headline: Sequence[str]) -> None:
        if sink := self._sink:
            self._try(lambda: sink.options(options, headline))

    def log(self, step: int, metrics: Mapping[str, float], at: float) -> None:
        if sink := self._sink:
            self._try(lambda: sink.log(step, metrics, at))

    def close(self) -> None:
        if sink := self._sink:
            self._try(sink.close)

    def _try(self, do: Callable[[], None]) -> None:
        try:
            do()
        except Exception as error:  # of a package with errors of its own
            self._sink = None
            self._say(f"{self._name}: {one_line(error)}; the run goes on without it")
