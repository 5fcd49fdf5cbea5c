"""results/memory-surgery/fixed_point.py: where fast weights come to rest, and how soon."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import torch

from deltabeast.cores.linear_form import delta_form


def test_where_writes_come_to_rest(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """As the mean of all writes moves W, over and over; in the end as its slowest direction does."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "results" / "memory-surgery"))
    resting = importlib.import_module("fixed_point").resting
    k, v, beta = torch.randn(60, 1, 2, 4).softmax(-1), torch.randn(60, 1, 2, 3), torch.rand(60, 1, 2)
    never = torch.zeros(60, 1, dtype=torch.bool)
    middle, slowest, norm = resting(delta_form(k, k, v, beta, torch.zeros(1, 2, 3, 4), never))
    for h in range(2):
        keys, values, strengths = (x[:, 0, h].double() for x in (k, v, beta))
        W, norms = torch.zeros(3, 4).double(), []
        for _ in range(5000):
            missing = strengths.unsqueeze(1) * (values - keys @ W.mT)
            W = W + missing.mT @ keys / 60
            norms.append(float(W.norm()))
        assert float(norm[h]) == pytest.approx(norms[-1], rel=1e-4)
        off = [abs(each - norms[-1]) for each in norms]
        late = next(t for t, each in enumerate(off) if each < 1e-5)
        assert off[late + 1] / off[late] == pytest.approx(1 - 1 / float(slowest[h]), abs=1e-3)
        rates = torch.linalg.eigvals((keys * strengths.unsqueeze(1)).mT @ keys / 60).real
        assert float(middle[h]) == pytest.approx(sorted((1 / rates).tolist())[1], rel=1e-4)
