"""Code execution: what a little program prints (Fan et al. 2020; Irie et al. 2021, section 4.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from ..checks import check_range
from .sequences import Sequences, padded

NAMES = ("x", "y", "z", "a", "b")
LOWEST, HIGHEST = -8, 16
"""range of variables: out-of-range increments are applied as decrements, and vice versa"""
NOTHING = 0
"""the target wherever nothing is printed"""

_SYMBOLS = ("=", "++", "--", "print", "if", "<", ">", ":", ";")


@dataclass(frozen=True)
class Code:
    """Programs of assignments, increments and decrements, prints, and these under a condition.

    A token is a name, a digit or a symbol (`tokens`); the target of the `;` after a print that is executed is
    1 + value - LOWEST, that of all other tokens `NOTHING`. In the published generator (`variant="code"`) an
    assignment under a condition that holds changes nothing where the variable has a value already; here the
    `text` variant assigns. Its text also says that steps out of range are drawn again: both variants apply
    them in reverse, as the code does.
    """

    classes: ClassVar = HIGHEST - LOWEST + 2

    variables: int = 3
    statements: int = 100
    variant: Literal["code", "text"] = "code"

    def __post_init__(self) -> None:
        check_range("variables", self.variables, 1, len(NAMES))
        check_range("statements", self.statements, 2)

    @property
    def tokens(self) -> tuple[str, ...]:
        return (*NAMES[: self.variables], *map(str, range(10)), *_SYMBOLS)

    @property
    def symbols(self) -> tuple[int, ...]:
        return (len(self.tokens),)

    def sample(self, rng: np.random.Generator, batch: int) -> Sequences:
        programs = [_Program(self, rng) for _ in range(batch)]
        return padded([program.tokens for program in programs], [program.targets for program in programs])


class _Program:
    """One program, executed as it is written."""

    def __init__(self, task: Code, rng: np.random.Generator) -> None:
        self._task, self._rng = task, rng
        self._number = {token: number for number, token in enumerate(task.tokens)}
        self._values: dict[str, int] = {}
        self.tokens: list[int] = []
        self.targets: list[int] = []
        self._assign()
        for _ in range(task.statements - 2):
            kind = self._draw(4)
            if kind == 3:
                self._condition()
            else:
                self._basic(kind)
        self._print()

    def _basic(self, kind: int, executed: bool = True, conditional: bool = False) -> None:
        if kind == 0:
            self._assign(executed, conditional)
        elif kind == 1:
            self._count(executed)
        else:
            self._print(executed)

    def _assign(self, executed: bool = True, conditional: bool = False) -> None:
        name, value = NAMES[self._draw(self._task.variables)], self._draw(10)
        ignored = conditional and name in self._values and self._task.variant == "code"
        if executed and not ignored:
            self._values[name] = value
        self._write(name, "=", str(value), ";")

    def _count(self, executed: bool) -> None:
        name = self._draw_assigned()
        step = 1 - 2 * self._draw(2)
        if not LOWEST <= self._values[name] + step <= HIGHEST:
            step = -step
        if executed:
            self._values[name] += step
        self._write(name, "++" if step > 0 else "--", ";")

    def _print(self, executed: bool = True) -> None:
        name = self._draw_assigned()
        self._write("print", name, ";")
        if executed:
            self.targets[-1] = 1 + self._values[name] - LOWEST

    def _condition(self) -> None:
        greater, name, limit = bool(self._draw(2)), self._draw_assigned(), self._draw(10)
        self._write("if", name, ">" if greater else "<", str(limit), ":")
        holds = self._values[name] > limit if greater else self._values[name] < limit
        self._basic(self._draw(3), holds, conditional=True)

    def _draw_assigned(self) -> str:
        """Draw one of the variables that have a value."""
        return list(self._values)[self._draw(len(self._values))]

    def _draw(self, count: int) -> int:
        return int(self._rng.integers(count))

    def _write(self, *words: str) -> None:
        self.tokens += [self._number[word] for word in words]
        self.targets += [NOTHING] * len(words)
