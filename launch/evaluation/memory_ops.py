"""Operations on the memory of an agent that plays, as `eval --memory` takes them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...agents import Agent
from ...cores import Core
from ...cores.options import options_of
from ...cores.registry import find_core
from ...cores.surgery import writes_fast_weights, writes_under_keys
from ..errors import UsageError
from ..units import parse_steps

_T = "T an agent step of the episode, from 0 on"
_ST = "S and T agent steps of the episode, from 0 on, S"
_FORMS = {
    "freeze": ("freeze@T", _T),
    "undo": ("undo@T", _T),
    "scale": ("scale:X[@T]", f"X a number, {_T}"),
    "noise": ("noise:X[@T]", f"X a number of at least 0, {_T}"),
    "erase": ("erase@T or erase:S@T", f"{_ST} not after T"),
    "insert": ("insert:S@T", f"{_ST} not after T"),
    "restore": ("restore:S@T", f"{_ST} before T"),
    "transplant": ("transplant:RUN@T", f"RUN a run of the same core and environment, {_T}"),
    "wipe": ("wipe@T", _T),
    "wipe-every": ("wipe-every:N", "N a number of agent steps, at least 1"),
}
"""How each is written; [@T] may be left out."""
_ANY = "give freeze@T, undo@T, restore:S@T, transplant:RUN@T, wipe@T or wipe-every:N"
"""those that any memory takes"""


@dataclass(frozen=True)
class MemoryOp:
    """What is done to the memory in every episode, whose agent steps count from 0."""

    kind: str
    """README.md says what each does."""
    step: int = 0
    """T, or N of wipe-every."""
    amount: float = 0.0
    """X of scale and noise; 0 for freeze and undo, which scale by it."""
    source: int = 0
    """S of erase, insert and restore."""
    run: str = ""
    """RUN of transplant."""

    def __str__(self) -> str:
        """Return the operation as one writes it."""
        match self.kind:
            case "wipe-every":
                return f"wipe-every:{self.step}"
            case "scale" | "noise":
                since = f"@{self.step}" if self.step else ""
                return f"{self.kind}:{str(self.amount).removesuffix('.0')}{since}"
            case "insert" | "restore":
                return f"{self.kind}:{self.source}@{self.step}"
            case "erase" if self.source != self.step:
                return f"erase:{self.source}@{self.step}"
            case "transplant":
                return f"transplant:{self.run}@{self.step}"
        return f"{self.kind}@{self.step}"

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
                f"--memory {self}: it changes fast weights, and not all of {name}'s memory is such; {_ANY}"
            )
        if self.kind in ("erase", "insert") and not writes_under_keys(core):
            raise UsageError(f"--memory {self}: {name} does not write under keys in every layer; {_ANY}")

    def check_donor(self, donor: Agent, agent: Agent) -> None:
        """Raise UsageError unless a donor has the core, sizes and environment of an agent."""
        their = _traits(donor)
        for what, ours in _traits(agent).items():
            if their[what] != ours:
                differs = f"its {what} is {their[what]}, this agent's {ours}"
                raise UsageError(f"--memory {self}: {differs}; give a run of the same")


def _traits(agent: Agent) -> dict[str, object]:
    """Return what must be the same for another agent's memory to fit, by name, the core first."""
    spec = agent.spec
    options = dict(spec.core_options)
    for name, option in options_of(find_core(spec.core)).items():
        options[name] = option.normal(options.get(name, option.default))
    return {
        "core": spec.core,
        **{f"core option {name}": value for name, value in options.items()},
        "state": [list(part.shape[1:]) for part in agent.initial_state(1)],
        "environment": spec.game or spec.env_id,
        "observation": list(spec.observation_shape),
    }


def parse_op(word: str) -> MemoryOp:
    """Read an operation, such as freeze@500 or scale:0.5. Raises UsageError."""
    last = word.startswith("transplant:") and "@" in word  # of a run's name, too, @ may be part
    head, at, step = word.rpartition("@") if last else word.partition("@")
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
            case "erase", "", "@":
                return MemoryOp(kind, T := _parse_step(step), source=T)
            case "erase" | "insert" | "restore", ":", "@":
                return _between(kind, _parse_step(value), _parse_step(step))
            case "transplant", ":", "@" if value:
                return MemoryOp(kind, _parse_step(step), run=value)
            case "wipe-every", ":", "":
                return MemoryOp(kind, parse_steps(value))
    except ValueError:
        pass
    form, letters = _FORMS[kind]
    raise UsageError(f"--memory {word}: give {form}, {letters}")


def _between(kind: str, source: int, step: int) -> MemoryOp:
    if source > step or (kind == "restore" and source == step):
        raise ValueError
    return MemoryOp(kind, step, source=source)


def _parse_step(text: str) -> int:
    return 0 if text == "0" else parse_steps(text)


def _parse_amount(kind: str, text: str) -> float:
    amount = float(text)
    if not math.isfinite(amount) or (kind == "noise" and amount < 0):
        raise ValueError
    return amount + 0.0  # -0 is 0
