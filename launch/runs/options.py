"""Consequences of what the options of `train` decide, for resuming, comparing, engines and listings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_type_hints

from ..config import Formerly, Only, Scope, TrainConfig


@dataclass(frozen=True)
class Declaration:
    """A field's declaration in `TrainConfig`, beside its type."""

    decides: Scope
    only: Literal["local", "ray"] | None
    """the one engine that heeds the option; None if both do"""
    formerly: Formerly | None = None
    """what runs did that are older than the option, where that is not its default"""


def declarations(config: type) -> dict[str, Declaration]:
    """Read the declaration of each field of a dataclass, by name.

    Raises TypeError for a field that does not declare one thing that it decides.
    """
    hints = get_type_hints(config, include_extras=True)
    declared = {}
    for name in (field.name for field in fields(config)):
        marks = getattr(hints[name], "__metadata__", ())
        kinds = [mark for mark in marks if isinstance(mark, Scope)]
        if len(kinds) != 1:
            raise TypeError(
                f"{config.__name__}.{name} must declare what it decides, once: Annotated[type, Scope.KIND]"
            )
        engines = [mark.engine for mark in marks if isinstance(mark, Only)]
        former = [mark for mark in marks if isinstance(mark, Formerly)]
        declared[name] = Declaration(kinds[0], engines[0] if engines else None, former[0] if former else None)
    return declared


OPTIONS = declarations(TrainConfig)


def former_values(options: Mapping[str, Declaration]) -> dict[str, Any]:
    """Return what runs did that are older than an option, where that is not the option's default."""
    return {name: option.formerly.value for name, option in options.items() if option.formerly}


FORMER = former_values(OPTIONS)

DEFAULTS: Mapping[str, Any] = vars(TrainConfig())

LEGACY_VALUES: Mapping[str, Any] = {**DEFAULTS, **FORMER}
"""Value of an option that a run's config.json lacks."""


def deciding(*kinds: Scope) -> tuple[str, ...]:
    """List the options that decide one of these, in the order of `TrainConfig`."""
    return tuple(name for name, option in OPTIONS.items() if option.decides in kinds)


FIXED = deciding(Scope.SEED, Scope.LEARNING)
"""Options that a run keeps. It keeps those of the agent too, which are compared with its checkpoint."""

GROUPING_OPTIONS = deciding(Scope.AGENT, Scope.LEARNING, Scope.CONDITIONS)
"""Options in which runs that are averaged must agree."""

DESCRIBING = deciding(*(kind for kind in Scope if kind not in (Scope.RECORD, Scope.INVOCATION)))
"""Options that TensorBoard shows beside a run."""

REPEATED = deciding(*(kind for kind in Scope if kind != Scope.INVOCATION))
"""Options that the command for resuming a run repeats."""


def given_only_for(engine: Literal["local", "ray"], config: TrainConfig) -> list[str]:
    """List the options that differ from their defaults and that this engine alone heeds."""
    heeded = [name for name, option in OPTIONS.items() if option.only == engine]
    return [name for name in heeded if getattr(config, name) != getattr(TrainConfig, name)]
