"""`--track`: what TensorBoard is shown, sent to a tracking service as well.

A run goes on in the tracked run that it began: RUN/tracking.json remembers which. logs.csv has every row,
whatever becomes of the service.
"""

from __future__ import annotations

import importlib.util
import json
import os
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from ...agents import files
from ...agents.reading import read_object
from ..errors import RunError, UsageError, one_line
from .sinks import FailSafeSink, Options, Sink

Service = Literal["wandb", "mlflow"]
NAMES = "tracking.json"
_WHERE = {"wandb": "WANDB_MODE or `wandb login`", "mlflow": "MLFLOW_TRACKING_URI"}
_PACKAGE = {"wandb": "wandb", "mlflow": "mlflow-skinny"}
_PROJECT = "deltabeast"


def check_tracking(service: Service | None) -> None:
    """Raise UsageError if the service's package is not installed."""
    if service and importlib.util.find_spec(service) is None:
        raise UsageError(f"--track {service} needs its package: pip install {_PACKAGE[service]}")


def open_tracker(service: Service, run_dir: Path, resumed: bool, say: Callable[[str], None]) -> Sink:
    """Begin a tracked run, or go on in that of a run that is `resumed`.

    Raises RunError in one line if the service refuses. What it refuses later is said once, and training goes
    on.
    """
    names = read_object(run_dir / NAMES)
    identity = names.get(service) if resumed else None
    try:
        tracker = _SERVICES[service](run_dir, identity)
    except Exception as error:  # of a package with errors of its own
        anew = f"remove {run_dir / NAMES} to begin a tracked run anew, " if identity else ""
        raise RunError(
            f"--track {service}: {one_line(error)}; mend {_WHERE[service]}, {anew}or train without --track"
        ) from error
    if tracker.identity != identity:
        files.write(run_dir / NAMES, json.dumps(names | {service: tracker.identity}) + "\n")
    return FailSafeSink(f"--track {service}", lambda: tracker, say)


class _Service(Sink):
    identity: str
    """what the service calls the run"""


class _Wandb(_Service):
    def __init__(self, run_dir: Path, identity: str | None) -> None:
        import wandb

        self.identity = identity or uuid.uuid4().hex[:8]
        self._run: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT", _PROJECT),
            id=self.identity,
            resume="allow",
            name=_name(run_dir),
            group="/".join(run_dir.parts[-3:-1]) or None,
            dir=run_dir,
            settings=wandb.Settings(console="off", silent=True),
        )
        # Rows after a resume may begin again before the last one: a step is a number as any other.
        self._run.define_metric("*", step_metric="step")

    def options(self, options: Options, headline: Sequence[str]) -> None:
        self._run.config.update(dict(options), allow_val_change=True)

    def log(self, step: int, metrics: Mapping[str, float], at: float) -> None:
        self._run.log({"step": step, **metrics})

    def close(self) -> None:
        self._run.finish()


class _Mlflow(_Service):
    def __init__(self, run_dir: Path, identity: str | None) -> None:
        # A server that is not there is said within seconds instead of minutes.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
        from mlflow import MlflowClient

        self._client = MlflowClient()
        self._sent: Any = None
        if identity is None:
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME", _PROJECT)
            found = self._client.get_experiment_by_name(name)
            experiment = found.experiment_id if found else self._client.create_experiment(name)
            identity = self._client.create_run(experiment, run_name=_name(run_dir)).info.run_id
        else:
            self._client.update_run(identity, status="RUNNING")
        self.identity = identity

    def options(self, options: Options, headline: Sequence[str]) -> None:
        from mlflow.entities import Param

        there = self._client.get_run(self.identity).data.params  # which can be written only once
        params = [Param(name, str(value)) for name, value in options.items() if name not in there]
        self._client.log_batch(self.identity, params=params)

    def log(self, step: int, metrics: Mapping[str, float], at: float) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        row = [Metric(name, value, now, step) for name, value in metrics.items()]
        self._sent = self._client.log_batch(self.identity, metrics=row, synchronous=False)

    def close(self) -> None:
        if self._sent is not None:
            self._sent.wait()
        self._client.set_terminated(self.identity)


_SERVICES: Mapping[str, Callable[[Path, str | None], _Service]] = {"wandb": _Wandb, "mlflow": _Mlflow}


def _name(run_dir: Path) -> str:
    return "/".join(run_dir.parts[-3:])
