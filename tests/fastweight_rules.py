"""Random problems for a rule, made from its record, with every hard case among them."""

from __future__ import annotations

import pytest
import torch
from fastweight_helpers import assert_near, choice, errors, integer
from torch import Tensor

from deltabeast.kernels import Rule, rules

Inputs = tuple[Tensor, ...]
RULES = tuple(rules.RULES.values())
KEYS = ("softmax", "zero", "collinear", "unit")
STRENGTHS = ("sigmoid", "zero", "one")


def each(*some: Rule) -> pytest.MarkDecorator:
    """Parametrize a test by rules, all of them if none is named."""
    return pytest.mark.parametrize("rule", some or RULES, ids=[rule.name for rule in some or RULES])


def pairs(*backends: str) -> pytest.MarkDecorator:
    """Every rule with each of the backends that it has."""
    cases = [(rule, name) for rule in RULES for name in backends if name in rule.backends]
    return pytest.mark.parametrize(
        ("rule", "backend"), cases, ids=[f"{rule.name}-{name}" for rule, name in cases]
    )


def make_inputs(
    rule: Rule,
    steps: int,
    keys: str = "softmax",
    strengths: str = "sigmoid",
    most: int = 3,
    sizes: tuple[int, ...] = (16, 32, 60, 64),
) -> Inputs:
    """All of the rule's float arguments, float64, of random sizes; B, H up to `most`.

    `keys` and `strengths` change the inputs called k and beta.
    """
    by_letter = {letter: choice(sizes) for letter in rule.shapes.letters}
    by_letter |= {"T": steps, "B": integer(1, most), "H": integer(1, most)}
    if "N" in by_letter:
        by_letter["N"] += 1  # no power of two, and no size anything likes
    inputs = dict(zip(rule.shapes.names, rule.random_inputs(by_letter, dtype=torch.float64), strict=False))
    if "k" in rule.maps and keys != "softmax":
        inputs["k"] = _keys(inputs["k"], keys)
    if "beta" in inputs and strengths != "sigmoid":
        low, high = (0, 1) if "beta" in rule.maps else (-60, 60)
        inputs["beta"] = torch.full_like(inputs["beta"], low if strengths == "zero" else high)
    return tuple(inputs.values())


def assert_as_good_as_reference(
    rule: Rule, inputs: Inputs, reset: Tensor, got: dict[str, Tensor], want: dict[str, Tensor]
) -> None:
    """float32 results `got` within 2e-5 of `want`, the float64 reference.

    Where the terms of a sum cancel (a gradient of one number, say) float32 itself is further off. How far is
    luck: four times the worst is good enough, of the reference in float32 and of float64 ones with inputs off
    by what rounding a sum of 64 terms costs.
    """
    bad = [name for name in want if max(errors(got[name].cpu(), want[name])) > 2e-5]
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


def _keys(k: Tensor, kind: str) -> Tensor:
    """Keys in place of k, which a softmax has made."""
    if kind == "zero":
        some = torch.rand(k.shape[:3], dtype=k.dtype).round().unsqueeze(-1)
        return k * some
    k = torch.randn_like(k)
    k = k / k.norm(dim=-1, keepdim=True)
    return k[:1].expand_as(k).clone() if kind == "collinear" else k


def run(
    rule: Rule, inputs: Inputs, reset: Tensor, backend: str, dtype: torch.dtype, device: str = "cpu"
) -> dict[str, Tensor]:
    """Outputs and the gradients of one fixed random loss of all of them, by name, on the CPU."""
    leaves = [x.to(device, dtype, copy=True).requires_grad_() for x in inputs]
    outputs = rule(*leaves, reset.to(device), backend=backend)
    generator = torch.Generator().manual_seed(1)
    loss = sum(
        (out * torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out)).sum()
        for out in outputs
    )
    grads = torch.autograd.grad(loss, leaves)
    result = {f"output {i}": out.detach().cpu() for i, out in enumerate(outputs)}
    return result | {f"gradient {i}": grad.cpu() for i, grad in enumerate(grads)}
