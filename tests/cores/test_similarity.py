"""What a query reads of one write, by the rule itself, is the similarity that a memory claims."""

from __future__ import annotations

import pytest
import torch

from deltabeast.cores import make_core
from deltabeast.cores.fast_weights import FastWeights


def memory_of(core: str, **options: object) -> FastWeights:
    made = make_core(core, 3, hidden_size=16, num_layers=1, num_heads=2, ff_size=8, **options)
    return next(part for part in made.modules() if isinstance(part, FastWeights)).double()


@pytest.mark.parametrize(
    ("core", "options"),
    [
        ("linear_transformer", {}),
        ("linear_transformer", {"feature_map": "dpfp", "dpfp_nu": 2}),
        ("delta_net", {}),
        ("delta_net", {"feature_map": "root2", "normalise": "none"}),
        ("gated_delta_net", {}),
        ("momentum_delta_net", {}),
        ("kda", {}),
        ("delta_product", {"writes": 1}),
        ("delta_rnn", {}),
        ("rdn", {}),
    ],
)
def test_of_fast_weights(core: str, options: dict[str, object], seed: int) -> None:
    """The first write of an episode leaves a multiple of value times key, whatever the rule."""
    torch.manual_seed(seed)
    memory = memory_of(core, **options)
    projections = torch.randn(1, 3, 2, sum(memory.sizes), dtype=torch.float64)
    q, k, v, *others = projections.split(memory.sizes, -1)
    others = [torch.full_like(other, -50.0) if core == "delta_rnn" and i == 3 else other
              for i, other in enumerate(others)]  # nothing is written to the recurrent matrix  # fmt: skip
    state = tuple(torch.zeros(3, *part.shape, dtype=torch.float64) for part in memory.state_parts())
    reset = torch.ones(1, 3, dtype=torch.bool)
    read, kappas = [], []
    for query in (q, q.roll(1, -1)):
        y, _ = memory.unroll((query, k, v, *others), state, reset)
        kappa = memory.similarity(k[0, 0, 0].unsqueeze(0), query[0, 0, 0])
        assert kappa is not None
        read.append(y[0, 0, 0])
        kappas.append(kappa)  # which may be zero
    torch.testing.assert_close(read[0] * kappas[1], read[1] * kappas[0])
    value = v[0, 0, 0]
    torch.testing.assert_close(read[0] * value[0], read[0][0] * value)
    assert read[0].any() == bool(kappas[0] != 0)


@pytest.mark.parametrize("core", ["softmax_attention", "deltaformer"])
def test_of_attention(core: str, seed: int) -> None:
    torch.manual_seed(seed)
    memory = memory_of(core, **({"gates": "scalar"} if core == "deltaformer" else {}))
    if core == "deltaformer":  # whose writes, without β, are the values
        memory.beta.data.zero_()
    parts = torch.randn(4, 1, 2, sum(memory.sizes), dtype=torch.float64).split(memory.sizes, -1)
    state = tuple(torch.zeros(1, *part.shape, dtype=torch.float64) for part in memory.state_parts())
    reset = torch.tensor([[True], [False], [False], [False]])
    y, _ = memory.unroll(parts, state, reset)
    q, k, v = (part[:, 0, 1] for part in parts[:3])
    kappa = memory.similarity(k, q[3])
    assert kappa is not None
    torch.testing.assert_close(y[3, 0, 1], kappa @ v / kappa.sum())


def test_cores_of_several_matrices_claim_none() -> None:
    assert memory_of("delta_mlp").similarity(torch.zeros(1, 8), torch.zeros(8)) is None
