"""`deltabeast train`: check the configuration, choose the engine, run."""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import replace

from ...agents import CheckpointError
from ...envs import available_cores
from ..config import TrainConfig
from ..errors import RunError, UsageError, wrong_input
from ..processes.machine import prepare_process, resolve_device
from ..runs.tracking import check_tracking
from .engine import Engine
from .local.engine import LocalEngine
from .plan import PAPER_SWEEP, checked_spec, make_env, resolve, worker_count
from .run import Run


def train(config: TrainConfig) -> None:
    """Train or resume the run, or the sweep of runs, that `config` describes.

    Raises UsageError before anything is written if the configuration is wrong, and RunError, with a
    checkpoint saved where that is possible, if the run had to stop. StoppedBySignal says that one of the
    signals in `supervision.REQUESTS` or `WARNINGS` ended it early, with a checkpoint.
    """
    prepare_process()
    check_tracking(config.track)
    try:
        if is_sweep(config):
            from .sweep import sweep

            sweep(config)
            return
        with ExitStack() as stack:
            Run(config, _engine(config, stack), stack).run()
    except CheckpointError as error:
        raise RunError(str(error)) from error


def resolved(config: TrainConfig) -> TrainConfig:
    """Return the configuration as it would run; begin nothing. Raises UsageError if it could not."""
    if is_sweep(config):
        from .sweep import runs_of

        runs_of(config)
        return config
    resolve(config)
    with wrong_input():
        if config.engine == "ray":
            from .ray.engine import check_options

            check_options(config)
        else:
            device = resolve_device(config.device)
            worker_count(config, device, config.threads or available_cores())
            # One environment suffices to validate the options.
            with closing(make_env(replace(config, num_envs=1, batch_size=1), 1)) as env:
                checked_spec(config, env)
    return config


def is_sweep(config: TrainConfig) -> bool:
    """Return whether several runs are asked for. Raises UsageError for an engine that makes one alone."""
    several = bool(config.cores) or config.seeds is not None or config.game == PAPER_SWEEP
    if several and config.engine != "ray":
        raise UsageError(f"--cores, --seeds and --game {PAPER_SWEEP} make a sweep, which needs --engine ray")
    return several


def _engine(config: TrainConfig, stack: ExitStack) -> Engine:
    resolve(config)
    if config.engine == "ray":
        from .ray.engine import RayEngine

        return RayEngine(config, stack)
    return LocalEngine(config, stack)
