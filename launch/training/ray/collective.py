"""Several learners make one update: each has some columns of the batch, and gradients are summed."""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from ....agents import Agent, Episodes, NonFiniteError, PartialUpdate
from ..flat_parameters import gradient_views, gradients_of, views

PATIENCE = timedelta(seconds=120)
"""Time to wait for another learner before it is given up."""
ELSEWHERE = "a loss is not finite in another learner"


class Collective:
    """One learner of `world`; alone it has nothing to do.

    Losses are sums over columns, so gradients are added, not averaged: the update is the one that a single
    learner would make of the whole batch, up to the order of the sums.
    """

    def __init__(self, rank: int, world: int, device: torch.device) -> None:
        self.rank, self.world = rank, world
        self._device = device
        self._store: TCPStore | None = None

    def host(self, address: str) -> tuple[str, int]:
        """Open a store at an address of this machine, where the learners meet; return address and port."""
        server = socket.create_server((address, 0))
        port: int = server.getsockname()[1]
        # Left to itself the store would listen on every address of the machine.
        self._store = TCPStore(
            address,
            port,
            self.world,
            True,
            PATIENCE,
            wait_for_workers=False,
            master_listen_fd=server.detach(),
        )
        return address, port

    def meet(self, place: tuple[str, int], address: str) -> None:
        """Wait until all learners have joined; `address` is this machine's."""
        interface = _interface_of(address)
        if interface is not None:  # the only one on which this process listens
            os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
            os.environ.setdefault("NCCL_SOCKET_IFNAME", interface)
        store = self._store or TCPStore(*place, self.world, False, PATIENCE)
        backend = "nccl" if self._device.type == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=PATIENCE, world_size=self.world, rank=self.rank, store=store)

    def total(self, tensor: Tensor) -> Tensor:
        """Return the sum of all learners' tensors."""
        dist.all_reduce(tensor)
        return tensor

    def together(self, backward: Callable[[], PartialUpdate], agent: Agent) -> list[PartialUpdate]:
        """Compute gradients and leave the sum of all learners' in `grad`; return everyone's contribution.

        Episodes are this learner's alone. Raises NonFiniteError everywhere if it is raised anywhere.
        """
        if self.world == 1:
            return [backward()]
        own, failure = None, None
        try:
            own = backward()
        except NonFiniteError as error:
            failure = error
        failures = torch.tensor(float(failure is not None), device=self._device)
        dist.all_reduce(failures)
        if failure is not None:
            raise failure
        if own is None or failures > 0:
            raise NonFiniteError(ELSEWHERE)
        self._add_gradients(agent)
        return self._exchange(own)

    def _add_gradients(self, agent: Agent) -> None:
        parameters = list(agent.parameters())
        flat = torch.cat([gradient.flatten() for gradient in gradients_of(parameters)])
        dist.all_reduce(flat)
        gradients, counts = gradient_views(flat, parameters)
        for parameter, gradient, count in zip(parameters, gradients, counts, strict=True):
            if parameter.grad is not None:
                parameter.grad.copy_(gradient)
            elif count > 0:
                parameter.grad = gradient

    def _exchange(self, own: PartialUpdate) -> list[PartialUpdate]:
        """Exchange partial_updates as plain numbers: nothing is unpickled."""
        names = sorted(own.metrics)
        returns = [] if own.returns is None else own.returns.flatten().tolist()
        values = [own.metrics[name] for name in names]
        numbers = [*returns, own.num_steps, own.version, own.num_learned, *own.replayed, *values]
        mine = torch.tensor(numbers, dtype=torch.float64, device=self._device)
        several = own.moments, own.targets
        there = [torch.as_tensor(moments) for moments in several if moments is not None]
        mine = torch.cat([mine, *(moments.flatten() for moments in there)])
        everyone = [torch.empty_like(mine) for _ in range(self.world)]
        dist.all_gather(everyone, mine)
        partial_updates = []
        for rank, gathered in enumerate(everyone):
            theirs = gathered[: len(returns)].cpu().numpy().reshape(3, -1) if returns else None
            steps, version, learned, count, age, *values = gathered[len(returns) : len(numbers)].tolist()
            metrics = dict(zip(names, values, strict=True))
            episodes = own.episodes if rank == self.rank else Episodes()
            counts, replayed = (int(steps), int(version)), (int(count), int(age))
            found = iter(views(gathered[len(numbers) :], there))
            moments, targets = (None if each is None else next(found) for each in several)
            partial_updates.append(
                PartialUpdate(metrics, *counts, episodes, moments, theirs, targets, replayed, int(learned))
            )
        return partial_updates


def _interface_of(address: str) -> str | None:
    """Find the network interface that has an IPv4 address; None where that cannot be told (not Linux)."""
    if sys.platform != "linux":
        return None
    import fcntl

    get_address = 0x8915  # SIOCGIFADDR
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(asker.fileno(), get_address, struct.pack("256s", name.encode()[:15]))
            except OSError:  # it has none
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return None
