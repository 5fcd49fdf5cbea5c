"""`deltabeast probe`: train a model of sequences on a small task, and say what it reached."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import product

import numpy as np

from ..config import ProbeConfig
from ..errors import UsageError
from ..output import tell
from ..processes.machine import prepare_process
from ..runs.tracking import check_tracking
from ..tables import plain_table, show
from .recipe import make_recipe
from .run import ProbeRun
from .snr import KERNELS, measure_noise

DIMENSIONS = (16, 64, 256)
ROUNDS = 400


def probe(config: ProbeConfig) -> None:
    """Raises UsageError before anything is written if the configuration is wrong, and RunError if the run had
    to stop."""
    if config.task == "snr":
        _print_noise(config)
        return
    prepare_process()
    check_tracking(config.track)
    with ExitStack() as stack:
        ProbeRun(config, stack).run()


def resolved(config: ProbeConfig) -> ProbeConfig:
    """Return the configuration, with nothing begun. Raises UsageError if it could not run."""
    if config.task != "snr":
        make_recipe(config)
    return config


def _print_noise(config: ProbeConfig) -> None:
    unset = ProbeConfig("snr", seed=config.seed)
    if given := [name for name, value in vars(config).items() if value != getattr(unset, name)]:
        raise UsageError(f"--{given[0].replace('_', '-')}: --task snr trains nothing; omit it")
    rng = np.random.default_rng(config.seed)
    table = plain_table("kernel", "key size", "pairs", "noise", "standard error", "derived", "as printed")
    for kernel, size in product(KERNELS, DIMENSIONS):
        noise = measure_noise(kernel, size, size, ROUNDS, rng)
        table.add_row(kernel, str(size), str(size), *(f"{number:.3g}" for number in noise))
    show(table)
    tell(
        "Noise: what is read of other keys over what is read of the value, both squared, with as many pairs "
        "as a key has numbers."
    )
