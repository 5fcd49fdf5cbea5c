"""flash-linear-attention gets the same job as our kernels: rows cut at resets and laid end to end.

Its kernels need a GPU; a stand-in that takes pieces one by one, as its documentation says of `cu_seqlens`,
shows here that cutting and joining lose nothing.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from fastweight_helpers import RESET_PATTERNS, choice, make_reset
from fastweight_rules import each, make_inputs
from torch import Tensor

from deltabeast.kernels import Rule
from deltabeast.kernels.rules import DELTA_RULE, SUM_RULE
from deltabeast.launch.bench import fla
from deltabeast.launch.bench.kernels import _check_fla, _gradients, _ours

DOUBLE = torch.float64


def stand_in(rule: Rule) -> fla.Route:
    def function(*inputs: Tensor) -> tuple[Tensor, Tensor]:
        *sequences, state, bounds = inputs
        ys, states = [], []
        for piece, (start, end) in enumerate(itertools.pairwise(bounds.tolist())):
            parts = [x[0, start:end].unsqueeze(1) for x in sequences]
            reset = torch.zeros(end - start, 1, dtype=torch.bool)
            y, W = rule(*parts, state[piece].mT.unsqueeze(0), reset, backend="reference")
            ys.append(y.squeeze(1))
            states.append(W.squeeze(0).mT)
        return torch.cat(ys).unsqueeze(0), torch.stack(states)

    return fla.Route("stand-in", DOUBLE, function)


@each(SUM_RULE, DELTA_RULE)
@pytest.mark.parametrize("resets", RESET_PATTERNS)
def test_cut_at_resets_and_joined_it_is_the_same_job(rule: Rule, resets: str) -> None:
    inputs = make_inputs(rule, choice((1, 2, 7)))
    reset = make_reset(resets, *inputs[0].shape[:2])
    want = _gradients(_ours(rule, reset, "reference"), inputs)
    job = _check_fla(rule, stand_in(rule), inputs, reset, want)
    assert job.measured.error < 1e-10 and not job.measured.ours
    other = _gradients(_ours(rule, reset, "reference"), [2 * x for x in inputs])
    assert _check_fla(rule, stand_in(rule), inputs, reset, other).measured.error > 0.1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="its kernels need a GPU")
@each(SUM_RULE, DELTA_RULE)
def test_its_own_kernels_agree_where_they_are_installed(rule: Rule) -> None:
    pytest.importorskip("fla")
    device = torch.device("cuda")
    inputs: Any = [x.float().to(device) for x in make_inputs(rule, 50)]
    reset = make_reset("random", *inputs[0].shape[:2]).to(device)
    want = _gradients(_ours(rule, reset, "reference"), [x.double() for x in inputs])
    for route in fla.routes(rule, device):
        assert _check_fla(rule, route, inputs, reset, want).measured.right


def test_it_is_left_out_where_it_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = torch.device("cuda")
    assert list(fla.routes(DELTA_RULE, torch.device("cpu"))) == []
    monkeypatch.setattr(fla, "find_spec", lambda name: None)
    assert list(fla.routes(DELTA_RULE, cuda)) == []
