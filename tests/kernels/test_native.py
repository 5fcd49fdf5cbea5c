"""What the C kernels take, and with which threads."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from fastweight_helpers import assert_near, make_reset
from fastweight_rules import RULES, each, make_inputs
from fastweight_rules import run as gradients

from deltabeast import kernels
from deltabeast.kernels import Rule, rules
from deltabeast.kernels.native import rules as native


def run(rule: Rule, backend: str = "auto", dtype: torch.dtype = torch.float32) -> torch.Tensor:
    inputs = [x.to(dtype) for x in make_inputs(rule, 3, most=1)]
    y: torch.Tensor = rule(*inputs, make_reset("none", 3, 1), backend=backend)[0]
    return y


def test_auto_takes_c_for_float32_on_cpus(seed: int) -> None:
    taken = []
    right = rules.DELTA_RULE.native
    assert right is not None

    def spy(*inputs: object) -> object:
        taken.append(inputs[-1])
        return right.operator(*inputs)

    spied = replace(rules.DELTA_RULE, native=right._replace(operator=spy))
    run(spied)
    run(spied, dtype=torch.float64)
    assert taken == ["native"]


def test_what_c_cannot_take() -> None:
    with pytest.raises(ValueError, match=r"^delta_rule: the C kernels compute in float32, not torch.f"):
        run(rules.DELTA_RULE, "native", torch.float64)
    with pytest.raises(
        ValueError,
        match=r"^lstm: this rule has no 'native' backend; choose from auto, reference, chunked, triton$",
    ):
        run(replace(rules.LSTM, native=None), "native")
    q, v, W = torch.zeros(1, 1, 1, 129), torch.zeros(1, 1, 1, 16), torch.zeros(1, 1, 16, 129)
    never = torch.zeros(1, 1, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"^sum_rule: .* up to 128 wide, not 129$"):
        kernels.sum_rule(q, q, v, W, never, backend="native")
    y, _ = kernels.sum_rule(q, q, v, W, never)  # another takes it
    assert y.shape == v.shape


@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`:UserWarning")
def test_compiles_for_heads_of_any_size(seed: int) -> None:
    """Where the compiler keeps sizes open, too: each size needs a library of its own."""

    def rule(*inputs: torch.Tensor) -> torch.Tensor:
        return kernels.delta_rule(*inputs, backend="native")[0]

    torch._dynamo.reset()
    compiled = torch.compile(rule, fullgraph=True, dynamic=True, backend="eager")
    for size in (16, 60):
        inputs = [x.float() for x in make_inputs(rules.DELTA_RULE, 3, sizes=(size,))]
        reset = make_reset("random", 3, inputs[0].shape[1])
        assert torch.equal(compiled(*inputs, reset), rule(*inputs, reset))


@each(*(rule for rule in RULES if rule.native))
def test_threads_change_nothing(rule: Rule, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = make_inputs(rule, 9)
    reset = make_reset("random", 9, inputs[0].shape[1])
    results = []
    for threads in (1, 2, 5):
        monkeypatch.setattr(native, "_threads", lambda W, steps, threads=threads: threads)
        results.append(gradients(rule, inputs, reset, "native", torch.float32))
    for other in results[1:]:
        assert all(torch.equal(other[name], value) for name, value in results[0].items())


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("rows", [9, 16, 17, 33])
@each(rules.LSTM, rules.GRU)
def test_rows_of_several_blocks(
    rule: Rule, rows: int, threads: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    numbers = {"T": 5, "B": rows, "N": 60}  # 33 rows are work enough for two threads
    inputs = rule.random_inputs(numbers, dtype=torch.float64)
    reset = make_reset("random", 5, rows)
    want = gradients(rule, inputs, reset, "reference", torch.float64)
    got = gradients(rule, inputs, reset, "native", torch.float32)
    for name, value in want.items():
        assert_near(name, got[name], value, 1e-5)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="not Linux")
def test_threads_are_those_of_pytorch(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second OpenMP beside PyTorch's would fight with it for the cores."""

    def openmps() -> set[str]:
        lines = Path("/proc/self/maps").read_text().splitlines()
        return {line.split()[-1] for line in lines if re.search(r"lib(g|i)?omp", line)}

    before = openmps()
    monkeypatch.setattr(native, "_threads", lambda W, steps: 2)
    run(rules.DELTA_RULE, "native")
    assert openmps() == before
