"""`deltabeast cores`: all of them in a table, or the options of one."""

from __future__ import annotations

from ..cores.options import options_of
from ..cores.registry import core_name, find_core
from . import core_list
from .config import CoresConfig
from .errors import UsageError
from .output import first_sentence, tell
from .probe.key_value_model import FAST_WEIGHT_MEMORY, KeyValueModel
from .tables import core_options_table, cores_table, leave_out_last_columns, output_width, show, show_lines


def cores(config: CoresConfig) -> None:
    if config.core is not None:
        _core_options(config.core)
        return
    listed = core_list.list_cores()
    measured = (
        core_list.measure_cores({each.name: core_list.make_default(each.name) for each in listed})
        if config.measure
        else None
    )
    table = cores_table(listed, measured)
    width = output_width()
    narrow = leave_out_last_columns(table, width) if width else []
    show(table)
    tell("")
    if narrow:
        show_lines(f"A wider terminal also shows: {', '.join(narrow)}.")
    show_lines(
        "Parameters of the core and floats of its state for each environment, at the default size; the "
        "stem and the heads have 1.09 M more with 18 actions.",
        "probe --task retrieval also has fast_weight_memory, a rule alone.",
    )
    if "fast net" not in narrow:
        show_lines(
            "Slow net, rule and fast net are what names a fast weight programmer; other cores have - there."
        )
    if config.measure:
        show_lines("Medians on this machine: a step of 32 rows, and 50 steps of them with their gradients.")
    width_of_need = max(map(len, core_list.ADVICE))
    tell("")
    show_lines("What a task asks for, and which to try first (scores: results/suite/README.md):")
    tell(*(f"  {need:<{width_of_need}}  {which}" for need, which in core_list.ADVICE.items()), "")
    show_lines("Options of one: deltabeast cores CORE. Your own: --core package.module:Class.")


def _core_options(name: str) -> None:
    """Print what a core is and which options it has."""
    if core_name(name) == FAST_WEIGHT_MEMORY:
        _rule_options(FAST_WEIGHT_MEMORY)
        return
    try:
        factory = find_core(name)
    except ValueError as error:
        raise UsageError(str(error)) from error
    tell(f"{name}: {first_sentence(factory.__doc__)}")
    if equation := getattr(factory, "equation", ""):
        tell(f"A step: {equation}. Source: {getattr(factory, 'source', '')}")
    tell("")
    if options := options_of(factory):
        show(core_options_table(options.values()))
        tell("", f"Give them as: deltabeast train --core {name} --core-options OPTION VALUE ...")
    else:
        tell("It has no options.")


def _rule_options(name: str) -> None:
    """Print where a rule that no core has can be tried, and which options it has there."""
    tell(f"{name}: a rule alone, which no core has. Source: Schlag, Munkhdalai & Schmidhuber 2021", "")
    same = options_of(find_core("delta_net"))
    show(core_options_table(same[option] for option in KeyValueModel.OPTIONS))
    given = f"--core {name} --core-options OPTION VALUE ..."
    tell("", f"Give them as: deltabeast probe --task retrieval {given}", "Nothing else takes it as a core.")
