"""Random problems for a rule, made from its record, with every hard case among them."""

from __future__ import annotations

from collections.abc import Collection
from itertools import product

import pytest
import torch
from _pytest.mark import ParameterSet
from fastweight_helpers import assert_near, choice, errors, integer
from torch import Tensor

from deltabeast.kernels import Rule, rules

Inputs = tuple[Tensor, ...]
RULES = tuple(rules.RULES.values())
KEYS = ("softmax", "zero", "collinear", "unit")
STRENGTHS = ("sigmoid", "zero", "one", "two")
RATES = ("decay", "momentum")


VARIANTS = (
    *("delta_lstm_a", "delta_lstm_b", "delta_lstm_d", "exp_attention"),
    *("deltaformer_linear_linear", "deltaformer_softmax_exp", "deltaformer_relu_softmax"),
)
"""rules that share their code with another: every test is for them, too, but only in the long run"""


def each(*some: Rule) -> pytest.MarkDecorator:
    """Parametrize a test by rules, all of them if none is named."""
    return pytest.mark.parametrize("rule", [_case(rule) for rule in some or RULES])


def pairs(*backends: str) -> pytest.MarkDecorator:
    """Every rule with each of the backends that it has."""
    cases = [_case(rule, name) for rule in RULES for name in backends if name in rule.backends]
    return pytest.mark.parametrize(("rule", "backend"), cases)


def marks_of(rule: Rule) -> list[pytest.MarkDecorator]:
    return [pytest.mark.long] if rule.name in VARIANTS else []


def _case(rule: Rule, *backend: str) -> ParameterSet:
    return pytest.param(rule, *backend, marks=marks_of(rule), id="-".join((rule.name, *backend)))


def kinds_of(rule: Rule) -> list[tuple[str, str]]:
    """Return the kinds of keys and of strengths that `make_inputs` makes differ, in all pairs."""
    keys = KEYS if _keys_vary(rule) else KEYS[:1]
    return list(product(keys, STRENGTHS if _strengths_vary(rule) else STRENGTHS[:1]))


def _keys_vary(rule: Rule) -> bool:
    return "k" in rule.maps


def _strengths_vary(rule: Rule) -> bool:
    return "beta" in rule.shapes.names and "alpha" not in rule.shapes.names


def make_inputs(
    rule: Rule,
    steps: int,
    keys: str = "softmax",
    strengths: str = "sigmoid",
    most: int = 3,
    sizes: tuple[int, ...] = (16, 32, 60, 64),
) -> Inputs:
    """All of the rule's float arguments, float64, of random sizes; B, H up to `most`.

    `keys` and `strengths` change the inputs called k and beta. Rates are short, or long, or at times exactly
    0 or 1.
    """
    by_letter = {letter: choice(sizes) for letter in rule.shapes.letters}
    by_letter |= {"T": steps, "B": integer(1, most), "H": integer(1, most)}
    for some in {"G", "S"} & {*by_letter}:
        by_letter[some] = integer(1, 3)
    if "N" in by_letter:
        by_letter["N"] += 1  # no power of two, and no size anything likes
    inputs = dict(zip(rule.shapes.names, rule.random_inputs(by_letter, dtype=torch.float64), strict=False))
    if keys != "softmax" and _keys_vary(rule):
        inputs["k"] = _keys(inputs["k"], keys)
    if strengths != "sigmoid" and _strengths_vary(rule):
        mapped = "beta" in rule.maps
        value = {"zero": 0 if mapped else -60, "one": 1 if mapped else 60, "two": 2 if mapped else 90}[
            strengths
        ]
        inputs["beta"] = torch.full_like(inputs["beta"], value)
    if "e" in inputs:  # of any sign
        inputs["e"] = inputs["e"] * torch.randn_like(inputs["e"]).sign()
    for name in RATES:
        if name in inputs:
            inputs[name] = _rates(inputs[name], integer(0, 2))
    return tuple(inputs.values())


def assert_as_good_as_reference(
    rule: Rule, inputs: Inputs, reset: Tensor, got: dict[str, Tensor], want: dict[str, Tensor]
) -> None:
    """float32 results `got` within 2e-5 of `want`, the float64 reference.

    Where the terms of a sum cancel (a gradient of one number, say) float32 itself is further off. How far is
    luck: four times the worst is good enough, of the reference in float32 and of float64 ones with inputs off
    by what rounding a sum of 64 terms costs.
    """
    names = without_vanishing(want, got, 2e-5)
    # `not ... <=`, since of nan nothing is true.
    bad = [name for name in names if not max(errors(got[name].cpu(), want[name])) <= 2e-5]
    if not bad:
        return
    rounding = torch.finfo(torch.float32).eps / 2 * 64**0.5
    others = [run(rule, inputs, reset, "reference", torch.float32)]
    for _ in range(4):
        near = tuple(x * (1 + rounding * torch.randn_like(x)) for x in inputs)
        others.append(run(rule, near, reset, "reference", torch.float64))
    for name in bad:
        off = max(max(errors(other[name], want[name])) for other in others)
        assert_near(name, got[name].cpu(), want[name], max(2e-5, 4 * off))


def without_vanishing(want: dict[str, Tensor], got: dict[str, Tensor], tolerance: float) -> list[str]:
    """Return the names of all but gradients that vanish, which are rounding alone: those are checked here.

    The gradient of a decay does where the memory that decays is erased whole at every step.
    """
    sizes = [float(x.abs().max()) for name, x in want.items() if name.startswith("gradient")]
    scale = max(sizes, default=0.0)
    names = []
    for name, x in want.items():
        if name.startswith("gradient") and x.abs().max() < 1e-12 * scale:
            assert float(got[name].abs().max()) <= tolerance * scale, f"{name} does not vanish"
        else:
            names.append(name)
    return names


def _rates(rates: Tensor, kind: int) -> Tensor:
    """Rates between 0 and 1: of kind 0 they forget within a few steps, 1 within a hundred, 2 are 0 or 1."""
    x = torch.randn_like(rates)
    if kind == 2:
        return (2 * x.sigmoid() - 0.5).clamp(0, 1)
    return (x + 4 * kind).sigmoid()


def _keys(k: Tensor, kind: str) -> Tensor:
    """Keys in place of k, which a softmax has made."""
    if kind == "zero":
        some = torch.rand(k.shape[:-1], dtype=k.dtype).round().unsqueeze(-1)
        return k * some
    k = torch.randn_like(k)
    k = k / k.norm(dim=-1, keepdim=True)
    return k[:1].expand_as(k).clone() if kind == "collinear" else k


def run(
    rule: Rule,
    inputs: Inputs,
    reset: Tensor,
    backend: str,
    dtype: torch.dtype,
    device: str = "cpu",
    constant: Collection[int] = (),
) -> dict[str, Tensor]:
    """Outputs and the gradients of one fixed random loss of all of them, by name, on the CPU.

    Inputs whose numbers are `constant` have no gradient.
    """
    leaves = [x.to(device, dtype, copy=True).requires_grad_(i not in constant) for i, x in enumerate(inputs)]
    outputs = rule(*leaves, reset.to(device), backend=backend)
    generator = torch.Generator().manual_seed(1)
    loss = sum(
        (out * torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out)).sum()
        for out in outputs
    )
    learned = {i: leaf for i, leaf in enumerate(leaves) if i not in constant}
    grads = torch.autograd.grad(loss, list(learned.values()))
    result = {f"output {i}": out.detach().cpu() for i, out in enumerate(outputs)}
    return result | {f"gradient {i}": grad.cpu() for i, grad in zip(learned, grads, strict=True)}
