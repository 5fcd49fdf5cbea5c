"""Every backend against the float64 reference: outputs and all gradients."""

from __future__ import annotations

from itertools import product

import fastweight_checks as checks
import pytest
import torch
from fastweight_helpers import RESET_PATTERNS, make_reset
from fastweight_rules import KEYS, RULES, each, kinds_of, make_inputs, marks_of, pairs

from deltabeast.kernels import Rule, rules
from deltabeast.kernels.pytorch import chunked, stepwise

LENGTHS = (1, 2, 3, 15, 16, 17, 50, 51, 63, 64, 65, 80, 100, 130)
AROUND_CHUNKS = (1, 3, 17, 51, 65)
"""one chunk, three whole ones, four of which the last is padded"""
WITHOUT_CHUNKS = (1, 2, 3, 16, 17, 50)
"""of C, and of rules whose chunk form is a loop: steps follow each other one by one"""
LOOPS = (rules.RECURRENT_DELTA, rules.LSTM, rules.GRU)
FAST = ("chunked", "auto", "native")
TELLING = {("softmax", "sigmoid"), ("zero", "one"), ("collinear", "two"), ("unit", "zero"), ("unit", "one")}
"""each of the keys and each of the strengths, in the pairs that are hardest"""


@pytest.mark.parametrize("pattern", RESET_PATTERNS)
@pairs("chunked", "native")
def test_lengths(rule: Rule, backend: str, pattern: str, seed: int) -> None:
    for steps in _telling(rule, backend, pattern):
        checks.check_equals_reference(rule, steps, pattern, backend)


@pytest.mark.long
@pytest.mark.parametrize("pattern", RESET_PATTERNS)
@pairs("chunked", "native")
def test_other_lengths(rule: Rule, backend: str, pattern: str, seed: int) -> None:
    for steps in sorted({*LENGTHS} - {*_telling(rule, backend, pattern)}):
        checks.check_equals_reference(rule, steps, pattern, backend)


def _telling(rule: Rule, backend: str, pattern: str) -> tuple[int, ...]:
    """Return the lengths where mistakes show first."""
    if _has_chunks(rule, backend):
        return AROUND_CHUNKS
    return WITHOUT_CHUNKS if pattern in ("none", "random") else WITHOUT_CHUNKS[:-1]


def _has_chunks(rule: Rule, backend: str) -> bool:
    return backend == "chunked" and rule not in LOOPS


def test_chunks_cover_every_step_with_little_padding() -> None:
    for steps in range(1, 3000):
        count, length = chunked._chunks(steps)
        assert 0 <= count * length - steps < length
        assert length <= 24 and (count * length <= 1.1 * steps or steps < 100), steps


@each(rules.DELTA_RNN, *rules.DELTA_LSTM.values(), rules.RECURRENT_DELTA, rules.LSTM, rules.GRU)
def test_resets_without_a_look_at_the_mask(rule: Rule, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What other devices than CPUs do."""

    class Blind(stepwise.Resets):
        def __init__(self, reset: torch.Tensor) -> None:
            super().__init__(reset)
            self.on_cpu, self.any = False, [True] * len(reset)

    monkeypatch.setattr(stepwise, "Resets", Blind)
    for pattern in RESET_PATTERNS:
        checks.check_equals_reference(rule, 17, pattern, "chunked")


def hard_pairs(*backends: str) -> pytest.MarkDecorator:
    """Every rule with each of its backends, and with the keys and strengths that it has, in all pairs."""
    cases = []
    for rule, backend in product(RULES, backends):
        kinds = kinds_of(rule)
        for kind in kinds if backend in rule.backends else ():
            rare = len(kinds) > len(KEYS) and kind not in TELLING
            marks = [*marks_of(rule), *([pytest.mark.long] if rare else [])]
            name = "-".join((rule.name, backend, *kind))
            cases.append(pytest.param(rule, backend, *kind, marks=marks, id=name))
    return pytest.mark.parametrize(("rule", "backend", "keys", "strengths"), cases)


@hard_pairs("chunked", "native")
def test_keys_and_strengths(rule: Rule, backend: str, keys: str, strengths: str, seed: int) -> None:
    for steps in (1, 17, 70) if _has_chunks(rule, backend) else (1, 40):
        checks.check_equals_reference(rule, steps, "random", backend, keys=keys, strengths=strengths)


@pytest.mark.parametrize("steps", [1, 4, 70])
@pairs(*FAST)
def test_without_gradients(rule: Rule, backend: str, steps: int, seed: int) -> None:
    checks.check_without_gradients(rule, steps, backend)


@pairs("reference", *FAST)
def test_inputs_are_left_alone(rule: Rule, backend: str, seed: int) -> None:
    checks.check_inputs_are_left_alone(rule, backend)


BROKEN = [
    pytest.param(
        value, grad, steps, marks=() if value != float("inf") or (grad and steps == 70) else pytest.mark.long
    )
    for value in (float("nan"), float("inf"))
    for grad in (False, True)
    for steps in (1, 6, 70)
]


@pytest.mark.parametrize(("value", "grad", "steps"), BROKEN)
@pairs("reference", *FAST)
def test_broken_state_ends_with_its_episode(
    rule: Rule, backend: str, value: float, grad: bool, steps: int, seed: int
) -> None:
    gates = rule is rules.LSTM and value == float("inf")  # turn it into 0 or 1
    shows = not gates and "live" not in rule.shapes.names  # a window moves on
    checks.check_broken_state_ends_with_its_episode(rule, backend, value, grad, steps, shows)


@pairs("reference", "chunked", "native")
def test_no_gradient_crosses_a_reset(rule: Rule, backend: str, seed: int) -> None:
    checks.check_no_gradient_crosses_a_reset(rule, backend)


@pairs(*FAST)
def test_a_second_derivative_is_refused_or_right(rule: Rule, backend: str, seed: int) -> None:
    checks.check_no_second_derivative_is_wrong(rule, backend)


@pairs("reference", "chunked", "native")
def test_no_gradient_is_given(rule: Rule, backend: str, seed: int) -> None:
    checks.check_no_gradient_is_given(rule, backend)


@pairs("reference", "native")
def test_broken_rates_end_at_their_episode(rule: Rule, backend: str, seed: int) -> None:
    """Gradients of the episode before know nothing of it."""
    checks.check_broken_rates_end_at_their_episode(rule, backend)


@pytest.mark.parametrize("steps", [1, 20])
@pairs("reference", *FAST)
def test_autocast_changes_nothing(rule: Rule, backend: str, steps: int, seed: int) -> None:
    checks.check_autocast_changes_nothing(rule, steps, backend)


@each()
def test_bad_arguments(rule: Rule) -> None:
    inputs = make_inputs(rule, 2)
    reset = make_reset("none", 2, inputs[0].shape[1])
    with pytest.raises(
        ValueError, match=r"^.*unknown backend 'cuda'; choose from auto, reference, chunked, native, triton$"
    ):
        rule(*inputs, reset, backend="cuda")
