"""`deltabeast card`: what each memory can do, on one page."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median_low
from typing import Any

from ..comparison.grouping import commonest_protocol, unusual_settings
from ..comparison.probes import Probe, labelled, read_probe, usual_options
from ..comparison.reading import read_runs
from ..comparison.runs import Run
from ..comparison.scores import about_equal
from ..config import CardConfig, ProbeConfig
from ..errors import UsageError
from ..output import tell
from ..processes.machine import prepare_process
from ..units import count
from .card_page import Model, write_page
from .recipe import make_recipe
from .result import RESULT
from .run import ProbeRun


@dataclass(frozen=True)
class Trial:
    """One run of a probe, of a core in its backbone (`--shell on`), from its beginning to its end."""

    task: str
    options: Mapping[str, Any]
    updates: int
    chance: float
    """the accuracy without memory"""

    def share(self, accuracy: float) -> float:
        """Return how much is right: 0 for what needs no memory, 1 for all."""
        return min(max((accuracy - self.chance) / (1 - self.chance), 0.0), 1.0)

    def is_of(self, run: Probe) -> bool:
        """Return whether a run is of the same task, all options of it included."""
        label = labelled(self.task, {**usual_options(self.task), **self.options})
        return run.task == label and "variant" not in run.settings

    def refuses(self, run: Probe) -> str | None:
        """Say why a run of the same task does not count; None if it does."""
        if not run.in_backbone:
            return "it is of a memory without its backbone; a card compares cores, --shell on"
        if not run.ended:
            return "it has not ended; its own command goes on with it"
        if run.updates < self.updates and run.value < GOAL:
            return f"it had {count(run.updates, 'update')}, not {self.updates:,}"
        return None

    def __str__(self) -> str:
        return labelled(self.task, self.options, {"updates": self.updates})


def _retrieval(size: int, updates: int, setting: int = 1) -> Trial:
    return Trial("retrieval", {"setting": setting, "size": size}, updates, 1 / size)


GOAL = 0.999
"""the accuracy at which a run may have ended early"""
_GUESS = 0.16
"""how often the commonest values of a list, 0 and 9, are right"""

BUDGETS: dict[str, dict[str, tuple[Trial, ...]]] = {
    "quick": {
        "capacity": (_retrieval(20, 800), _retrieval(60, 1200)),
        "overwriting": (_retrieval(20, 800, setting=2),),
        "tracking": (Trial("swap", {"longest": 16}, 1000, 1 / 5),),
    },
    "full": {
        "capacity": tuple(_retrieval(size, 10_000) for size in (20, 60, 100, 200)),
        "overwriting": tuple(_retrieval(size, 10_000, setting=2) for size in (20, 60, 100)),
        "tracking": (Trial("swap", {"longest": 256}, 4000, 1 / 5),),
        "hierarchy": (Trial("listops", {"depth": 3}, 6000, _GUESS),),
    },
}
"""What is tried of each ability of `card_page.ABILITIES`."""


def make_card(config: CardConfig) -> Path:
    """Train what is missing, then draw; with runs, draw alone. Returns the path of the page.

    Raises UsageError if there is nothing to draw, RunError as `probe` does.
    """
    prepare_process()
    if config.runs and config.cores:
        raise UsageError("give --cores to train or runs to draw, not both")
    if config.runs:
        played, probes, problems = read_runs(config.runs)
    elif config.cores:
        probes, played, problems = _train(config), [], []
    else:
        raise UsageError("no core given; say deltabeast card --cores lstm delta_net rdn")
    models = _models(probes, played, BUDGETS[config.budget], problems)
    tell(*problems)
    if not models:
        raise UsageError(
            f"none of these is a finished run of the {config.budget} card, or of train; deltabeast card "
            "--cores ... trains what is missing"
        )
    return write_page(config.out, models)


def _train(config: CardConfig) -> list[Probe]:
    trials = [(ability, trial) for ability, each in BUDGETS[config.budget].items() for trial in each]
    probes = [(ability, _probe(config, core, trial)) for core in config.cores for ability, trial in trials]
    for _, probe in probes:
        make_recipe(probe)  # of all, before the first is trained
    return [
        _trained(probe, f"{probe.core}, {ability} ({number} of {len(probes)})")
        for number, (ability, probe) in enumerate(probes, 1)
    ]


def _probe(config: CardConfig, core: str, trial: Trial) -> ProbeConfig:
    words = [trial.task, *(f"{key}-{value}" for key, value in trial.options.items())]
    name = "-".join([*words, f"{trial.updates}-updates"])
    return ProbeConfig(
        task=trial.task,  # type: ignore[arg-type]
        task_options=dict(trial.options),
        core=core,
        seed=config.seed,
        updates=trial.updates,
        shell="on",
        device=config.device,
        run_dir=config.out / "runs" / name / core / f"seed-{config.seed}",
    )


def _trained(probe: ProbeConfig, named: str) -> Probe:
    assert probe.run_dir is not None
    if not (probe.run_dir / RESULT).is_file():
        tell(named)
        with ExitStack() as stack:
            ProbeRun(probe, stack).run()
    run = read_probe(probe.run_dir)
    if isinstance(run, str):  # an earlier version made it
        raise UsageError(f"{run}; give another --out")
    return run


def _models(
    probes: Sequence[Probe], played: Sequence[Run], budget: Mapping[str, Sequence[Trial]], problems: list[str]
) -> dict[str, Model]:
    """Put together what runs say of each core with its options and settings, and in lines what was not used.

    An ability is the mean over its trials, each the mean over seeds, and blank unless all were tried.
    """
    found: dict[str, Model] = {}
    tried: defaultdict[str, list[Probe]] = defaultdict(list)
    for run in probes:
        trial = next((each for trials in budget.values() for each in trials if each.is_of(run)), None)
        if reason := trial.refuses(run) if trial else f"this card does not try {run.task}":
            problems.append(f"{run.path}: left out; {reason}")
            continue
        settings = {name: value for name, value in run.settings.items() if name not in ("updates", "shell")}
        name = labelled(run.core, run.core_options, settings)
        found.setdefault(name, Model(run.core, run.core_options))
        tried[name].append(run)
    for name, runs in tried.items():
        for ability, trials in budget.items():
            by_trial = [(each, [run for run in runs if each.is_of(run)]) for each in trials]
            missing = [str(trial) for trial, of_it in by_trial if not of_it]
            if not missing:
                found[name].shares[ability] = [_share(trial, of_it) for trial, of_it in by_trial]
            elif len(missing) < len(trials):
                problems.append(f"{name}: {ability} is blank; there is no run of {', nor '.join(missing)}")
    _add_returns(found, played, problems)
    return found


def _add_returns(found: dict[str, Model], played: Sequence[Run], problems: list[str]) -> None:
    """Add the mean returns at the end of training, of runs of about as many steps as others of the core with
    these settings.
    """
    ended: list[Run] = []
    protocols: defaultdict[str, list[str]] = defaultdict(list)
    for run in played:
        if any("game_return" in row for row in run.rows):
            ended.append(run)
            protocols[run.game] += [run.protocol] if run.protocol else []
        else:
            problems.append(f"{run.path}: left out; no game has ended")
    usual_protocol = {game: commonest_protocol(names) for game, names in protocols.items()}
    grouped: defaultdict[tuple[str, str], list[Run]] = defaultdict(list)
    for run, settings in zip(ended, unusual_settings(ended), strict=True):
        if run.protocol != usual_protocol[run.game]:
            others = usual_protocol[run.game]
            problems.append(f"{run.path}: left out; it was trained under {run.protocol}, others {others}")
            continue
        name = labelled(run.core, run.core_options)
        if settings:
            name += f" trained with {', '.join(f'{key} {value}' for key, value in settings.items())}"
        grouped[name, run.game.split(":")[-1]].append(run)
    usual = {cell: median_low(run.last_step for run in alike) for cell, alike in grouped.items()}
    for (name, game), alike in grouped.items():
        model = found.setdefault(name, Model(alike[0].core, alike[0].core_options))
        model.returns[game] = []
        for run in alike:
            if about_equal(run.last_step, usual[name, game]):
                last = next(row for row in reversed(run.rows) if "game_return" in row)
                model.returns[game].append(last["game_return"])
            else:
                problems.append(
                    f"{run.path}: left out; it is at step {run.last_step:,}, others of {name} at "
                    f"{usual[name, game]:,}"
                )
    problems += _unequal(usual)


def _unequal(usual: Mapping[tuple[str, str], int]) -> list[str]:
    """Say where the cores on a game trained for different numbers of steps."""
    lines = []
    for game in dict.fromkeys(game for _, game in usual):
        steps = {name: step for (name, other), step in usual.items() if other == game}
        if not all(about_equal(step, max(steps.values())) for step in steps.values()):
            named = ", ".join(f"{name} {step:,}" for name, step in steps.items())
            lines.append(f"{game}: trained for different steps: {named}")
    return lines


def _share(trial: Trial, runs: Sequence[Probe]) -> float:
    """Return the mean share of the runs that had the trial's updates, or else the fewest beyond."""
    most = max(trial.updates, min(run.updates for run in runs))
    return fmean(trial.share(run.value) for run in runs if run.updates <= most)
