"""Agents whose state is reset: what they then do, what evaluations keep of it, what a comparison draws."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from comparison_runs import add_evaluation, make_run

from deltabeast.agents import Agent, AgentSpec
from deltabeast.launch.cli import main
from deltabeast.launch.comparison.grouping import compare
from deltabeast.launch.comparison.runs import read_run
from deltabeast.launch.comparison.sections.operations import operations
from deltabeast.launch.evaluation.altered_memory import AlteredMemory
from deltabeast.launch.evaluation.memory_ops import MemoryOp


@pytest.mark.parametrize("every", [1, 3, 100])
def test_a_reset_state_is_that_of_a_new_episode(every: int, seed: int) -> None:
    """Steps are counted from the beginning of each row's episode."""
    torch.manual_seed(seed)
    steps, rows = 9, 4
    agent = Agent(
        AgentSpec((3,), 5, "rdn", "mlp", {"hidden_size": 8, "num_heads": 2, "num_layers": 1, "ff_size": 8})
    )
    agent.eval()
    observation, reward = torch.randn(steps, rows, 3), torch.randn(steps, rows)
    done = torch.rand(steps, rows) < 0.2
    done[0] = True
    player = AlteredMemory(agent, agent.core, MemoryOp("wipe-every", every))
    state, plain = player.initial_state(rows), agent.initial_state(rows)
    into = np.zeros(rows, int)
    with torch.no_grad():
        for t in range(steps):
            into = np.where(done[t], 0, into)
            output, state = player.act(observation[t], reward[t], done[t], state)
            expected, plain = agent.act(
                observation[t], reward[t], torch.from_numpy(into % every == 0), plain, greedy=True
            )
            torch.testing.assert_close(output.policy_logits, expected.policy_logits)
            into += 1


class TwoStepsBefore(gymnasium.Env[np.ndarray, int]):
    """Shows a bit for one step; in the next but one, its action is asked for."""

    observation_space = gymnasium.spaces.MultiDiscrete([3])
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):  # type: ignore[no-untyped-def]
        super().reset(seed=seed)
        self._bit, self._at = int(self.np_random.integers(2)), 0
        return np.array([self._bit]), {}

    def step(self, action):  # type: ignore[no-untyped-def]
        self._at += 1
        done = self._at == 3
        return np.array([2]), float(done and action == self._bit), done, False, {}


def test_an_agent_that_remembers_two_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is trained, then reset: with less than three steps from the bit on it guesses."""
    gymnasium.register("TwoStepsBefore-v0", TwoStepsBefore)
    run = tmp_path / "run"
    main(["train", "--env", "TwoStepsBefore-v0", "--core", "gru", "--steps", "40k", "--run-dir", str(run),
          "--num-envs", "16", "--batch-size", "16", "--unroll-length", "12", "--num-workers", "1",
          "--learning-rate", "3e-3", "--entropy-cost", "0.003", "--device", "cpu"])  # fmt: skip
    main(
        [
            "eval",
            str(run),
            "--forget-every",
            "2",
            "1",
            "3",
            *("--memory", "undo@0", "wipe@1", "wipe@2", "undo@2", "freeze@2", "freeze@0", "wipe-every:2"),
            *("--repeats", "2", "--episodes", "20", "--device", "cpu", "--certificate"),
        ]
    )
    (file,) = (run / "eval").glob("*.json")
    saved = json.loads(file.read_text())
    results, certificate = saved["results"], saved["certificate"]
    assert certificate["correct"] and certificate["used"]
    assert certificate["cost"] == results["forgets every 1"]["difference"]["life"]
    resets, ops = ["forgets every 1", "forgets every 2", "forgets every 3"], ["undo@0", "wipe@1", "wipe@2"]
    assert list(results) == ["trained", *resets, *ops, "undo@2", "freeze@2", "freeze@0"]
    mean = {name: result["summary"]["game"]["mean"] for name, result in results.items()}
    assert mean["trained"] == mean["forgets every 3"] == 1.0  # reset where an episode begins
    assert mean["forgets every 1"] < 0.8 and mean["forgets every 2"] < 0.8
    assert all(mean[op] < 0.8 for op in ops), "without the step that saw the bit"
    for harmless in ("undo@2", "freeze@2"):  # nobody reads what the last step writes
        assert results[harmless] == {**results["trained"], "difference": results[harmless]["difference"]}
        nothing = {"mean": 0.0, "interval": [0.0, 0.0]}
        assert results[harmless]["difference"] == {"life": nothing, "game": nothing}
    assert results["freeze@0"] == results["forgets every 1"], "a GRU's whole state is its memory"
    for op in ops:
        low, high = results[op]["difference"]["game"]["interval"]
        assert results[op]["difference"]["game"]["mean"] == pytest.approx(mean[op] - 1) and low < high < 0
    printed = capsys.readouterr().out
    table = printed[printed.index("memory ") :].splitlines()[:11]
    assert [line.split("  ")[0] for line in table] == [
        "memory", "reset at each step", "reset every 2 steps", "reset every 3 steps",
        "undo@0", "wipe@1", "wipe@2", "undo@2", "freeze@2", "freeze@0", "untouched",
    ]  # fmt: skip
    assert table[8].split()[-5:-1] == ["0", "(0", "to", "0)"] and "(" not in table[-1]
    assert "certificate of the memory" in printed and "used      yes: with the memory wiped" in printed
    assert "…" not in printed and "forgets every" not in printed
    own, nowhere = f"transplant:{run}@1", f"transplant:{tmp_path}@1"
    main(["eval", str(run), "--memory", own, "--repeats", "2", "--episodes", "20", "--device", "cpu"])
    again = json.loads(max((run / "eval").glob("*.json")).read_text())["results"]
    assert again[own] == {**again["trained"], "difference": {"life": nothing, "game": nothing}}
    found, _ = read_run(run)
    assert found is not None
    (section,) = operations(compare([found]))
    of_both = [(op, each[op]) for each in (results, again) for op in each if "@" in op]
    assert section.tables[1].rows == [
        ["TwoStepsBefore-v0", "gru", op, (life := result["difference"]["life"])["mean"], *life["interval"], 1]
        for op, result in of_both
    ]
    with pytest.raises(SystemExit):
        main(["eval", str(run), "--memory", nowhere, "--device", "cpu"])
    assert f"--memory {nowhere}: no run at {tmp_path}; give" in capsys.readouterr().err


def test_compare_shows_what_less_memory_and_operations_cost(tmp_path: Path) -> None:
    for seed in (1, 2):
        run = make_run(tmp_path / "runs", core="rdn", seed=seed)
        file = add_evaluation(run, 10.0 * seed)
        content = json.loads(file.read_text())
        for every, value in ((1, 2.0), (4, 8.0)):
            summary = {kind: {"mean": value * seed, "count": 5} for kind in ("life", "game")}
            content["results"][f"forgets every {every}"] = {"summary": summary}
        change = {"mean": -3.0 * seed, "interval": [-9.0, -1.0]}
        content["results"]["wipe@3"] = {"summary": summary, "difference": {"life": change, "game": None}}
        file.write_text(json.dumps(content))
    make_run(tmp_path / "runs", core="lstm", scores=[7.0])  # was not evaluated so
    main(["compare", str(tmp_path / "runs"), "--out", str(tmp_path / "out")])
    rows = list(csv.DictReader((tmp_path / "out" / "tables" / "forgetting.csv").open(newline="")))
    assert [(row["series"], row["reset every"], float(row["mean"])) for row in rows] == [
        ("rdn", "1", 3.0), ("rdn", "4", 12.0), ("rdn", "never", 45.0),
    ]  # fmt: skip
    assert (tmp_path / "out" / "plots" / "forgetting-gopher.png").is_file()
    (row,) = csv.DictReader((tmp_path / "out" / "tables" / "memory-operations.csv").open(newline=""))
    assert (row["series"], row["operation"], float(row["difference"])) == ("rdn", "wipe@3", -4.5)
    assert "| gopher | rdn | −4.50 [−6.00, −3.00] |" in (tmp_path / "out" / "report.md").read_text()


def test_a_number_below_one_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["eval", str(tmp_path), "--forget-every", "4", "0"])
    assert ended.value.code == 2 and "--forget-every 0; it must be at least 1" in capsys.readouterr().err
