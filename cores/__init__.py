"""Recurrent cores: one file each, one interface, made by name. README.md describes each of them."""

from importlib import import_module
from pkgutil import iter_modules

from .backbone import FastWeightCore
from .base import Core, State, Stats
from .fast_weights import FastWeights, MemoryTrace, StatePart
from .registry import core_feature_size, core_name, core_names, make_core, register
from .truncated import unroll_truncated

__all__ = [
    "Core",
    "FastWeightCore",
    "FastWeights",
    "MemoryTrace",
    "State",
    "StatePart",
    "Stats",
    "core_feature_size",
    "core_name",
    "core_names",
    "make_core",
    "register",
    "unroll_truncated",
]

for module in iter_modules(__path__):
    import_module(f"{__name__}.{module.name}")  # registers its cores
