"""Processes that act and compute gradients beside the main one, each with its share of a run.

On a CPU one process a core, each with one thread, does more than one process whose operations are spread
over all cores: nothing waits at barriers, emulators and inference hand over to each other on the same core,
and the small operations of a recurrent core keep all cores busy too. What they compute they leave in shared
memory and add up together, a part each, since one of sixteen would make the others wait for it
(results/throughput/scaling.md). The main process is the first of them; it changes the weights, which are in
shared memory, too. The update is unchanged, except that each draws minibatches, and replays, from its own
share.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ....agents import Actor, Agent, AgentSpec, NonFiniteError, PartialUpdate, Unroll
from ....agents.accelerate import accelerate
from ....agents.weights import SharedWeights
from ...config import TrainConfig
from ...errors import trace_of
from ...processes.child import Child, ChildDied, RemoteTraceback, receive_file, send
from ...processes.machine import pin, prepare_process
from ..cpu_parts import cache_spec
from ..engine import ActorError, actor_failed
from ..plan import env_shard, make_env, make_learner, per_process, returns_discount
from ..randomness import actor_seed, seed_generators
from ..reuse import batches_of_updates, make_replay
from ..threads import operation_threads
from .contributions import Contributions
from .shared import Room, Shared, new_file
from .sources import Lockstep

_PATIENCE = 10.0
"""Seconds that a process may take to end when it is no longer needed."""


class Answer(NamedTuple):
    """What a worker sends back."""

    result: Any
    """what was asked for; of a failure (message, traceback), without a traceback for a NonFiniteError, which
    the main process raises as such"""
    failed: bool = False


class Worker:
    """The environments, the actor and the shared weights of a process beside the main one."""

    def __init__(
        self,
        config: TrainConfig,
        count: int,
        index: int,
        start_step: int,
        agent: Agent,
        contributions: Contributions,
        parts: Collection[str],
        threads: int,
    ) -> None:
        """`config` is the run's, `count` the number of processes, of which this one is number `index`."""
        self.process_config, shard = per_process(config, count), env_shard(config, count, index)
        self.agent = agent
        self.device = torch.device("cpu")
        torch.set_num_threads(operation_threads(config, threads, agent))
        self.learner = make_learner(agent, config, total_steps=1, shares_batches=True)  # it never steps
        self.weights = SharedWeights()
        env = make_env(self.process_config, threads, shard)
        self.actors = [
            Actor(
                env,
                agent,
                self.weights,
                config.unroll_length,
                seed=actor_seed(config.seed, 0, start_step=start_step),
                inference=accelerate(
                    self.learner, parts, cache_spec(self.process_config, self.device, agent)
                ),
                env_shard=shard,
                discount=returns_discount(config),
            )
        ]
        self.replay = make_replay(self.process_config, agent, index)
        self._contributions = contributions
        self._updates = self._batches()

    def update(self, version: int, reward_divisor: float) -> PartialUpdate:
        """Act with the weights of `version`; leave this share's gradients and moments in shared memory."""
        self.learner.set_reward_divisor(reward_divisor)
        if version != self.weights.version:
            # The main process wrote the weights through shared memory, past this process's version counters,
            # by which caches (agents/cpu/cache.py, weight_transforms.py) know what they were computed from.
            torch.autograd.graph.increment_version([*self.agent.parameters(), *self.agent.buffers()])
        self.weights.version = self.learner.version = version  # it also seeds what is drawn
        own = self._contributions.leave(self.learner.backward(next(self._updates)))
        # Pickle would put tensors into shared memory.
        return replace(own, targets=own.targets.numpy() if isinstance(own.targets, Tensor) else own.targets)

    def add_part(self, counted: bool) -> None:
        """Add up this process's part of what all have left."""
        self._contributions.add_part(counted)

    def _batches(self) -> Iterator[Unroll]:
        for batch in Lockstep(self.actors, self.process_config.batch_size):
            yield from batches_of_updates(self.process_config, batch, self.learner.version, self.replay)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.actors[0].load_state_dict(state)


def _total(connection: Connection, tensor: Tensor) -> Tensor:
    """Return the sum of this process's tensor and all others', which the main process makes."""
    send(connection, Answer(tensor.numpy()))
    (total,) = connection.recv()
    return torch.from_numpy(total)


class Workers:
    """The processes beside the main one, all doing the same thing at the same time; there may be none."""

    def __init__(
        self,
        config: TrainConfig,
        count: int,
        threads: int,
        cpus: Sequence[int] | None = None,
        start_step: int = 0,
    ) -> None:
        """`count` is the number of processes, the main one included; each has `threads` threads and,
        given `cpus`, is pinned to one of them. The run continues at `start_step`.
        """
        own: Sequence[int | None] = cpus or [None] * count
        self._children = [
            Child(f"worker {index}", _serve, config, count, index, start_step, threads, own[index])
            for index in range(1, count)
        ]
        self._waiting: set[int] = set()
        self._contributions: Contributions | None = None

    def publish_agent(self, agent: Agent, parts: Collection[str]) -> None:
        """Share the agent's weights with all, and what C may compute of it.

        Raises OSError if there is no memory for it.
        """
        if not self._children:
            return
        file = new_file(agent, 1 + len(self._children))
        try:
            shared = Shared(file, agent)
            shared.publish()
            self._contributions = Contributions(shared.rooms(1 + len(self._children)), agent, 0)
            for index, child in enumerate(self._children):
                self._send(index, agent.spec, agent.autocast_dtype, parts)
                child.send_file(file)
        except ChildDied as error:
            raise ActorError(str(error)) from None
        finally:
            os.close(file)
        self.results()

    def start(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Let each worker begin `function(worker, *arguments)`, such as a method of `Worker`."""
        self._send_all(function, *arguments)

    def results(self) -> list[Any]:
        """Wait for the results of all.

        Raises ActorError or NonFiniteError for a worker that failed or died.
        """
        return [self._receive(index) for index in range(len(self._children))]

    def total(self, tensor: Tensor) -> Tensor:
        """Return the sum of the main process's tensor and of those that all workers have sent meanwhile.

        Raises as `results` does.
        """
        tensor = sum(map(torch.from_numpy, self.results()), start=tensor)
        self._send_all(tensor.numpy())
        return tensor

    def _send_all(self, *order: Any) -> None:
        for index in range(len(self._children)):
            self._send(index, *order)

    def _send(self, index: int, *order: Any) -> None:
        try:
            self._children[index].send(order)
        except ChildDied as error:
            raise ActorError(str(error)) from None
        self._waiting.add(index)

    def _receive(self, index: int) -> Any:
        try:
            answer: Answer = self._children[index].receive()
        except ChildDied as error:
            raise ActorError(str(error)) from None
        self._waiting.discard(index)
        if not answer.failed:
            return answer.result
        message, trace = answer.result
        if trace is None:
            raise NonFiniteError(message)
        raise ActorError(message) from RemoteTraceback(trace)

    def leave(self, own: PartialUpdate) -> PartialUpdate:
        """Leave the main process's gradients and moments where the workers leave theirs."""
        return self._contributions.leave(own) if self._contributions else own

    def add_up(self, updates: Sequence[PartialUpdate]) -> list[PartialUpdate]:
        """Add up what all processes have left: gradients in the parameters' `grad`, moments in the first of
        these updates.

        Raises as `results` does.
        """
        own, *others = updates
        if self._contributions:
            counted = own.num_steps > 0
            self.start(Worker.add_part, counted)
            self._contributions.add_part(counted)
            self.results()
            own = self._contributions.take(own)
        return [own, *others]

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the main process's actor's state: only RNG and progress, identical in all workers."""
        self.start(Worker.load_state_dict, state)
        self.results()

    def stage(self) -> str:
        """Say which workers are waited for, for messages about what hangs."""
        return "".join(f", worker {index + 1}: busy" for index in sorted(self._waiting))

    def close(self) -> None:
        for child in self._children:
            child.close()  # EOF on the pipe makes the worker exit
        for child in self._children:
            child.end(_PATIENCE)


def _serve(
    connection: Connection,
    config: TrainConfig,
    count: int,
    index: int,
    start_step: int,
    threads: int,
    cpu: int | None,
) -> None:
    """Run a worker: do what is asked until the pipe is closed."""
    prepare_process(threads)
    seed_generators(actor_seed(config.seed, index, start_step=start_step))
    if cpu is not None:
        pin(cpu)
    worker: Worker | None = None
    while True:
        try:
            order = connection.recv()
        except (EOFError, OSError):
            return
        try:
            if worker is None:
                spec, dtype, parts = order
                agent, rooms = _shared_agent(spec, dtype, receive_file(connection), count)
                given = agent, Contributions(rooms, agent, index), parts, threads
                worker, result = Worker(config, count, index, start_step, *given), None
                worker.learner.all_reduce = partial(_total, connection)
            else:
                function, *arguments = order
                result = function(worker, *arguments)
            answer = Answer(result)
        except NonFiniteError as error:
            answer = Answer((str(error), None), failed=True)
        except BaseException as error:
            cause = error.__cause__ or error
            message = str(actor_failed(f"worker {index}", cause))
            answer = Answer((message, trace_of(cause)), failed=True)
        try:
            send(connection, answer)
        except OSError:
            return


def _shared_agent(
    spec: AgentSpec, dtype: torch.dtype | None, file: int, count: int
) -> tuple[Agent, Sequence[Room]]:
    """Return the main process's agent, whose weights are in a file, and the rooms of all processes."""
    with torch.random.fork_rng(devices=[]):  # building it must not advance the global RNG
        agent = Agent(spec)
    agent.autocast_dtype = dtype
    shared = Shared(file, agent)
    os.close(file)
    shared.adopt()
    return agent, shared.rooms(count)
