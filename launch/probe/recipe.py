"""How each task is trained, as published where that is known."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from ...cores.backbone import FastWeightCore
from ...cores.features import Features
from ...cores.options import near_names, options_of, validate_options
from ...cores.registry import core_name, core_names, find_core, read_core_options
from ...envs.sequences.code import Code
from ...envs.sequences.dag import Reachability
from ...envs.sequences.listops import ListOps
from ...envs.sequences.retrieval import Retrieval
from ...envs.sequences.sequences import Task
from ...envs.sequences.swap import Swap
from ...envs.sequences.text import Text
from ..config import ProbeConfig
from ..errors import UsageError, require, require_positive
from .key_value_model import FAST_WEIGHT_MEMORY, RULES, KeyValueModel
from .result import LOWER_IS_BETTER
from .sequence_model import MemoryModel, SequenceSpec

Metric = Literal["loss", "accuracy", "sequence_accuracy", "print_accuracy", "final_accuracy", "perplexity"]


@dataclass(frozen=True)
class Recipe:
    """A task, a model, and how one learns the other."""

    task: Task | Text
    spec: SequenceSpec
    metric: Metric
    """what is compared"""
    loss: Literal["cross_entropy", "square"] = "cross_entropy"
    batch_size: int = 64
    updates: int = 10_000
    learning_rate: float = 3e-4
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    max_grad_norm: float = 0.0
    """to which gradients are scaled down; 0 for none"""
    warm_up: int = 0
    to_zero: bool = False
    """whether the learning rate falls to zero over the updates"""
    evaluate_every: int = 100
    evaluation: int = 1000
    """sequences of an evaluation that are drawn for it"""
    fixed: tuple[int, int, int] | None = None
    """numbers of sequences to train on again and again, to choose the best weights by, and to test those
    on"""
    goal: float | None = None
    """the metric at which training ends"""
    patience: int | None = None
    """evaluations in a row that may be no better than the best; one more ends training"""
    span: int | None = None
    """steps of a text that are learned from at once, with the state carried over from those before"""
    curriculum: int | None = None
    """the length up to which sequences grow, twofold each time that a batch is right but for one in a
    thousand"""

    @property
    def lower_is_better(self) -> bool:
        return self.metric in LOWER_IS_BETTER


DATA_SEED = 42
"""of sequences that all runs have in common, as published"""

_COUNTS = ("updates", "batch_size", "evaluate_every", "patience")

_BACKBONE: dict[str, Any] = {"hidden_size": 256, "num_layers": 4, "num_heads": 16, "ff_size": 1024}


def make_recipe(config: ProbeConfig) -> Recipe:
    """Return what `config` asks for. Raises UsageError for options that a task or a core does not have."""
    try:
        _check(config)
        recipe = _RECIPES[config.task](config)
        if config.shell == "off" and recipe.spec.kind == "core":
            raise ValueError(f"--shell off: cores have no form without it in {config.task}; omit it")
        changed = {
            name: value
            for name in (*_COUNTS, "learning_rate", "max_grad_norm")
            if (value := getattr(config, name)) is not None
        }
        if config.dropout is not None:
            if recipe.spec.kind != "core":
                remedy = "omit it" if config.core == FAST_WEIGHT_MEMORY else "omit it, or add --shell on"
                raise ValueError(f"--dropout: a memory without backbone has none; {remedy}")
            changed["spec"] = replace(recipe.spec, dropout=config.dropout)
        return replace(recipe, **changed)
    except ValueError as error:
        raise UsageError(str(error)) from error


def without_defaults(config: ProbeConfig, recipe: Recipe) -> ProbeConfig:
    """Leave out what was given and says no more than a default, so that one run has one name.

    `recipe` is that of `config`.
    """
    usual = {each.name: each.default for each in fields(recipe.task)}  # type: ignore[arg-type]
    given = config.task_options.items()
    options = {name: value for name, value in given if getattr(recipe.task, name) != usual[name]}
    shell = config.shell
    if shell != "auto" and make_recipe(replace(config, shell="auto")).spec == recipe.spec:
        shell = "auto"
    return replace(config, task_options=options, shell=shell)


def _check(config: ProbeConfig) -> None:
    """Raise ValueError for numbers out of range."""
    require(config, *_COUNTS, least=1)
    require(config, "seed", "checkpoint_minutes", "max_grad_norm", least=0)
    require(config, "dropout", least=0, below=1)
    require_positive(config, "learning_rate")
    _check_rule(config)


def _check_rule(config: ProbeConfig) -> None:
    """Raise ValueError where the rule that no core has cannot be tried, and for a name near to its own."""
    name = core_name(config.core)
    if config.core == FAST_WEIGHT_MEMORY:
        if config.task != "retrieval":
            raise ValueError(
                f"{name} is a rule alone, tried in retrieval only; give --task retrieval, or another --core"
            )
        if config.shell == "on":
            raise ValueError(f"--shell on: {name} is a rule alone, which has no backbone; omit it")
    elif config.task == "retrieval" and ":" not in name and name not in core_names():
        near = near_names(name.lower(), [*core_names(), FAST_WEIGHT_MEMORY])
        if near and FAST_WEIGHT_MEMORY in near:
            raise ValueError(f"unknown core {config.core!r}; {near}")


def _task(config: ProbeConfig, kind: Any) -> Any:
    """Make a task with the options given."""
    if "variant" in config.task_options:
        raise ValueError("variant is an option of its own: --variant code or --variant text")
    has_variants = "variant" in kind.__dataclass_fields__
    if config.variant == "text" and not has_variants:
        raise ValueError(f"--variant text: {config.task} is the same in code and text; omit it")
    given = {**config.task_options, **({"variant": config.variant} if has_variants else {})}
    return kind(**validate_options(config.task, kind, given, parse=True, kind="task", skip=0))


def _alone(config: ProbeConfig, cores: Sequence[str], options: Collection[str] | None = None) -> bool:
    """Return whether the core is tried without its backbone, as these are where nothing else is said.

    Alone it takes `options`, if not None those of its memory. Raises ValueError for others, which may be
    those of its backbone.
    """
    if config.shell == "off" and config.core not in cores:
        raise ValueError(f"--shell off: {config.core} has no form without it here; {', '.join(cores)} have")
    if config.shell == "on" or config.core not in cores:
        return False
    if options is None:
        options = MemoryModel.options_of(config.core)
    if other := sorted({*config.core_options} - {*options}):
        whole = "" if config.core == FAST_WEIGHT_MEMORY else ". Add --shell on for the whole core"
        raise ValueError(
            f"{config.core} alone, as {config.task} tries it, has no option {other[0]}; it has "
            f"{', '.join(options)}{whole}"
        )
    return True


def _spec(config: ProbeConfig, task: Task | Text, kind: str = "core", **more: Any) -> SequenceSpec:
    options = more.pop("core_options", {})
    return SequenceSpec(
        kind=kind,  # type: ignore[arg-type]
        symbols=task.symbols,
        classes=task.classes,
        core=config.core,
        core_options={**options, **_core_options(config)},
        **more,
    )


def _core_options(config: ProbeConfig) -> dict[str, Any]:
    if config.core == FAST_WEIGHT_MEMORY:
        return validate_options(config.core, Features, config.core_options, parse=True, kind="rule")
    return read_core_options(config.core, config.core_options)


def _retrieval(config: ProbeConfig) -> Recipe:
    """Schlag et al. 2021, section 6.1, and its code: Adam, batches of 32, until the loss is 0.001.

    The fast weight memory with keys of tanh learns more slowly from larger batches. A core in its
    backbone answers through a head, and is trained and judged as other tasks are.
    """
    task = _task(config, Retrieval)
    alone = _alone(config, RULES, KeyValueModel.OPTIONS)
    draws = alone and config.core_options.get("feature_map") == "favor"
    spec = _spec(
        config,
        task,
        "pairs" if alone else "core",
        core_options={"variant": config.variant} if draws else {},
    )
    slow = config.core == FAST_WEIGHT_MEMORY and config.core_options.get("feature_map") == "tanh"
    recipe = Recipe(
        task, spec, "loss", "square", batch_size=128 if slow else 32, updates=100_000,
        learning_rate=1e-4 if slow else 1e-3, evaluation=20, goal=0.001, patience=10,
    )  # fmt: skip
    if alone:
        return recipe
    return replace(recipe, metric="accuracy", loss="cross_entropy", goal=0.999, patience=None)


def _algorithmic(config: ProbeConfig, task: Task, metric: Metric, sizes: tuple[int, int, int]) -> Recipe:
    """Irie et al. 2021, sections 4.2 and 4.3, and its code: 200 epochs, the best by validation.

    Cores outside the backbone, such as GRU or your own, have the settings of its LSTM.
    """
    kind = find_core(config.core)
    declared = options_of(kind)
    bare = not (isinstance(kind, type) and issubclass(kind, FastWeightCore))
    of_core = {name: value for name, value in _BACKBONE.items() if name in declared}
    spec = _spec(config, task, core_options=of_core, embedding_size=128 if bare else None, dropout=0.1)
    each = -(-sizes[0] // (config.batch_size or 64))  # updates in an epoch
    return Recipe(
        task, spec, metric, batch_size=64, updates=200 * each, learning_rate=3e-3 if bare else 3e-4,
        betas=(0.9, 0.995), eps=1e-9, max_grad_norm=0.1 if bare else 0.0, evaluate_every=each, fixed=sizes,
    )  # fmt: skip


def _code(config: ProbeConfig) -> Recipe:
    # The published generator draws a last example of each set and does not write it.
    sizes = (9_999, 999, 999) if config.variant == "code" else (10_000, 1_000, 1_000)
    return _algorithmic(config, _task(config, Code), "sequence_accuracy", sizes)


def _listops(config: ProbeConfig) -> Recipe:
    return _algorithmic(config, _task(config, ListOps), "accuracy", (10_000, 1_000, 1_000))


def _swap(config: ProbeConfig) -> Recipe:
    """Zhong et al. 2025, the listing of section 10.4: one layer without backbone, lengths that double."""
    task = _task(config, Swap)
    kind = "core"
    of_core: dict[str, Any] = {}
    if _alone(config, ("deltaformer", "softmax_attention")):
        kind = "memory"
        of_core = {"hidden_size": 12, "num_heads": 4}
        if config.core == "deltaformer":
            of_core |= {"gates": "scalar", "groups": 4}
    return Recipe(
        task, _spec(config, task, kind, core_options=of_core), "final_accuracy", batch_size=128,
        updates=4_000, learning_rate=0.01 if kind == "memory" else 1e-3, weight_decay=0.01, warm_up=128,
        to_zero=True, curriculum=task.longest,
    )  # fmt: skip


def _dag(config: ProbeConfig) -> Recipe:
    """Zhong et al. 2025, section 3.3, which leaves all settings open."""
    task = _task(config, Reachability)
    return Recipe(task, _spec(config, task), "sequence_accuracy", learning_rate=1e-3, warm_up=128, goal=0.999)


def _text(config: ProbeConfig) -> Recipe:
    """As the small models of Schlag et al. 2021 and Irie et al. 2021 in full context, of a size for a CPU:
    Adam, a warm-up, clipped gradients, the state carried over."""
    if "path" not in config.task_options:
        raise ValueError("--task text needs a file: --task-options path FILE")
    task = _task(config, Text)
    return Recipe(
        task, _spec(config, task, dropout=0.1, is_cut=True), "perplexity", batch_size=16, updates=20_000,
        learning_rate=5e-4, max_grad_norm=0.25, warm_up=500, to_zero=True, evaluate_every=500, span=task.span,
    )  # fmt: skip


_RECIPES = {
    "retrieval": _retrieval,
    "code": _code,
    "listops": _listops,
    "swap": _swap,
    "dag": _dag,
    "text": _text,
}
