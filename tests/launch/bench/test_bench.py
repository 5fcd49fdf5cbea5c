"""The benchmarks measure what they say, and a wrong kernel gets no speed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from deltabeast import kernels
from deltabeast.kernels import rules
from deltabeast.kernels.pytorch import chunked
from deltabeast.launch import cli
from deltabeast.launch.bench.command import _show
from deltabeast.launch.bench.kernels import Measured, _error, _peak_bytes
from deltabeast.launch.bench.memories import MEMORIES
from deltabeast.launch.bench.tables import kernel_table

SMALL = ("--steps", "9", "--batch-size", "3", "--heads", "2", "--head-size", "8", "--repeats", "2")


def bench(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = 0
    try:
        cli.main(["bench", *arguments])
    except SystemExit as exit_:
        code = int(exit_.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_every_kernel_is_checked_and_timed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "kernels.json"
    code, out, error = bench(capsys, "kernels", *SMALL, "--device", "cpu", "--json", str(path))
    assert (code, error) == (0, "")
    content = json.loads(path.read_text())
    assert content["settings"]["steps"] == 9 and torch.__version__.startswith(content["versions"]["torch"])
    measured = {(row["rule"], row["backend"]): row for row in content["results"]}
    cpu = torch.device("cpu")
    expected = kernels.backends(cpu, 8) | {memory.name: memory.backends_on(cpu, 8) for memory in MEMORIES}
    assert {memory.name for memory in MEMORIES} == {"kda", "gated_delta_net_2", "delta_product", "rwkv7"}
    assert expected["rwkv7"] == ("reference", "chunked", "native")
    assert expected["delta_rule"] == ("reference", "chunked", "native")
    assert set(measured) == {(rule, name) for rule, names in expected.items() for name in names}
    for (rule, _), row in measured.items():
        assert 0 < row["error"] < 1e-4 and 0 < row["forward"] < row["both"] and row["ratio"] > 0
        assert rule in out
        assert row["peak_bytes"] > 9 * 3 * 2 * 8 * 4  # y at least


def test_an_interruption_shows_what_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    def rows() -> Iterator[Measured]:
        yield Measured("sum_rule", "native", 1e-7)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _show(rows(), kernel_table)
    assert "sum_rule" in capsys.readouterr().out


def test_only_the_rules_that_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "kernels.json"
    arguments = ("--rules", "rwkv7", "sum_rule", "--device", "cpu", "--json", str(path))
    assert bench(capsys, "kernels", *SMALL, *arguments)[0] == 0
    rules = [row["rule"] for row in json.loads(path.read_text())["results"]]
    assert rules == ["rwkv7"] * 3 + ["sum_rule"] * 3


def test_only_a_gpu_times_graphs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "kernels.json"
    some = () if torch.cuda.is_available() else ("--rules", "sum_rule", "rwkv7")
    assert bench(capsys, "kernels", *SMALL, *some, "--json", str(path))[0] == 0
    graphs = [row["captured"] for row in json.loads(path.read_text())["results"]]
    if torch.cuda.is_available():
        assert all(0 < seconds < 1 for seconds in graphs)
    else:
        assert set(graphs) == {None}


def test_a_wrong_kernel_is_named_and_not_timed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def wrong(*inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y, W = chunked.delta_rule(*inputs)
        y = y.clone()
        y[-1, 0, 0] *= 1.001  # one row of many
        return y, W

    monkeypatch.setitem(rules.RULES, "delta_rule", replace(rules.DELTA_RULE, chunked=wrong))
    path = tmp_path / "kernels.json"
    some = ("--rules", "sum_rule", "delta_rule", "rwkv7", "--device", "cpu")
    code, out, error = bench(capsys, "kernels", *SMALL, *some, "--json", str(path))
    assert code == 1 and error.startswith("deltabeast: error: not within 0.0001")
    assert "delta_rule (chunked)" in error and "sum_rule" not in error
    assert out.count("WRONG: not timed") == 1
    wrong_rows = [row for row in json.loads(path.read_text())["results"] if row["forward"] is None]
    assert [(row["rule"], row["backend"]) for row in wrong_rows] == [("delta_rule", "chunked")]


def test_the_error_of_one_row_or_one_nan_does_not_hide() -> None:
    want = [torch.ones(1000, 4, dtype=torch.float64)]
    assert _error([torch.ones(1000, 4)], want) == 0
    one_row = torch.ones(1000, 4)
    one_row[7] = 1.01
    assert 0.005 < _error([one_row], want) < 0.02
    one_row[7, 0] = torch.nan
    assert _error([one_row], want) == float("inf")


def test_peak_memory_counts_what_lives_at_once() -> None:
    def at_once() -> Any:
        return torch.empty(1 << 20), torch.empty(1 << 20)

    def one_after_another() -> Any:
        first = torch.empty(1 << 20)
        del first
        return torch.empty(1 << 20)

    assert _peak_bytes(at_once) == 2 * _peak_bytes(one_after_another) == 8 << 20


@pytest.mark.usefixtures("quick_children")
def test_environments_are_timed_by_game_number_threads_and_processes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "env.json"
    arguments = ("--games", "pong", "Breakout", "--num-envs", "1", "2", "--threads", "1", "2")
    arguments = (*arguments, "--processes", "2")
    code, out, _ = bench(capsys, "env", *arguments, "--seconds", "0.1", "--json", str(path))
    assert code == 0
    rows = json.loads(path.read_text())["results"]
    # More threads than environments would be idle.
    cases = [(row["game"], row["num_envs"], row["threads"], row["processes"]) for row in rows]
    sizes = ((1, 1, 1), (2, 1, 1), (2, 2, 1), (2, 1, 2))
    assert cases == [(game, *each) for game in ("pong", "breakout") for each in sizes]
    assert all(10 < row["steps_per_second"] < 1e6 for row in rows)
    assert out.count("breakout") == 4


@pytest.mark.parametrize("overlap", ["off", "on"])
def test_training_is_set_beside_its_stages(
    overlap: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "throughput.json"
    sizes = ("--num-envs", "4", "--batch-size", "4", "--unroll-length", "5", "--overlap", overlap)
    arguments = ("--stem", "nature", "--core", "feedforward", *sizes, "--seconds", "0.15", "--rounds", "1")
    code, out, error = bench(capsys, "throughput", *arguments, "--device", "cpu", "--json", str(path))
    assert (code, error) == (0, "") and "of the bound" in out and "1 process of" in out
    (result,) = json.loads(path.read_text())["results"]
    # One process with all four environments keeps what it computed, unless it computes in bfloat16.
    stages = [result[name] for name in ("emulation", "acting", "backward")]
    apart = [result[name] for name in ("emulation", "inference", "learning")]
    assert 0 < result["bound"] <= min(stages) and result["trained"] > 0
    assert result["share_of_bound"] == pytest.approx(result["trained"] / result["bound"])
    if overlap == "off":
        assert result["bound"] == pytest.approx(1 / sum(1 / stage for stage in stages))
        assert result["bound_apart"] == pytest.approx(1 / sum(1 / stage for stage in apart))
        assert sum(result["time_shares"].values()) == pytest.approx(1, abs=0.01)
        assert result["policy_lag"] == 0
        assert 0 < result["core_share"] < 1
    assert 2**26 < result["peak_memory_bytes"] < 2**36


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "say deltabeast bench kernels, bench env or bench throughput"),
        ("throughput --rounds 0", "--rounds 0; it must be at least 1"),
        ("throughput --seconds nan", "--seconds nan; it must be finite"),
        ("env --seconds 0", "--seconds 0.0; it must be positive"),
        ("kernels --reset-share 1.5", "--reset-share 1.5; it must be from 0 to 1"),
        ("throughput --game pnog", "pong"),
        ("throughput --num-envs 6 --batch-size 4", "one must be a multiple of the other"),
        ("kernels --steps 0", "--steps 0; it must be at least 1"),
        ("kernels --device gpu", "choose auto, cpu or cuda"),
        ("kernels --rules sum_rule kdaa", "--rules kdaa: did you mean kda?"),
        ("kernels --rules sum_rule xyz", "--rules xyz: choose from attention, "),
        ("kernels --json nowhere/x.json", "cannot write nowhere/x.json"),
        ("env --games pnog", "pong"),
        ("env --num-envs 8 0", "--num-envs 0; it must be at least 1"),
        ("env --games", "--games has no value"),
        ("env --num-envs", "--num-envs has no value"),
        ("env --num-envs 2 --threads 3", "--num-envs 2: give at least as many as --threads 3"),
        ("env --num-envs 2 --processes 3", "--num-envs 2: give at least as many as --processes 3"),
    ],
)
def test_wrong_input_is_told_in_one_line(
    arguments: str, message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    code, out, error = bench(capsys, *arguments.split())
    assert (code, out) == (2, "") and error.count("\n") == 1 and message in error
    assert list(tmp_path.iterdir()) == []
