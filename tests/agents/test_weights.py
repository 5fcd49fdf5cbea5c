"""Actors get the newest weights that are there, whole, with their version: never those still on their way."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from deltabeast.agents import WeightStore, weights


class Published:
    """A store on a device that writes what is published when told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.written: list[bool] = []
        monkeypatch.setattr(weights, "_mark", lambda _: self._begin())
        self.model = nn.Linear(3, 2)
        self.copy = nn.Linear(3, 2)
        self.put(0)
        self.store = WeightStore(self.model)

    def _begin(self):
        number = len(self.written)
        self.written.append(False)
        return lambda: self.written[number]

    def put(self, value: int) -> None:
        for parameter in self.model.parameters():
            nn.init.constant_(parameter, value)

    def publish(self, version: int) -> None:
        self.put(version)
        self.store.publish(self.model, version)
        self.put(-1)  # the learner goes on

    def pulled(self) -> int:
        version = self.store.pull(self.copy)
        for parameter in self.copy.parameters():
            assert torch.equal(parameter, torch.full_like(parameter, version))
        return version


def test_weights_still_on_their_way_are_not_pulled(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Published(monkeypatch)
    assert device.pulled() == 0
    device.publish(1)
    assert device.pulled() == 0
    device.written[0] = True
    assert device.pulled() == device.pulled() == 1
    device.publish(2)
    assert device.pulled() == 1
    device.publish(3)
    assert device.pulled() == 1
    device.written[2] = True
    assert device.pulled() == 3


def test_weights_that_are_there_are_kept_from_those_after_them(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Published(monkeypatch)
    for version in range(1, 6):
        device.publish(version)
        device.written[-1] = version < 5
    assert device.pulled() == 4


def test_the_same_version_may_be_published_again() -> None:
    one, two = nn.Linear(3, 2), nn.Linear(3, 2)
    store = WeightStore(one, 4)
    nn.init.constant_(one.bias, 7)
    store.publish(one, 4)
    assert store.pull(two) == 4 and torch.equal(one.bias, two.bias)
