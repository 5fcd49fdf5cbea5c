"""Processes that act and compute gradients beside the main one, each with its share of a run.

On a CPU one process a core, each with one thread, does more than one process whose operations are spread
over all cores: nothing waits at barriers, emulators and inference hand over to each other on the same core,
and the small operations of a recurrent core keep all cores busy too. The main process is the first of them;
it adds up the gradients and changes the weights, which all see in shared memory. What an update is does not
change.
"""

from __future__ import annotations

import multiprocessing
import signal
import traceback
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.multiprocessing  # teaches pickle to send tensors in shared memory by reference
from gymnasium.vector import VectorEnv
from torch import Tensor

from ....agents import Actor, Agent, Contribution, NonFiniteError
from ....agents.weights import SharedWeights
from ....envs import make_vector_env
from ...config import TrainConfig
from ...processes.machine import pin, prepare_process
from ...processes.supervision import how_it_ended
from ...runs import published
from ..plan import make_learner
from .sources import ActorError, Lockstep

_PATIENCE = 10.0
"""Seconds that a process may take to end when it is no longer needed."""


class Worker:
    """What a process beside the main one has: environments, an actor, the shared weights."""

    def __init__(
        self, config: TrainConfig, index: int, agent: Agent, gradients: Tensor, threads: int
    ) -> None:
        self.share = config
        self.agent = agent
        self.device = torch.device("cpu")
        self.learner = make_learner(agent, config, total_steps=1)  # it never steps
        self.weights = SharedWeights()
        env = make_env(config, threads)
        self.actors = [Actor(env, agent, self.weights, config.unroll_length, seed=config.seed * 1000 + index)]
        self._gradients = gradients
        self._batches = iter(Lockstep(self.actors, config.batch_size))

    def update(self, version: int) -> Contribution:
        """Act with the weights of `version`, and leave the gradients of this share in shared memory."""
        self.weights.version = self.learner.version = version  # which a NonFiniteError names
        contribution = self.learner.backward(next(self._batches))
        for view, parameter in zip(_views(self._gradients, self.agent), self.agent.parameters(), strict=True):
            if parameter.grad is None:
                view.zero_()
            else:
                view.copy_(parameter.grad)
        return contribution


def update(worker: Worker, version: int) -> Contribution:
    return worker.update(version)


def state_dict(worker: Worker) -> dict[str, Any]:
    return worker.actors[0].state_dict()


def load_state_dict(worker: Worker, state: Mapping[str, Any]) -> None:
    worker.actors[0].load_state_dict(state)


class Workers:
    """The processes beside the main one, all doing the same thing at the same time; there may be none."""

    def __init__(self, config: TrainConfig, count: int, threads: int, cores: Sequence[int] | None) -> None:
        """`config` is one process's share, `count` the number of processes, the main one included; each takes
        `threads` threads, and its own of the `cores` if they are given.
        """
        context = multiprocessing.get_context("spawn")  # a fork would copy the locks of running threads
        self._connections: list[Connection] = []
        self._processes = []
        self._waiting: set[int] = set()
        self._gradients: list[Tensor] = []
        self._agent: Agent | None = None
        for index in range(1, count):
            ours, theirs = context.Pipe()
            core = None if cores is None else cores[index]
            process = context.Process(
                target=_serve,
                args=(theirs, config, index, threads, core),
                name=f"worker-{index}",
                daemon=True,
            )
            process.start()
            theirs.close()  # so that its death ends the connection
            self._connections.append(ours)
            self._processes.append(process)

    def share(self, agent: Agent) -> None:
        """Put the agent's weights into shared memory and give them to all."""
        if not self._processes:
            return
        self._agent = agent.share_memory()
        size = sum(parameter.numel() for parameter in agent.parameters())
        for index in range(len(self._connections)):
            self._gradients.append(torch.empty(size).share_memory_())
            self._send(index, agent, self._gradients[-1])
        self.results()

    def start(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Let each worker begin `function(worker, *arguments)`, a function of a module."""
        for index in range(len(self._connections)):
            self._send(index, function, *arguments)

    def results(self) -> list[Any]:
        """Wait for what each returns.

        Raises ActorError or NonFiniteError for a worker that failed or died.
        """
        return [self._receive(index) for index in range(len(self._connections))]

    def _send(self, index: int, *order: Any) -> None:
        try:
            self._connections[index].send(order)
        except OSError as error:
            raise self._died(index) from error
        self._waiting.add(index)

    def _receive(self, index: int) -> Any:
        try:
            failed, result = self._connections[index].recv()
        except (EOFError, OSError) as error:
            raise self._died(index) from error
        self._waiting.discard(index)
        if not failed:
            return result
        message, trace = result
        if trace is None:
            raise NonFiniteError(message)
        raise ActorError(f"worker {index + 1} failed: {message}") from _Elsewhere(trace)

    def add_gradients(self) -> None:
        """Add what the workers left to the gradients of the agent's parameters."""
        if self._agent is None:
            return
        for gradients in self._gradients:
            for view, parameter in zip(_views(gradients, self._agent), self._agent.parameters(), strict=True):
                if parameter.grad is not None:
                    parameter.grad.add_(view)

    def state_dicts(self) -> list[dict[str, Any]]:
        """Of their actors."""
        self.start(state_dict)
        return self.results()

    def load_state_dicts(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Into their actors, as far as there are states."""
        for index, state in enumerate(states[: len(self._connections)]):
            self._send(index, load_state_dict, state)
            self._receive(index)

    def stage(self) -> str:
        """What is being waited for, for messages about what hangs."""
        return "".join(f", worker {index + 1}: busy" for index in sorted(self._waiting))

    def close(self) -> None:
        for connection in self._connections:
            connection.close()  # which ends the process, at its next look
        for process in self._processes:
            process.join(_PATIENCE)
            if process.is_alive():
                process.kill()
                process.join()

    def _died(self, index: int) -> ActorError:
        return ActorError(f"worker {index + 1} {how_it_ended(self._processes[index])}")


class _Elsewhere(Exception):
    """An exception of another process, as text."""


def make_env(config: TrainConfig, num_threads: int | None) -> VectorEnv:
    """The environments of a run, or of a process's share of it."""
    return make_vector_env(
        config.game,
        env_id=config.env,
        num_envs=config.num_envs,
        protocol=config.protocol or published.PROTOCOL,
        num_threads=num_threads,
    )


def _views(gradients: Tensor, agent: Agent) -> Sequence[Tensor]:
    """A flat tensor as tensors of the parameters' shapes."""
    parameters = list(agent.parameters())
    parts = gradients.split([parameter.numel() for parameter in parameters])
    return [part.view(parameter.shape) for part, parameter in zip(parts, parameters, strict=True)]


def _serve(connection: Connection, config: TrainConfig, index: int, threads: int, core: int | None) -> None:
    """The life of a worker: do what is asked until nobody asks any more."""
    for number in (signal.SIGINT, signal.SIGTERM):  # they are the main process's; its end ends this one
        signal.signal(number, signal.SIG_IGN)
    prepare_process(threads)
    torch.manual_seed(config.seed + index)
    if core is not None:
        pin(core)
    worker: Worker | None = None
    while True:
        try:
            order = connection.recv()
        except (EOFError, OSError):
            return
        try:
            if worker is None:
                agent, gradients = order
                worker, result = Worker(config, index, agent, gradients, threads), None
            else:
                function, *arguments = order
                result = function(worker, *arguments)
            answer: tuple[bool, Any] = False, result
        except NonFiniteError as error:
            answer = True, (str(error), None)
        except BaseException as error:
            answer = True, (repr(error.__cause__ or error), traceback.format_exc())
        try:
            connection.send(answer)
        except OSError:
            return
