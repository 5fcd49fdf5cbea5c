"""A sweep: games x cores x seeds, each a run of the local engine on one node, queued on a cluster."""

from __future__ import annotations

import itertools
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from rich.console import Console

from ...agents import files, find_checkpoints
from ...cores.registry import read_core_options
from ...envs import PAPER_GAMES, canonical_game
from .. import output
from ..config import TrainConfig
from ..errors import RunError, StoppedBySignal, UsageError, require, wrong_input
from ..processes.machine import prepare_process
from ..processes.supervision import stop_signals
from ..runs.directory import default_run_dir
from ..units import parse_steps
from .env_options import read_env_options
from .local.engine import LocalEngine
from .plan import PAPER_SWEEP, check, resolve
from .ray.cluster import Cluster, Handle, Location, ProcessDied, Reply, locate
from .ray.restarts import Restarts
from .run import Run

_SAVE_TIMEOUT = 120.0
"""Seconds that runs may take to save when the sweep is asked to stop."""
_STATUS = 60.0
"""Seconds between lines that say how far the sweep is."""


@wrong_input()
def runs_of(config: TrainConfig) -> list[TrainConfig]:
    """List the runs of a sweep, seed by seed, so that early results compare all games and cores.

    Raises UsageError for invalid options.
    """
    require(config, "seeds", least=1)
    if config.num_learners != 1 or config.actor_gpus:
        raise ValueError("--num-learners, --actor-gpus: each run of a sweep is whole on one node; omit them")
    if config.deterministic and config.num_workers not in (None, 1):
        raise ValueError(
            f"--num-workers {config.num_workers}: --deterministic leaves it at 1; omit one of them"
        )
    games = list(PAPER_GAMES) if config.game == PAPER_SWEEP else [config.game]
    cores = config.cores or (config.core,)
    seeds = range(1, config.seeds + 1) if config.seeds is not None else [config.seed]
    runs = []
    for seed, game, core in itertools.product(seeds, games, cores):
        options = read_core_options(core, config.core_options)
        name = game if game is None else canonical_game(game)
        run = replace(config, game=name, core=core, core_options=options, seed=seed, cores=(), seeds=None)
        run.env_options = read_env_options(name, config.env, config.env_options)
        run.engine, run.ray_address = "local", None
        run.actor_cpus = run.learner_cpus = 1.0  # cleared so that a run can be resumed without Ray
        check(run)
        path = default_run_dir(run)
        root = config.run_dir or Path("runs")
        run.run_dir = (root / path.relative_to("runs")).resolve()
        runs.append(run)
    return runs


def is_finished(run: TrainConfig) -> bool:
    assert run.run_dir is not None
    saved = find_checkpoints(run.run_dir)
    return bool(saved) and saved[-1].step >= parse_steps(run.steps)


class RunProcess:
    """A process of the cluster that trains one run, with as many threads as it has reserved cores."""

    def __init__(self, cpus: float) -> None:
        self._cores = max(1, int(cpus))
        self._stop: threading.Event | None = None
        self._stopped = False

    def begin(self, marker: Path) -> Location:
        """Raises RunError if this node does not see the sweep's files."""
        place = locate()
        if not marker.exists():
            raise RunError(
                f"node {place.node} does not see {marker.parent}; give a --run-dir on a file system that all "
                "nodes share"
            )
        return place

    def train(self, run: TrainConfig) -> tuple[int, float | None]:
        """Train, or go on; return the agent steps reached and the mean game return."""
        prepare_process(self._cores)
        with ExitStack() as stack:
            resolve(run)
            engine = LocalEngine(run, stack, self._cores)
            self._stop = engine.stop
            if self._stopped:
                engine.stop.set()
            training = Run(run, engine, stack, Console(quiet=True))
            training.run()
            return engine.steps, training.scores.row().get("game_return")

    def stop(self) -> None:
        """Let the run save and end."""
        self._stopped = True
        if self._stop is not None:
            self._stop.set()


@dataclass
class Job:
    """One run of a sweep, as the sweep sees it."""

    run: TrainConfig
    handle: Handle = None
    location: Location | None = None
    again_at: float | None = 0.0
    """monotonic time from which it may be started; None once it has been"""
    restarts: Restarts = field(default_factory=Restarts)

    def __str__(self) -> str:
        assert self.run.run_dir is not None
        return "/".join(self.run.run_dir.parts[-3:])


class Sweep:
    """Runs that wait, run, and end; Ray decides which node takes the next."""

    def __init__(
        self, cluster: Cluster, config: TrainConfig, runs: list[TrainConfig], say: Callable[[str], None]
    ) -> None:
        self.waiting = [Job(run) for run in runs]
        self.open: dict[int, Job] = {}
        self.finished = 0
        self.failed: list[str] = []
        self._cluster, self._config = cluster, config
        self._stopping = False
        self._marker = (config.run_dir or Path("runs")).resolve() / f".sweep-{uuid.uuid4().hex}"
        self._say = say
        self._numbers = itertools.count()

    @contextmanager
    def marked(self) -> Iterator[None]:
        """Keep a file in the folder, by which nodes tell whether they see it."""
        self._marker.parent.mkdir(parents=True, exist_ok=True)
        files.create(self._marker, b"")
        try:
            yield
        finally:
            files.remove(self._marker)

    def start_due(self) -> None:
        now = time.monotonic()
        for job in [job for job in self.waiting if job.again_at is not None and job.again_at <= now]:
            self.waiting.remove(job)
            cpus, gpus = needs(self._config, self._cluster.total())
            job.handle = self._cluster.start(RunProcess, cpus, cpus=cpus, gpus=gpus, groups={"stop": 1})
            number = next(self._numbers)
            self.open[number] = job
            self._cluster.call(job.handle, "begin", self._marker, tag=("begin", number))

    def take(self, reply: Reply) -> None:
        what, number = reply.tag
        job = self.open.get(number)
        if job is None:
            return
        if reply.error is not None:
            self._ended(number)
            self._failed(job, reply.error)
        elif what == "begin" and self._stopping:
            self._ended(number)
        elif what == "begin":
            job.location = reply.value
            job.restarts.began()
            self._say(f"{job} runs on {job.location}")
            self._cluster.call(job.handle, "train", job.run, tag=("train", number))
        elif what == "train":
            self._ended(number)
            steps, score = reply.value
            progress = f"step {steps:,}, game return {'none' if score is None else f'{score:,.1f}'}"
            if steps >= parse_steps(job.run.steps):
                self.finished += 1
                self._say(f"{job} finished: {progress}")
            else:
                self._say(f"{job} stopped: {progress}")

    def stop(self) -> None:
        """Let running jobs save and end, and forget the others."""
        self._stopping = True
        self.waiting.clear()
        for number, job in list(self.open.items()):
            if job.location is None:
                self._ended(number)
            else:
                self._cluster.call(job.handle, "stop", tag=("stop", -1), group="stop")

    def status(self) -> str:
        running = sum(job.location is not None for job in self.open.values())
        queued = len(self.waiting) + len(self.open) - running
        return f"{self.finished} finished, {running} running, {queued} queued, {len(self.failed)} failed"

    def _ended(self, number: int) -> None:
        self._cluster.kill(self.open.pop(number).handle)

    def _failed(self, job: Job, error: Exception) -> None:
        delay = job.restarts.died() if isinstance(error, ProcessDied) else None
        place = "" if job.location is None else f" on {job.location}"
        if delay is None or self._stopping:
            self.failed.append(str(job))
            self._say(f"{job} failed{place}: {error}")
            return
        self._say(f"{job} died{place}: {error}; it goes on in {delay:g} s")
        job.location, job.again_at = None, time.monotonic() + delay
        self.waiting.append(job)


def needs(config: TrainConfig, total: dict[str, float]) -> tuple[float, float]:
    """Return the CPU cores and GPUs that a run reserves: a GPU if there are any, else a core per worker."""
    if config.device.startswith("cuda") or (config.device == "auto" and total["GPU"] >= 1):
        return config.learner_cpus + config.num_actors * config.actor_cpus, 1.0
    return float(config.threads or config.num_workers or 1), 0.0


def sweep(config: TrainConfig, console: Console | None = None) -> None:
    """Train all runs of a sweep that are not finished yet.

    Raises UsageError before anything is started, RunError at the end if a run failed, and StoppedBySignal if
    the sweep was asked to stop; the same command goes on.
    """
    console = console or Console()
    stop, say = threading.Event(), partial(output.say, console)
    runs = runs_of(config)
    open_ones = [run for run in runs if not is_finished(run)]
    say(f"{len(runs)} runs, {len(runs) - len(open_ones)} of them finished before")
    if not open_ones:
        return
    with Cluster(config.ray_address) as cluster, stop_signals(stop, on_terminal=False) as asked:
        total, largest = cluster.total(), cluster.largest_node()
        cpus, gpus = needs(config, total)
        if cpus > largest["CPU"] or gpus > largest["GPU"]:
            raise UsageError(
                f"a run takes {cpus:g} CPU and {gpus:g} GPU: no node has more than {largest['CPU']:g} and "
                f"{largest['GPU']:g}; give a smaller --num-workers or --num-actors, or --device cpu"
            )
        for run in open_ones:
            if gpus == 0.0 and run.threads is None:  # one process a core, of the cores that it reserves
                run.num_workers = run.num_workers or 1
        queue = Sweep(cluster, config, open_ones, say)
        with queue.marked():
            _work(cluster, queue, stop, say)
    if asked and (queue.open or queue.finished < len(open_ones)):
        raise StoppedBySignal(asked[0])
    if queue.failed:
        raise RunError(f"{len(queue.failed)} of {len(runs)} runs failed: {', '.join(queue.failed)}")


def _work(cluster: Cluster, queue: Sweep, stop: threading.Event, say: Callable[[str], None]) -> None:
    said = time.monotonic()
    stopping_since: float | None = None
    while queue.open or queue.waiting:
        if stop.is_set() and stopping_since is None:
            stopping_since = time.monotonic()
            say("stopping: the runs save; press Ctrl-C again to stop immediately")
            queue.stop()
        if stopping_since is not None and time.monotonic() - stopping_since > _SAVE_TIMEOUT:
            say(f"{queue.status()}: not waited for any longer")
            return
        queue.start_due()
        reply = cluster.next_reply(0.25)
        if reply is not None and reply.tag[0] != "stop":
            queue.take(reply)
        if time.monotonic() - said > _STATUS:
            said = time.monotonic()
            say(queue.status())
    say(queue.status())
