"""Inputs that disagree are refused by every backend alike, in one line, before anything is computed."""

from __future__ import annotations

import inspect
import pickle
import re

import fastweight_checks as checks
import pytest
import torch
from fastweight_checks import agreeing, refusal
from fastweight_rules import each, pairs

from deltabeast import kernels
from deltabeast.kernels import Rule, Shapes, dispatch, rules

SIZES = {"T": 3, "B": 2, "H": 5, "K": 4, "V": 6, "N": 7, "S": 7, "G": 8, "M": 9}
SHAPES = {
    "sum_rule": "TBHK TBHK TBHV BHVK TB",
    "delta_rule": "TBHK TBHK TBHV TBH BHVK TB",
    "gated_sum": "TBHK TBHK TBHV TBHV BHVK TB",
    "gated_delta": "TBHK TBHK TBHV TBH TBH BHVK TB",
    "generalised_delta": "TBHK TBHSK TBHSV TBHSK TBHSK BHVK TB",
    "momentum_delta": "TBHK TBHK TBHV TBH TBH TBH BHVK BHVK TB",
    "delta_lstm_b": "TB[3H]V TB[3H]V TB[3H]V TB[3H] B[3H]VV BHV BHV TB",
    "delta_rnn": "TBHV TBHV TBHV TBH BHVV BHV TB",
    "recurrent_delta": "TBHK TBHK TBHV TBH HVK HVK HVV HV BHVK BHV TB",
    "attention": "TBHK TBHK TBHV TBH TBHM BHMK BHMV BHM TB",
    "deltaformer_exp_softmax": "TBHGK TBHK TBHV TBHGK HG TBH TBH BHMK BHMV BHM TB",
    "lstm": "TB[4N] [4N]N BN BN TB",
    "gru": "TB[3N] [3N]N [3N] BN TB",
}
FUNCTIONS = {"delta_lstm_b": "delta_lstm", "deltaformer_exp_softmax": "deltaformer"}
everywhere = pairs(*dispatch.BACKENDS)


def test_records_say_what_the_functions_take() -> None:
    """Their names, in their order; their shapes in letters."""
    for name, shapes in SHAPES.items():
        rule = rules.RULES[name]
        function = getattr(kernels, FUNCTIONS.get(name, name))
        static = {"variant", "normalise", "first", "second"}
        taken = [each for each in inspect.signature(function).parameters if each not in static]
        assert taken == [*rule.shapes.names, "backend"]
        want = [re.findall(r"\[(\w+)\]|(\w)", shape) for shape in shapes.split()]
        assert [tuple("".join(x) for x in shape) for shape in want] == list(rule.shapes.dimensions)


def test_tensors_without_memory_are_never_read() -> None:
    """C would read at address 0: fakes, outside of the mode that made them."""
    with torch._subclasses.FakeTensorMode() as mode:
        inputs = [mode.from_tensor(x) for x in agreeing(rules.SUM_RULE, SIZES | {"T": 1})]
    with torch.no_grad():
        y, W = rules.SUM_RULE(*inputs)
    assert type(y) is type(inputs[0]) and y.shape == (1, 2, 5, 6) and W.shape == (2, 5, 6, 4)


@everywhere
def test_every_size_of_every_input_counts(rule: Rule, backend: str) -> None:
    checks.check_every_size_counts(rule, backend, SIZES)


@everywhere
def test_dimensions_are_counted(rule: Rule, backend: str) -> None:
    checks.check_dimensions_are_counted(rule, backend, SIZES)


@everywhere
def test_nothing_is_empty(rule: Rule, backend: str) -> None:
    checks.check_nothing_is_empty(rule, backend, SIZES)


@everywhere
def test_kinds_and_devices_agree(rule: Rule, backend: str) -> None:
    checks.check_kinds_and_devices_agree(rule, backend, SIZES)


@each()
def test_random_inputs_agree(rule: Rule, seed: int) -> None:
    inputs = rule.random_inputs(SIZES)
    rule(*inputs, agreeing(rule, SIZES)[-1], backend="reference")
    for name, x in zip(rule.shapes.names, inputs, strict=False):
        assert x.isfinite().all() and x.std() > 0
        if name in rule.maps:
            assert ((x > 0) & (x < 1)).all()


def test_the_remedy_is_named() -> None:
    q, k, v, beta, W, reset = agreeing(rules.DELTA_RULE, SIZES)
    for inputs, text in (
        (
            (q, k[:2], v, beta, W),
            "k is [2, 2, 5, 4]; with q [3, 2, 5, 4] and v [3, 2, 5, 6] give [3, 2, 5, 4]",
        ),
        ((q, k, v[:, :1], beta, W), "v is [3, 1, 5, 6]; with q [3, 2, 5, 4] give [3, 2, 5, 6]"),
        ((q[0], k, v, beta, W), "give q [T, B, H, K], not [2, 5, 4]"),
        ((q, k, v, beta.double(), W), "beta is torch.float64 on cpu; give torch.float32 on cpu"),
    ):
        assert refusal(rules.DELTA_RULE, "auto", [*inputs, reset]) == f"delta_rule: {text}"
    assert refusal(rules.DELTA_RULE, "auto", [q, k, v, beta, W, reset.byte()]) == (
        "delta_rule: reset is torch.uint8 on cpu; give torch.bool on cpu"
    )
    gates, weight, *others = agreeing(rules.LSTM, SIZES)
    assert refusal(rules.LSTM, "auto", [gates[..., :-1], weight, *others]) == (
        "lstm: gates is [3, 2, 27]; with weight [28, 7] give [3, 2, 28]"
    )


@everywhere
def test_what_agrees_is_taken(rule: Rule, backend: str) -> None:
    if backend in dispatch.FUSED and rule.unsupported_reason(backend, tuple(agreeing(rule, SIZES))):
        pytest.skip("not on this machine")
    for sizes in ({}, {"T": 1, "B": 1, "H": 1}, {"K": 1, "V": 1, "N": 1}):
        inputs = agreeing(rule, SIZES | sizes)
        y, *states = rule(*inputs, backend=backend)
        assert y.shape[:2] == inputs[-1].shape
        for i, state in zip(rule.shapes.states(), states, strict=True):
            assert state.shape == inputs[i].shape


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"q": "B T H", "W": "B H"}, "q is 'B T H'; begin it with 'T B'"),
        ({"x": "T B 4N", "h": "B 4N"}, "'4N' gives no size"),
        ({"x": "T B N", "h": "B 2*N"}, "'2*N' gives no size"),
        ({"x": "T B heads"}, "'heads' gives no size"),
    ],
)
def test_shapes_that_say_nothing_are_refused(shapes: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=rf"^shapes: {re.escape(message)}[^\n]*$"):
        Shapes(**shapes)


@each()
def test_records_can_be_pickled(rule: Rule) -> None:
    """So that a memory may hold one, and its core be copied and sent to other processes."""
    sizes = dict.fromkeys(rule.shapes.letters, 3)
    again = pickle.loads(pickle.dumps(rule))
    assert again.name == rule.name and again.shapes.sized(sizes) == rule.shapes.sized(sizes)
    assert again.shapes.names == rule.shapes.names
