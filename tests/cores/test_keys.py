"""Keys erased, values put under keys and writes made again, against matrices changed one at a time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fastweight_helpers import assert_near, integer
from torch import Tensor

from deltabeast.cores import Core, FastWeightCore, State, core_names, make_core
from deltabeast.cores.delta_net import DeltaMemory
from deltabeast.cores.fast_weights import MemoryTrace
from deltabeast.cores.linear_form import DeltaForm, LinearForm
from deltabeast.cores.provenance import linear_forms
from deltabeast.cores.surgery import (
    erase,
    erase_keys,
    insert,
    insert_values,
    replace_memory,
    write_again,
    writes_under_keys,
)

STEPS, ROWS = 5, 3
SMALL: dict[str, Any] = {"hidden_size": 8, "num_heads": 2, "ff_size": 8}
WITHOUT_KEYS = {
    *("feedforward", "gated_feedforward", "lstm", "gru", "hybrid"),
    *("softmax_attention", "deltaformer", "gtrxl", "transformer"),
}
BESIDES: dict[str, Any] = {"short_conv": 3, "clock": 2}
CASES: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in core_names() if name not in WITHOUT_KEYS),
    ("hybrid", {"layers": "rdn,delta_product,delta_mlp"}),
    ("delta_product", {"writes": 3, "gated": True}),
    ("delta_mlp", {"blocks": 2, **BESIDES}),
    ("momentum_delta_net", {"feature_map": "dpfp", "dpfp_nu": 2, **BESIDES}),
    ("linear_transformer", {"normalise": "attention", **BESIDES}),
    ("gated_linear_attention", {"gate": "value"}),
    *((name, BESIDES) for name in ("delta_lstm", "delta_rnn", "rwkv7", "delta_delta_net")),
]


def unrolled(name: str, options: dict[str, Any]) -> tuple[FastWeightCore, State, list[DeltaForm]]:
    """A core, a state that is not zero, and its forms of an unroll that ends there."""
    core = make_core(name, 3, **{**SMALL, **options}).double()
    assert isinstance(core, FastWeightCore)
    start = tuple(torch.rand_like(part) for part in core.initial_state(ROWS))
    reset = torch.rand(STEPS, ROWS) < 0.3
    reset[0, 0] = reset[-1, 1] = True
    x = torch.randn(STEPS, ROWS, 3).double()
    forms = [form for form in linear_forms(core, x, start, reset) if isinstance(form, DeltaForm)]
    assert len(forms) == len(core.memories())
    return core, tuple(torch.randn_like(part) for part in start), forms


def weights(core: Core, state: State) -> list[DeltaForm]:
    """The forms of the next step, whose W and C are what it finds."""
    x, no_reset = torch.zeros(1, ROWS, 3).double(), torch.zeros(1, ROWS, dtype=torch.bool)
    return [form for form in linear_forms(core, x, state, no_reset) if isinstance(form, DeltaForm)]


def matrices(form: DeltaForm) -> list[tuple[tuple[int, int], Tensor, Tensor | None]]:
    (rows, heads), C = form.W.shape[:2], form.C
    return [((b, n), form.W[b, n], None if C is None else C[b, n]) for b in range(rows) for n in range(heads)]


def untouched(core: FastWeightCore, got: State, state: State) -> None:
    """All that is no fast weight and no momentum goes on, bit for bit."""
    layers = [memory.layer_state_parts() for memory in core.memories()]
    hybrid = type(core).__name__ == "Hybrid"
    parts = [part for layer in layers for part in layer] if hybrid else [*layers[0]]
    assert len(got) == len(state)
    for i, (new, old) in enumerate(zip(got, state, strict=True)):
        assert new.dtype == old.dtype and new.shape == old.shape
        if i >= len(parts) or parts[i].kind not in ("fast weights", "momentum"):
            assert torch.equal(new, old), i


@pytest.mark.parametrize(("name", "options"), CASES)
def test_a_step_s_keys(name: str, options: dict[str, Any], seed: int) -> None:
    """What the core finds in the next step: matrix by matrix, with normal equations for several keys."""
    core, state, forms = unrolled(name, options)
    t = integer(0, 1) * (STEPS - 1)
    rows = torch.tensor([True, False, True])
    keys = [form.writes.k[t] for form in forms]
    values = [torch.randn_like(form.writes.u[t]) for form in forms]
    erased, inserted = erase(core, state, keys, rows), insert(core, state, keys, values, rows)
    for got in (erased, inserted):
        untouched(core, got, state)
        assert all(torch.equal(new[1], old[1]) for new, old in zip(got, state, strict=True))
    assert writes_under_keys(core)
    before = weights(core, state)
    for n, (form, after, filled) in enumerate(
        zip(before, weights(core, erased), weights(core, inserted), strict=True)
    ):
        for (at, W, C), (_, W_erased, C_erased), (_, W_inserted, C_inserted) in zip(
            matrices(form), matrices(after), matrices(filled), strict=True
        ):
            if not rows[at[0]]:
                continue
            there = W.abs().sum(0) > 0  # but columns that only their own step reads
            written = keys[n][at][:, there].abs().sum(1) > 0
            K, V = keys[n][at][written], values[n][at][written]
            assert 1 <= len(K) <= len(written)
            K, unread = K[:, there], W[:, ~there]
            W, W_erased, W_inserted = W[:, there], W_erased[:, there], W_inserted[:, there]
            assert not unread.any()
            gram = K @ K.T
            want, filled_by_hand = W - W @ K.T @ torch.linalg.solve(gram, K), W
            for k, v in zip(K, V, strict=True):
                filled_by_hand = filled_by_hand + torch.outer(v - filled_by_hand @ k, k) / (k @ k)
            if torch.linalg.cond(gram) < 1e6:
                assert_near(f"layer {n} {at}", W_erased, want, 1e-9)
            assert (W_erased @ K.T).abs().max() < 1e-9
            x = torch.randn(W.shape[1]).double()
            x = x - torch.linalg.qr(K.T)[0] @ torch.linalg.qr(K.T)[0].T @ x
            assert_near("under other keys", W_erased @ x, W @ x, 1e-9)
            assert_near("inserted", W_inserted, filled_by_hand, 1e-11)
            assert_near("the last value", W_inserted @ K[-1], V[-1], 1e-9)
            assert_near("and no more", W_inserted @ x, W @ x, 1e-9)
            assert (C is None) == (name != "momentum_delta_net")
            for averaged in (C_erased, C_inserted):
                if C is not None and averaged is not None:  # one write a step
                    assert_near("momentum", averaged, C - C @ K.T @ torch.linalg.solve(gram, K), 1e-9)


@pytest.mark.parametrize(("name", "options"), CASES)
def test_a_step_s_writes_again(name: str, options: dict[str, Any], seed: int) -> None:
    core, state, forms = unrolled(name, options)
    t = integer(0, 1) * (STEPS - 1)
    rows = torch.tensor([True, False, True])
    got = write_again(core, state, forms, t, rows)
    untouched(core, got, state)
    assert all(torch.equal(new[1], old[1]) for new, old in zip(got, state, strict=True))
    for n, (form, after) in enumerate(zip(weights(core, state), weights(core, got), strict=True)):
        for (at, W, C), (_, W_after, C_after) in zip(matrices(form), matrices(after), strict=True):
            there = W.abs().sum(0) > 0
            for i in range(forms[n].writes.k.shape[3] if rows[at[0]] else 0):
                k, u, e = (
                    part[t][(*at, i)] for part in (forms[n].writes.k, forms[n].writes.u, forms[n].writes.e)
                )
                W = W + torch.outer(u - W @ e, k) * there
                C = None if C is None else C + torch.outer(u, k)
            assert_near(f"layer {n} {at}", W_after, W, 1e-11)
            if C is not None and C_after is not None:
                assert_near("momentum", C_after, C, 1e-11)


def test_every_name_has_one_answer() -> None:
    small = {
        name: {} if name in ("lstm", "gru", "feedforward", "gated_feedforward") else SMALL
        for name in core_names()
    }
    assert {name for name in core_names() if not writes_under_keys(make_core(name, 3, **small[name]))} == (
        WITHOUT_KEYS & {*core_names()}
    )
    assert writes_under_keys(make_core("hybrid", 3, layers="kda,rdn"))
    assert not writes_under_keys(make_core("hybrid", 3, layers="rdn,softmax_attention"))


def test_a_rule_of_one_s_own_has_no_keys() -> None:
    class Own(FastWeightCore):
        class memory(DeltaMemory):
            def unroll(self, *arguments: Any) -> Any:
                return super().unroll(*arguments)

    core = Own(3, **SMALL)
    assert not writes_under_keys(core)


def test_a_form_of_other_weights_has_no_keys() -> None:
    class Own(FastWeightCore):
        class memory(DeltaMemory):
            def linear_form(self, trace: MemoryTrace) -> LinearForm | None:
                form = super().linear_form(trace)
                return form._replace(W=form.W.mT) if isinstance(form, DeltaForm) else form

    assert not writes_under_keys(Own(3, **SMALL))


def test_matrices_by_hand() -> None:
    W, k, v = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[3.0, 4.0]]), torch.tensor([[5.0, 0.0]])
    # W k = (11, 25), |k|² = 25
    torch.testing.assert_close(erase_keys(W, k), W - torch.tensor([[33.0, 44.0], [75.0, 100.0]]) / 25)
    torch.testing.assert_close(insert_values(W, k, v), W + torch.tensor([[-18.0, -24.0], [-75, -100]]) / 25)
    for size in (1e-40, 1e-20, 1e20):  # float32, whatever the length of a key
        torch.testing.assert_close(erase_keys(W, k * size), erase_keys(W, k))
    twice = insert_values(W, torch.cat((k, k)), torch.tensor([[5.0, 0.0], [7.0, 2.0]]))
    torch.testing.assert_close(twice @ k[0], torch.tensor([7.0, 2.0]), msg="of one key twice the last value")
    two = torch.tensor([[3.0, 4.0], [3.0, 4.0 + 1e-5]])
    assert erase_keys(W, two).abs().max() < 1e-3, "two directions, however close"
    for nothing in (torch.zeros(1, 2), torch.full((1, 2), torch.nan), torch.zeros(0, 2)):
        assert torch.equal(insert_values(W, nothing, torch.ones(len(nothing), 2)), W)
    broken = insert_values(torch.stack((W, W * torch.nan)), torch.stack((k, k)), torch.stack((v, v)))
    torch.testing.assert_close(broken[0], insert_values(W, k, v))
    assert not broken[1].isfinite().any()


def test_another_memory_in_some_rows(seed: int) -> None:
    core = make_core("rdn", 3, **SMALL, **BESIDES)
    state, other = (tuple(torch.randn_like(part) for part in core.initial_state(ROWS)) for _ in range(2))
    W, *rest = replace_memory(core, state, other, torch.tensor([False, True, True]))
    assert torch.equal(W[1:3], other[0][1:3]) and torch.equal(W[[0]], state[0][[0]])
    assert all(torch.equal(new, old) for new, old in zip(rest, state[1:], strict=True))
    gru = make_core("gru", 3, hidden_size=6)
    (h,) = replace_memory(gru, (state[1][:, 0, 0],), (other[1][:, 0, 0],), torch.tensor([True] * ROWS))
    assert torch.equal(h, other[1][:, 0, 0])


def test_what_does_not_fit_is_told(seed: int) -> None:
    core, state, forms = unrolled("delta_net", {})
    keys, values = [form.writes.k[0] for form in forms], [form.writes.u[0] for form in forms]
    for k in (keys[0][:2], keys[0][..., :3], keys[0][:, :, 0]):
        with pytest.raises(ValueError, match=r"layer 1: keys are \[.*\]; give \[3, 2, S, 4\]"):
            insert(core, state, [keys[0], k], values)
    for v in (values[0][..., :3], values[0][:, :, :0]):
        with pytest.raises(ValueError, match=r"layer 1: values are \[.*\]; give \[3, 2, 1, 4\]"):
            insert(core, state, keys, [values[0], v])
    with pytest.raises(ValueError, match="keys of 2 layers and values of 1; give both"):
        insert(core, state, keys, values[:1])
    for few in ([], keys[:1], [*keys, keys[0]]):
        with pytest.raises(ValueError, match=f"of {len(few)} layers; give those of all 2"):
            erase(core, state, few)
    with pytest.raises(ValueError, match="step is 5; the unroll has steps 0 to 4"):
        write_again(core, state, forms, STEPS)
    with pytest.raises(ValueError, match="GRU does not have fast weights in every layer; give"):
        erase(make_core("gru", 3, hidden_size=6), (torch.zeros(1, 6),), [])
    with pytest.raises(ValueError, match="differ in shape; give two of the same core"):
        replace_memory(core, state, state[:0], torch.ones(ROWS))


def test_keys_of_very_different_lengths_are_all_erased(seed: int) -> None:
    W, k = torch.randn(3, 4, 5), torch.randn(3, 2, 5)
    k[:, 1] *= 1e-18
    erased = erase_keys(W, k)
    read = (erased @ (k / k.norm(dim=-1, keepdim=True)).transpose(-1, -2)).abs().max()
    assert read < 1e-5


def test_rows_of_another_number_are_refused(seed: int) -> None:
    core = make_core("delta_net", 3, hidden_size=8, num_heads=2, num_layers=1, ff_size=8)
    keys = [torch.randn(2, 2, 1, 4)]
    with pytest.raises(ValueError, match=r"rows are \[1\]; give \[2\]"):
        erase(core, core.initial_state(2), keys, torch.tensor([True]))
