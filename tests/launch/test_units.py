"""Agent steps and scores as people write them."""

from __future__ import annotations

import random

import pytest

from deltabeast.launch.units import count, format_rate, format_score, format_steps, parse_steps


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("200M", 200_000_000),
        ("1.5M", 1_500_000),
        ("1.5m", 1_500_000),
        ("30k", 30_000),
        ("30K", 30_000),
        ("1600", 1600),
        ("2B", 2_000_000_000),
        ("1e6", 1_000_000),
        ("1.001k", 1001),  # 1.001 * 1000 is 1000.9999999999999
        ("0.29M", 290_000),
        ("1", 1),
        ("1e30", 10**30),
    ],
)
def test_parse(text: str, steps: int) -> None:
    assert parse_steps(text) == steps


def test_count() -> None:
    assert [count(number, "update") for number in (0, 1, 2, 1203)] == [
        "0 updates", "1 update", "2 updates", "1,203 updates"
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text", ["", "k", "many", "12Q", "1.2.3M", "nan", "inf", "infM", "--", "5 5", "1e999k", "1e9999999"]
)
def test_what_is_no_number_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(ValueError, match="is not a number of agent steps; write 200M, 30k or 1600") as raised:
        parse_steps(text)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("text", ["0", "-3", "-1M", "0k", "0.0001"])
def test_less_than_a_step_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="less than one agent step"):
        parse_steps(text)


@pytest.mark.parametrize("text", ["1.5", "1600.25", "1.0001k", "1.0000000000000000000000000001k"])
def test_part_of_a_step_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a whole number of agent steps"):
        parse_steps(text)


@pytest.mark.parametrize(
    ("steps", "text"),
    [
        (200_000_000, "200M"),
        (1_500_000, "1.5M"),
        (30_000, "30k"),
        (1600, "1.6k"),
        (999, "999"),
        (1001, "1001"),
        (2_000_000_000, "2B"),
        (1_230_000, "1.23M"),
        (1_234_567, "1234567"),
        (1, "1"),
        (12_345_670_000, "12345.67M"),
    ],
)
def test_format(steps: int, text: str) -> None:
    assert format_steps(steps) == text


def test_round_trip(seed: int) -> None:
    numbers = [random.randrange(1, 10 ** random.randrange(1, 13)) for _ in range(3000)]
    numbers += [random.randrange(1, 10**6) * 10 ** random.randrange(8) for _ in range(3000)]
    for steps in numbers:
        assert parse_steps(format_steps(steps)) == steps


@pytest.mark.parametrize(
    ("score", "beside", "text"),
    [
        (12.34, None, "12.3"),
        (-0.482, None, "-0.48"),
        (0.0, None, "0.0"),
        (12643.44, None, "12,643.4"),
        (0.013, -0.482, "0.01"),
        (0.013, 12.34, "0.0"),
        (1.02, 0.98, "1.02"),
    ],
)
def test_scores_below_one_have_a_second_decimal(score: float, beside: float | None, text: str) -> None:
    assert format_score(score, beside) == text


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        (1203.4, "1,203"),
        (24.6, "25"),
        (10.0, "10"),
        (2.43, "2.4"),
        (0.0264, "0.026"),
        (0.0, "0"),
        (None, "-"),
    ],
)
def test_a_rate_has_two_digits_at_least(rate: float | None, text: str) -> None:
    assert format_rate(rate) == text
