"""Weights and gradients that processes share: one copy, in no folder whose size a container limits."""

from __future__ import annotations

import os

import pytest
import torch
from torch import nn

from deltabeast.agents.normaliser import make_normaliser
from deltabeast.launch.training.local.shared import Shared, new_file


class Odd(nn.Module):
    """Tensors of every kind: one number, none, another dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 7))
        self.scale = nn.Parameter(torch.randn(()))
        self.nothing = nn.Parameter(torch.randn(0, 4))
        self.register_buffer("count", torch.tensor([3, 2**40]))
        self.register_buffer("mask", torch.tensor([True, False, True]), persistent=False)

    def tensors(self) -> list[torch.Tensor]:
        return [self.weight, self.scale, self.nothing, self.count, self.mask]


@pytest.fixture(params=["in memory", "in a folder"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Linux, and as where there are no files without a folder."""
    if request.param == "in a folder":
        monkeypatch.delattr(os, "memfd_create", raising=False)


@pytest.mark.usefixtures("kind")
def test_two_agents_have_the_same_tensors(seed: int) -> None:
    one, other = Odd(), Odd()
    before = [tensor.clone() for tensor in one.tensors()]
    file = new_file(one, 2)
    Shared(file, one).publish()
    Shared(file, other).adopt()
    os.close(file)
    for now, theirs, was in zip(one.tensors(), other.tensors(), before, strict=True):
        assert torch.equal(now, was) and torch.equal(theirs, was) and theirs.dtype == was.dtype
    with torch.no_grad():
        one.weight[1, 2], other.scale[()], one.count[1] = 7.0, -2.0, 9
    assert other.weight[1, 2] == 7 and one.scale == -2 and other.count.tolist() == [3, 9]
    assert isinstance(one.weight, nn.Parameter) and one.weight.is_leaf


@pytest.mark.parametrize("entries", [0, 3])
def test_each_has_rooms_of_its_own(entries: int, seed: int) -> None:
    one, other = Odd(), Odd()
    if entries:
        one.normaliser, other.normaliser = (make_normaliser((entries,), range(entries)) for _ in range(2))
    file = new_file(one, 3)
    mine, theirs = Shared(file, one), Shared(file, other)
    os.close(file)
    mine.publish()
    rooms = mine.rooms(3)
    assert all(room.gradients.shape == (25,) and room.moments.shape == (3, entries) for room in rooms)
    assert {(room.gradients.dtype, room.moments.dtype) for room in rooms} == {(torch.float32, torch.float64)}
    for number, tensor in enumerate(tensor for room in rooms for tensor in room):
        tensor.fill_(1.0 + number)
    found = [tensor.unique().tolist() for room in theirs.rooms(3) for tensor in room]
    assert found == [[1.0 + n] if entries or n % 2 == 0 else [] for n in range(6)], "none in another's place"
    assert not one.weight.eq(1).any()


def test_a_file_that_cannot_be_had_is_an_error_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that is missing later would end the process with SIGBUS."""

    def full(*_: int) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    before = len(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else 0
    with pytest.raises(OSError, match="No space left"):
        new_file(Odd(), 1)
    after = len(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else 0
    assert before == after, "and leaves no descriptor"
