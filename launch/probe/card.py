"""`deltabeast card`: what each memory can do, on one page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..comparison.probes import Probe, labelled, read_probe
from ..comparison.reading import read_runs
from ..comparison.runs import Run
from ..config import CardConfig, ProbeConfig
from ..errors import UsageError
from ..processes.machine import prepare_process
from .card_page import Model, write_page
from .result import RESULT
from .run import ProbeRun


@dataclass(frozen=True)
class Trial:
    """One run of a probe, of a core in its shell, from its beginning to its end."""

    task: str
    options: Mapping[str, Any]
    updates: int
    chance: float
    """the accuracy without memory"""

    def share(self, accuracy: float) -> float:
        """Return how much is right: 0 for what needs no memory, 1 for all."""
        return min(max((accuracy - self.chance) / (1 - self.chance), 0.0), 1.0)

    def is_that_of(self, run: Probe) -> bool:
        same = run.task.split()[0] == self.task and all(
            str(run.options.get(name)) == str(value) for name, value in self.options.items()
        )
        enough = run.updates >= self.updates or run.value >= GOAL
        return same and run.in_shell and run.ended and enough


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
        for line in problems:
            print(line)
    elif config.cores:
        probes, played = _train(config), []
    else:
        raise UsageError("no core given; say deltabeast card --cores lstm delta_net rdn")
    models = _models(probes, played, BUDGETS[config.budget])
    if not models:
        raise UsageError(
            f"none of these is a finished run of the {config.budget} card, or of train; deltabeast card "
            "--cores ... trains what is missing"
        )
    return write_page(config.out, models)


def _train(config: CardConfig) -> list[Probe]:
    trials = [trial for each in BUDGETS[config.budget].values() for trial in each]
    return [_trained(config, core, trial) for core in config.cores for trial in trials]


def _trained(config: CardConfig, core: str, trial: Trial) -> Probe:
    words = [trial.task, *(f"{key}-{value}" for key, value in trial.options.items())]
    name = "-".join([*words, f"{trial.updates}-updates"])
    probe = ProbeConfig(
        task=trial.task,  # type: ignore[arg-type]
        task_options=dict(trial.options),
        core=core,
        seed=config.seed,
        updates=trial.updates,
        shell="on",
        device=config.device,
        run_dir=config.out / "runs" / name / core / f"seed-{config.seed}",
    )
    assert probe.run_dir is not None
    if not (probe.run_dir / RESULT).is_file():
        with ExitStack() as stack:
            ProbeRun(probe, stack).run()
    run = read_probe(probe.run_dir)
    assert isinstance(run, Probe), run
    return run


def _models(
    probes: Sequence[Probe], played: Sequence[Run], budget: Mapping[str, Sequence[Trial]]
) -> dict[str, Model]:
    """Put together what runs say of each core with its options, the mean over trials and seeds."""
    found: dict[str, Model] = {}
    for run in probes:
        for ability, trials in budget.items():
            shares = [trial.share(run.value) for trial in trials if trial.is_that_of(run)]
            if shares:
                model = found.setdefault(run.model, Model(run.core, run.core_options))
                model.shares.setdefault(ability, []).extend(shares)
    for other in played:
        returns = [row["game_return"] for row in other.rows if "game_return" in row]
        if returns:
            words = str(other.settings.get("core_options", "default")).replace("default", "").split()
            options = dict(zip(words[::2], words[1::2], strict=True))
            model = found.setdefault(labelled(other.core, options), Model(other.core, options))
            model.returns.setdefault(other.game.split(":")[-1], []).append(returns[-1])
    return found
