"""Inputs that disagree are refused by every backend alike, in one line, before anything is computed."""

from __future__ import annotations

import inspect
import re
from itertools import product

import pytest
import torch
from fastweight_rules import RULES
from torch import Tensor

from deltabeast.kernels import dispatch

SIZES = {"T": 3, "B": 2, "H": 5, "K": 4, "V": 6, "M": 28, "N": 7}  # M of gates is 4 N
SHAPES = {
    "sum_rule": "TBHK TBHK TBHV BHVK TB",
    "delta_rule": "TBHK TBHK TBHV TBH BHVK TB",
    "delta_rnn": "TBHV TBHV TBHV TBH BHVV BHV TB",
    "recurrent_delta": "TBHK TBHK TBHV TBH HVK HVK HVV HV BHVK BHV TB",
    "lstm": "TBM MN BN BN TB",
}
NAMES = {rule: list(inspect.signature(function).parameters)[:-1] for rule, function in RULES.items()}
pairs = pytest.mark.parametrize(("rule", "backend"), list(product(RULES, dispatch.BACKENDS)))


def make(rule: str, **sizes: int) -> list[Tensor]:
    """Inputs that agree, reset last."""
    sizes = {**SIZES, **sizes}
    *floats, reset = ([sizes[letter] for letter in shape] for shape in SHAPES[rule].split())
    return [*(torch.zeros(shape) for shape in floats), torch.zeros(reset, dtype=torch.bool)]


def refusal(rule: str, backend: str, inputs: list[Tensor]) -> str:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - callers look at the text
        RULES[rule](*inputs, backend=backend)
    text = str(caught.value)
    assert re.fullmatch(rf"{rule}: [^\n]+", text)
    return text


@pairs
def test_every_size_of_every_input_counts(rule: str, backend: str) -> None:
    """One less, one more, and 1, which PyTorch would stretch."""
    inputs = make(rule)
    for i, x in enumerate(inputs):
        for at, size in product(range(x.dim()), (-1, 1, None)):
            shape = list(x.shape)
            shape[at] = 1 if size is None else shape[at] + size
            wrong = torch.zeros(shape, dtype=x.dtype)
            text = refusal(rule, backend, [*inputs[:i], wrong, *inputs[i + 1 :]])
            assert f"{NAMES[rule][i]} {shape}" in text or f"{NAMES[rule][i]} is {shape}; " in text


@pairs
def test_dimensions_are_counted(rule: str, backend: str) -> None:
    inputs = make(rule)
    for i, x in enumerate(inputs):
        for wrong in (
            x.unsqueeze(-1),
            x.unsqueeze(0),
            x[..., 0],
            x.sum() > 0 if i == len(inputs) - 1 else x.sum(),
        ):
            assert str(list(wrong.shape)) in refusal(rule, backend, [*inputs[:i], wrong, *inputs[i + 1 :]])


@pairs
def test_nothing_is_empty(rule: str, backend: str) -> None:
    """Without a step no output is the last. Rows, heads and their sizes: none at all compute nothing."""
    for letter in set(SHAPES[rule]) - {" ", "M"}:
        sizes = {"M": 0, "N": 0} if letter == "N" else {letter: 0}
        text = refusal(rule, backend, make(rule, **sizes))
        assert text.endswith("; every size must be at least 1") and "0" in text


@pairs
def test_kinds_and_devices_agree(rule: str, backend: str) -> None:
    inputs = make(rule)
    for i, x in enumerate(inputs):
        elsewhere = [x.to("meta")] if i else []  # the first device is the one to agree with
        for wrong in (x.double(), x.half(), x.byte(), *elsewhere):
            text = refusal(rule, backend, [*inputs[:i], wrong, *inputs[i + 1 :]])
            assert f"{wrong.dtype}" in text or "on meta" in text


def test_the_remedy_is_named() -> None:
    q, k, v, beta, W, reset = make("delta_rule")
    for inputs, text in (
        (
            (q, k[:2], v, beta, W),
            "k is [2, 2, 5, 4]; with q [3, 2, 5, 4] and v [3, 2, 5, 6] give [3, 2, 5, 4]",
        ),
        ((q, k, v[:, :1], beta, W), "v is [3, 1, 5, 6]; with q [3, 2, 5, 4] give [3, 2, 5, 6]"),
        ((q[0], k, v, beta, W), "give q [T, B, H, K], not [2, 5, 4]"),
        ((q, k, v, beta.double(), W), "beta is torch.float64 on cpu; give torch.float32 on cpu"),
    ):
        assert refusal("delta_rule", "auto", [*inputs, reset]) == f"delta_rule: {text}"
    assert refusal("delta_rule", "auto", [q, k, v, beta, W, reset.byte()]) == (
        "delta_rule: reset is torch.uint8 on cpu; give torch.bool on cpu"
    )
    gates, weight, *others = make("lstm")
    assert refusal("lstm", "auto", [gates[..., :-1], weight, *others]) == (
        "lstm: gates is [3, 2, 27]; with weight [28, 7] give [3, 2, 28]"
    )


@pairs
def test_what_agrees_is_taken(rule: str, backend: str) -> None:
    problem = dispatch._problem(backend, rule, tuple(make(rule))) if backend in dispatch.FUSED else None
    if problem:
        pytest.skip(problem)
    for sizes in ({}, {"T": 1, "B": 1, "H": 1}, {"K": 1, "V": 1, "M": 4, "N": 1}):
        inputs = make(rule, **sizes)
        y, *_ = RULES[rule](*inputs, backend=backend)
        assert y.shape == (inputs[2] if rule != "lstm" else inputs[0][..., : inputs[1].shape[1]]).shape
