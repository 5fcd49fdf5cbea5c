"""Operations on the memory of an agent that plays, as `eval --memory` takes them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...cores import Core
from ...cores.surgery import writes_fast_weights
from ..errors import UsageError
from ..units import parse_steps

_T = "T an agent step of the episode, from 0 on"
_FORMS = {
    "freeze": ("freeze@T", _T),
    "undo": ("undo@T", _T),
    "scale": ("scale:X[@T]", f"X a number, {_T}"),
    "noise": ("noise:X[@T]", f"X a number of at least 0, {_T}"),
    "wipe": ("wipe@T", _T),
    "wipe-every": ("wipe-every:N", "N a number of agent steps, at least 1"),
}
"""How each is written; [@T] may be left out."""


@dataclass(frozen=True)
class MemoryOp:
    """What is done to the memory in every episode, whose agent steps count from 0."""

    kind: str
    """README.md says what each does."""
    step: int = 0
    """T, or N of wipe-every."""
    amount: float = 0.0
    """X of scale and noise; 0 for freeze and undo, which scale by it."""

    def __str__(self) -> str:
        """Return the operation as one writes it."""
        if self.kind == "wipe-every":
            return f"wipe-every:{self.step}"
        if self.kind not in ("scale", "noise"):
            return f"{self.kind}@{self.step}"
        return f"{self.kind}:{str(self.amount).removesuffix('.0')}" + (f"@{self.step}" if self.step else "")

    @property
    def player_name(self) -> str:
        """The name of the agent so changed among the results of an evaluation."""
        return f"forgets every {self.step}" if self.kind == "wipe-every" else str(self)

    def check(self, core: Core, name: str) -> None:
        """Raise UsageError unless a core, of that name, has what the operation changes. Wipes fit all."""
        if not self.kind.startswith("wipe") and not core.initial_state(1):
            raise UsageError(f"--memory {self}: {name} has no memory; evaluate an agent that has one")
        if self.kind in ("scale", "noise") and not writes_fast_weights(core):
            raise UsageError(
                f"--memory {self}: it changes fast weights, which {name} does not have in every layer; "
                "give freeze@T, undo@T, wipe@T or wipe-every:N"
            )


def parse_op(word: str) -> MemoryOp:
    """Read an operation, such as freeze@500 or scale:0.5. Raises UsageError."""
    head, at, step = word.partition("@")
    kind, colon, value = head.partition(":")
    if kind not in _FORMS:
        forms = ", ".join(form for form, _ in _FORMS.values())
        raise UsageError(f"--memory {word}: unknown operation; choose from {forms}")
    try:
        match kind, colon, at:
            case "freeze" | "undo" | "wipe", "", "@":
                return MemoryOp(kind, _parse_step(step))
            case "scale" | "noise", ":", _:
                return MemoryOp(kind, _parse_step(step) if at else 0, _parse_amount(kind, value))
            case "wipe-every", ":", "":
                return MemoryOp(kind, parse_steps(value))
    except ValueError:
        pass
    form, letters = _FORMS[kind]
    raise UsageError(f"--memory {word}: give {form}, {letters}")


def _parse_step(text: str) -> int:
    return 0 if text == "0" else parse_steps(text)


def _parse_amount(kind: str, text: str) -> float:
    amount = float(text)
    if not math.isfinite(amount) or (kind == "noise" and amount < 0):
        raise ValueError
    return amount + 0.0  # -0 is 0
