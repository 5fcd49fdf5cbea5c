"""Reachability in a forest: which nodes descend from the first (Zhong et al. 2025, section 3.3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from .sequences import Sequences, begins


@dataclass(frozen=True)
class Reachability:
    """Two trees of `nodes / 2` nodes each, their nodes in one topological order. Asked at each: is it in the
    first node's tree?

    A token is `node * nodes + parent`, both by their place in the order; a root is its own parent. The paper
    says that a token encodes its parent alone, and leaves open how trees are drawn: here the nodes of the two
    trees are shuffled, and a node's parent is drawn among those of its tree before it (random recursive
    trees).
    """

    classes: ClassVar = 2

    nodes: int = 32

    def __post_init__(self) -> None:
        if self.nodes < 4 or self.nodes % 2:
            raise ValueError(f"nodes is {self.nodes}; give an even number, at least 4")

    @property
    def symbols(self) -> tuple[int, ...]:
        return self.nodes, self.nodes

    def sample(self, rng: np.random.Generator, batch: int) -> Sequences:
        halves = np.tile(np.arange(self.nodes)[:, np.newaxis] % 2, (1, batch))
        tree = rng.permuted(halves, axis=0)
        parent = np.tile(np.arange(self.nodes)[:, np.newaxis], (1, batch))
        columns, chance = np.arange(batch), rng.random((self.nodes, batch))
        members = np.zeros((2, self.nodes, batch), np.int64)  # of each tree, in order
        count = np.zeros((2, batch), np.int64)
        for node in range(self.nodes):
            mine, before = tree[node], count[tree[node], columns]
            drawn = members[mine, (chance[node] * before).astype(np.int64), columns]
            parent[node] = np.where(before > 0, drawn, node)
            members[mine, before, columns] = node
            count[mine, columns] += 1
        tokens = np.arange(self.nodes)[:, np.newaxis] * self.nodes + parent
        return Sequences(tokens, begins(self.nodes, batch), (tree == tree[0]).astype(np.int64))
