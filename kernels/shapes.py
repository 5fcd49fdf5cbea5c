"""Shapes of a rule's inputs: the check that all backends share, and random inputs.

C trusts shapes and PyTorch would silently broadcast, so shapes are checked before anything is computed.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping

import torch
from torch import Tensor


class Shapes:
    """Shapes of a rule's float inputs, by name and in order, each dimension a letter or a multiple of one.

    `Shapes(gates="T B 4N", weight="4N N", h0="B N", c0="B N")`: T steps, B rows, and whatever sizes the rule
    has. Inputs with T run over time, those with B and no T are states, those with neither are slow weights.
    The first input begins with `T B`, and `reset [T, B]`, which every rule takes last, goes without saying.

    A size is taken from the first input that has the letter without a factor.

    Raises:
        ValueError: if the first input does not begin with `T B`, or a letter has a factor everywhere.
    """

    def __init__(self, **inputs: str) -> None:
        self.names = (*inputs, "reset")
        self.dimensions = tuple(tuple(text.split()) for text in (*inputs.values(), "T B"))
        if self.dimensions[0][:2] != ("T", "B"):
            raise ValueError(f"shapes: {self.names[0]} is {inputs[self.names[0]]!r}; begin it with 'T B'")
        dimensions = dict.fromkeys(name for shape in self.dimensions for name in shape)
        self.letters = tuple(name for name in dimensions if len(name) == 1 and name.isalpha())
        multiples = {name: self._multiple(name) for name in dimensions if name not in self.letters}
        # for each letter: the input that gives its size, and the dimension, counted from the end
        self._sources = [self._source(letter) for letter in self.letters]
        # Compiled once, since actors check at every step: a loop over dimensions is several times slower.
        shapes = [f"({', '.join(multiples.get(name, name) for name in shape)},)" for shape in self.dimensions]
        self._shapes: Callable[..., list[tuple[int, ...]]]
        self._shapes = eval(f"lambda {', '.join(self.letters)}: [{', '.join(shapes)}]")

        self._texts = inputs

    def __reduce__(self) -> tuple[Callable[[], Shapes], tuple[()]]:
        """Pickle the texts: what is compiled of them cannot be."""
        return functools.partial(Shapes, **self._texts), ()

    def _source(self, letter: str) -> tuple[int, int]:
        number = next(i for i, shape in enumerate(self.dimensions) if letter in shape)
        shape = self.dimensions[number]
        return number, shape.index(letter) - len(shape)

    def _multiple(self, dimension: str) -> str:
        """Write `4N` as an expression."""
        match = re.fullmatch(r"(\d+)(\w+)", dimension)
        if match is None or match[2] not in self.letters:
            raise ValueError(f"shapes: {dimension!r} gives no size; write a letter, or N and elsewhere 4N")
        return f"{match[1]} * {match[2]}"

    def check(self, rule: str, inputs: tuple[Tensor, ...]) -> None:
        """Raise ValueError in one line unless the inputs agree in shape, device and, the floats, in dtype.

        No size may be 0: zero steps have no last one, and without rows or heads there is nothing to compute.
        """
        if len(inputs) != len(self.names):
            raise ValueError(f"{rule}: give {', '.join(self.names)}, not {len(inputs)} inputs")
        shapes, first = [x.shape for x in inputs], self.dimensions[0]
        if len(shapes[0]) != len(first):
            raise ValueError(f"{rule}: give {self.names[0]} [{', '.join(first)}], not {list(shapes[0])}")
        sizes = [shapes[i][at] if len(shapes[i]) >= -at else 1 for i, at in self._sources]
        if 0 in sizes or shapes != self._shapes(*sizes):
            raise ValueError(f"{rule}: {self._disagreement(sizes, shapes)}")
        *floats, reset = inputs
        dtypes, devices = {x.dtype for x in floats}, {x.device for x in inputs}
        if reset.dtype is not torch.bool or len(dtypes) > 1 or len(devices) > 1:
            raise ValueError(f"{rule}: {self._mixture(inputs)}")

    def sized(self, sizes: Mapping[str, int]) -> list[tuple[int, ...]]:
        """Return the shape of each input, reset last, given the size of each letter."""
        return self._shapes(*(sizes[letter] for letter in self.letters))

    def states(self) -> tuple[int, ...]:
        """Return the positions of the states: fast weights and outputs before the first step."""
        return tuple(i for i, shape in enumerate(self.dimensions) if "B" in shape and "T" not in shape)

    def random(
        self,
        sizes: Mapping[str, int],
        maps: Mapping[str, Callable[[Tensor], Tensor]],
        generator: torch.Generator | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> tuple[Tensor, ...]:
        """Draw normal float inputs, apply `maps`, scale slow weights `[..., N]` by `N**-0.5`."""
        inputs = []
        for name, dimensions, shape in zip(self.names[:-1], self.dimensions, self.sized(sizes), strict=False):
            x = torch.randn(shape, generator=generator, dtype=dtype)
            if "B" not in dimensions:
                x = x * shape[-1] ** -0.5
            inputs.append(maps[name](x) if name in maps else x)
        return tuple(inputs)

    def _disagreement(self, sizes: list[int], shapes: list[torch.Size]) -> str:
        by_name = {name: list(shape) for name, shape in zip(self.names, shapes, strict=True)}
        for name, shape in by_name.items():
            if 0 in shape:
                return f"{name} is {shape}; every size must be at least 1"
        name, should = next(
            (name, list(shape))
            for name, shape in zip(self.names, self._shapes(*sizes), strict=True)
            if by_name[name] != list(shape)
        )
        sources = dict.fromkeys(self.names[number] for number, _ in self._sources)
        beside = " and ".join(f"{source} {by_name[source]}" for source in sources if source != name)
        return f"{name} is {by_name[name]}; {f'with {beside} ' if beside else ''}give {should}"

    def _mixture(self, inputs: tuple[Tensor, ...]) -> str:
        device = inputs[0].device
        dtypes = [torch.bool if name == "reset" else inputs[0].dtype for name in self.names]
        return next(
            f"{name} is {x.dtype} on {x.device}; give {dtype} on {device}"
            for name, x, dtype in zip(self.names, inputs, dtypes, strict=True)
            if x.dtype is not dtype or x.device != device
        )


def widest(inputs: tuple[Tensor, ...]) -> int:
    """Return the larger of K and V, for rules with keys second and values third."""
    return max(inputs[1].shape[-1], inputs[2].shape[-1])
