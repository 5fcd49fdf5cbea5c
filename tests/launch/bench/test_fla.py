"""flash-linear-attention gets the same job as our kernels: rows cut at resets and laid end to end.

Its kernels need a GPU; a stand-in that takes pieces one by one, as its documentation says of `cu_seqlens`,
shows here that cutting and joining lose nothing.
"""

from __future__ import annotations

import inspect
import itertools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from fastweight_helpers import RESET_PATTERNS, choice, make_reset
from fastweight_rules import each, make_inputs
from torch import Tensor

from deltabeast.kernels import Rule
from deltabeast.kernels.rules import DELTA_RULE, GATED_DELTA, SUM_RULE
from deltabeast.launch.bench import fla
from deltabeast.launch.bench.kernels import _check_fla, _gradients, _ours
from deltabeast.launch.bench.memories import GATED_DELTA_NET_2, KDA, MEMORIES, RWKV7

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
@each(SUM_RULE, DELTA_RULE, GATED_DELTA, *MEMORIES)
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


COMMON = "scale initial_state output_final_state cu_seqlens"
SIGNATURES = {
    "linear_attn.chunk_linear_attn": "q k v normalize",
    "linear_attn.fused_recurrent_linear_attn": "q k v normalize",
    "delta_rule.chunk_delta_rule": "q k v beta",
    "delta_rule.fused_recurrent_delta_rule": "q k v beta",
    "gated_delta_rule.chunk_gated_delta_rule": "q k v g beta",
    "kda.chunk_kda": "q k v g beta",
    "gdn2.chunk_gdn2": "q k v g b w",
    "gated_delta_product.chunk_gated_delta_product": "q k v g beta num_householder",
    "rwkv7.chunk_rwkv7": "r w k v a b",
}
"""names of arguments in fla-core 0.6.0"""


def step_of(function: str, S: Tensor, x: dict[str, Tensor]) -> Tensor:
    """Its documented recurrence of S `[H, K, V]` by one step, whose inputs are `[H, size]`."""
    if "rwkv7" in function:  # (I + a bᵀ) of the transposed state, decay apart
        read = torch.einsum("hkv,hk->hv", S, x["a"])
        S = x["w"].exp().unsqueeze(-1) * S + torch.einsum("hk,hv->hkv", x["b"], read)
        return S + torch.einsum("hk,hv->hkv", x["k"], x["v"])
    if "g" in x:
        g = x["g"]
        S = (g.unsqueeze(-1) if g.dim() == 2 else g.view(-1, 1, 1)).exp() * S
    beta = x["beta"].unsqueeze(-1) if "beta" in x else torch.zeros(1, dtype=DOUBLE)
    erase, write = x.get("b", beta), x.get("w", beta if "beta" in x else beta + 1)
    wanted = write * x["v"] - torch.einsum("hkv,hk->hv", S, erase * x["k"])
    return S + torch.einsum("hk,hv->hkv", x["k"], wanted)


def documented(path: str) -> Callable[..., tuple[Tensor, Tensor]]:
    """A function of those arguments that computes what is documented, piece by piece, token by token."""
    names = [*SIGNATURES[path].split(), *COMMON.split()]
    signature = inspect.Signature([inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in names])

    def function(**arguments: Any) -> tuple[Tensor, Tensor]:
        x = signature.bind(**arguments).arguments  # raises TypeError for other names
        assert (x.pop("scale"), x.pop("output_final_state")) == (1.0, True)
        assert not x.pop("normalize", False)
        state, bounds, writes = x.pop("initial_state"), x.pop("cu_seqlens"), x.pop("num_householder", 1)
        x = {name: tensor for name, tensor in x.items() if tensor is not None}
        query = x.pop("r" if "rwkv7" in path else "q")
        _, steps, heads, K = query.shape
        V, sizes = x["v"].shape[-1], {"v": "V", "w": "K" if "rwkv7" in path else "V"}
        for name, tensor in x.items():
            number = name == "beta" or (name == "g" and "rule" in path)
            size = () if number else (V if sizes.get(name) == "V" else K,)
            assert tensor.shape == (1, steps * writes, heads, *size), name
        assert bounds.dtype is torch.int64 and state.shape == (len(bounds) - 1, heads, K, V)
        ys, last = [], []
        for S, (start, end) in zip(state, itertools.pairwise(bounds.tolist()), strict=True):
            for t in range(start, end):
                for i in range(t * writes, (t + 1) * writes):
                    S = step_of(path, S, {name: tensor[0, i] for name, tensor in x.items()})
                ys.append(torch.einsum("hkv,hk->hv", S, query[0, t]))
            last.append(S)
        return torch.stack(ys).unsqueeze(0), torch.stack(last)

    return function


def install(monkeypatch: pytest.MonkeyPatch, *left_out: str) -> None:
    """A package `fla` that has what the signatures name."""
    monkeypatch.setattr(fla, "find_spec", lambda name: name)
    for path in SIGNATURES:
        module, name = path.split(".")
        for package in ("fla", "fla.ops", f"fla.ops.{module}"):
            if package not in left_out:
                monkeypatch.setitem(sys.modules, package, sys.modules.get(package) or ModuleType(package))
        if f"fla.ops.{module}" not in left_out:
            monkeypatch.setattr(sys.modules[f"fla.ops.{module}"], name, documented(path), raising=False)


@each(*fla.OPERATIONS)
@pytest.mark.parametrize("resets", ["none", "last", "random"])
def test_each_route_passes_what_is_documented(
    rule: Rule, resets: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch)
    inputs = make_inputs(rule, choice((1, 2, 5)), sizes=(3, 5, 8))
    reset = make_reset(resets, *inputs[0].shape[:2])
    want = _gradients(_ours(rule, reset, "reference"), inputs)
    routes = list(fla.routes(rule, torch.device("cuda")))
    assert {route.name for route in routes} <= {"fla chunk", "fla recurrent"} and routes
    for route in routes:
        job = _check_fla(rule, route._replace(dtype=DOUBLE), inputs, reset, want)
        assert job.measured.error < 1e-9
        leaves = fla.pack(rule, inputs, fla.cut(reset), route.dtype)
        kept = [name for name, x in zip(rule.shapes.names, leaves, strict=False) if x.dtype is torch.float32]
        rates = ["decay"] if rule is GATED_DELTA else ["g"] if rule in (KDA, GATED_DELTA_NET_2, RWKV7) else []
        if route.dtype is torch.bfloat16:
            assert kept == rates


def test_a_release_that_lacks_one_has_no_route_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "fla.ops.gdn2")
    cuda = torch.device("cuda")
    assert not list(fla.routes(GATED_DELTA_NET_2, cuda)) and len(list(fla.routes(KDA, cuda))) == 1


def test_a_route_that_raises_is_named_and_not_timed() -> None:
    def broken(*inputs: Tensor) -> tuple[Tensor, Tensor]:
        raise RuntimeError("no such instruction")

    inputs = make_inputs(KDA, 2)
    reset = make_reset("none", *inputs[0].shape[:2])
    want = _gradients(_ours(KDA, reset, "reference"), inputs)
    with pytest.warns(UserWarning, match=r"^kda, fla chunk \(float32\): RuntimeError: no such instruction$"):
        job = _check_fla(KDA, fla.Route("fla chunk", torch.float32, broken), inputs, reset, want)
    assert not job.measured.right and not job.measured.failed
