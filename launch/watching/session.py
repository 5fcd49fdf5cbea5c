"""A game, or two beside each other from one seed, that viewers watch and command: no network."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from .commands import (
    SPEEDS,
    Command,
    Pause,
    Refused,
    Restart,
    Speed,
    Step,
    Transplant,
    Undo,
    UseCheckpoint,
    Wipe,
)
from .readings import WINDOW
from .seat import Record, Seat
from .source import Source

HISTORY = WINDOW
"""Latest steps that a new viewer is told: those that a reading can name."""
FASTEST = 60.0
"""Steps a second, at most."""
_MOST_BYTES = 8_000_000
"""Of those steps' pictures, in base64: a noisy one of 210 x 160 pixels has 135,000."""


class Session:
    """Seats in step with each other, and what viewers chose: pause and speed."""

    def __init__(self, sources: Sequence[Source], greedy: bool, seed: int) -> None:
        self.sources, self.seed = list(sources), seed
        self.seats = [Seat(source.agent, source.make_envs, greedy, seed) for source in sources]
        self.paused, self.speed = False, 1.0
        self.said = ""
        """What the latest command did."""
        self._names = short_names([source.run for source in sources])
        self._history: deque[list[Record]] = deque()
        self._bytes = 0  # of its pictures
        self._steps = [source.saved_steps() for source in sources]
        self._waiting: dict[int, int] = {}
        """Newer checkpoints, by seat, that play from the next episode on."""
        self._greedy = greedy

    @property
    def seconds_per_step(self) -> float:
        return 1 / min(FASTEST, self.speed * self.sources[0].steps_per_second)

    @property
    def games(self) -> int:
        """How many games the first agent has ended."""
        return self.seats[0].games

    def close(self) -> None:
        for seat in self.seats:
            seat.close()

    def step(self) -> list[Record]:
        """Take one step with every agent. Raises EnvironmentFailed."""
        for n, step in list(self._waiting.items()):
            if self.seats[n].begins_next:
                del self._waiting[n]
                with suppress(Refused):  # said; the agent plays on as it is
                    self._use(n, step)
        records = [seat.step() for seat in self.seats]
        self._history.append(records)
        self._bytes += _bytes(records)
        while len(self._history) > (HISTORY if self._bytes <= _MOST_BYTES else 1):
            self._bytes -= _bytes(self._history.popleft())
        return records

    def history(self) -> list[list[Record]]:
        """Return the latest steps, oldest first."""
        return list(self._history)

    def look_for_checkpoints(self) -> None:
        """Let checkpoints that were saved since wait for the next episode."""
        steps = [source.saved_steps() for source in self.sources]
        if steps == self._steps:
            return
        self._steps = steps
        for n, source in enumerate(self.sources):
            if not steps[n]:
                self.said = f"{source.run} is gone; its agent plays on as it is"
                self._waiting.pop(n, None)
            elif source.follows and steps[n][-1] > source.step:
                self._waiting[n] = steps[n][-1]

    def state(self) -> dict[str, Any]:
        """Describe all but the steps, in plain types."""
        return {
            "paused": self.paused,
            "speed": self.speed,
            "speeds": SPEEDS,
            "seed": self.seed,
            "said": self.said,
            "steps_per_second": self.sources[0].steps_per_second,
            "seats": [self._seat(n) for n in range(len(self.seats))],
        }

    def apply(self, command: Command) -> str:
        """Follow a command, up to the step that it asks for; return what it did. Raises Refused."""
        self.said = self._apply(command)
        return self.said

    def _apply(self, command: Command) -> str:
        match command:
            case Step():
                self.paused = True
                return self.said
            case Pause(on):
                self.paused = on
                return "paused" if on else "plays on"
            case Speed(factor):
                if factor not in SPEEDS:
                    raise Refused(f"speed {factor:g}; choose one of {', '.join(map('{:g}'.format, SPEEDS))}")
                self.speed = factor
                return f"speed {factor:g}"
            case Restart(seed):
                self.seed = seed
                self._history.clear()
                self._bytes = 0
                for seat in self.seats:
                    seat.restart(seed)
                return f"begun anew with seed {seed}"
            case Wipe(n) | Undo(n) | Transplant(n) | UseCheckpoint(n):
                seat = self._of(n)
                try:
                    return self._by(n) + self._operate(command, seat)
                except Refused as error:
                    raise Refused(f"{self._by(n)}{error}") from error

    def _operate(self, command: Wipe | Undo | Transplant | UseCheckpoint, seat: Seat) -> str:
        match command:
            case Wipe():
                return seat.wipe()
            case Undo():
                return seat.undo()
            case Transplant(n):
                if len(self.seats) < 2:
                    raise Refused("there is no agent beside; give --beside RUN")
                return seat.take_memory(self.seats[1 - n])
            case UseCheckpoint(n, step):
                self._waiting.pop(n, None)
                return self._use(n, step)

    def _by(self, n: int) -> str:
        """Say whom a message is of, where there are two agents."""
        if len(self.seats) < 2:
            return ""
        alike = len(set(self._names)) < 2
        return f"{('first', 'second')[n]} agent: " if alike else f"{self._names[n]}: "

    def _use(self, n: int, step: int) -> str:
        try:
            return self._of(n).use(self.sources[n].load(step), step)
        except Refused as error:
            self.said = str(error)
            raise

    def _of(self, n: int) -> Seat:
        if n >= len(self.seats):
            raise Refused(f"there is no agent {n}; agents count from 0 to {len(self.seats) - 1}")
        return self.seats[n]

    def _seat(self, n: int) -> dict[str, Any]:
        source, seat = self.sources[n], self.seats[n]
        return {
            "title": source.title,
            "core": source.spec.core,
            "run": self._names[n],
            "step": source.step,
            "weights": source.weights,
            "about": ", ".join(
                filter(None, (source.protocol, "greedy" if self._greedy else "sampled actions"))
            ),
            "actions": source.actions,
            "checkpoints": self._steps[n],
            "waiting": self._waiting.get(n),
            "has_memory": seat.has_memory,
            "can_transplant": len(self.seats) == 2 and seat.fits(self.seats[1 - n]),
        }


def short_names(runs: Sequence[Path]) -> list[str]:
    """Return the last parts of paths, as many as tell different ones apart."""
    parts = [run.absolute().parts for run in runs]
    for n in range(1, max(map(len, parts)) + 1):
        names = [str(Path(*each[-n:])) for each in parts]
        if len(set(names)) == len(set(parts)):
            break
    return names


def _bytes(records: list[Record]) -> int:
    return sum(len(record["seen"].get("png", "")) for record in records)
