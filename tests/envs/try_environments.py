"""Train briefly in every environment of environments.csv and write down what came of it.

`python tests/envs/try_environments.py`, with the packages installed that the table names, runs `deltabeast
train` on each and writes the last two columns anew. A traceback, or files after a refusal, end it.
"""

from __future__ import annotations

import csv
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from deltabeast.agents import Agent, find_checkpoints
from deltabeast.envs import make_vector_env
from deltabeast.launch.config import TrainConfig
from deltabeast.launch.training.plan import agent_spec

TABLE = Path(__file__).with_name("environments.csv")
TINY = ("--core", "lstm", "--core-options", "hidden_size", "8", "--num-envs", "2", "--batch-size", "2",
        "--unroll-length", "5", "--steps", "30", "--device", "cpu")  # fmt: skip


def read_table() -> list[dict[str, str]]:
    with TABLE.open(newline="") as file:
        return list(csv.DictReader(file))


def outcome(env_id: str) -> tuple[str, str]:
    """Whether an agent takes a few steps here, or the message that refuses it; as in the table."""
    try:
        env = make_vector_env(env_id=env_id, num_envs=2)
    except ValueError as refusal:
        return "refused", str(refusal)
    agent = Agent(agent_spec(TrainConfig(env=env_id, core="lstm", core_options={"hidden_size": 8}), env))
    frame, _ = env.reset(seed=1)
    state, reward, done = agent.initial_state(2), torch.zeros(2), torch.ones(2, dtype=torch.bool)
    with torch.no_grad():
        for _ in range(3):
            output, state = agent.act(torch.from_numpy(frame), reward, done, state)
            assert output.policy_logits.isfinite().all()
            frame, rewards, terminated, truncated, _ = env.step(output.action.numpy())
            reward, done = torch.from_numpy(rewards), torch.from_numpy(terminated | truncated)
    env.close()
    shape = "x".join(map(str, agent.spec.observation_shape))
    without = f", without {', '.join(env.left_out)}" if env.left_out else ""  # type: ignore[attr-defined]
    return "trained", f"{shape}{without}, {agent.spec.stem}, {agent.spec.num_actions} actions"


def train(env_id: str, run_dir: Path) -> tuple[str, str]:
    """What `deltabeast train` makes of it: "trained" and nothing, or "refused" and its message."""
    command = [sys.executable, "-c", "from deltabeast.launch.cli import main; main()"]
    ran = subprocess.run(
        [*command, "train", "--env", env_id, *TINY, "--num-workers", "1", "--run-dir", run_dir],
        capture_output=True,
        text=True,
    )
    told = ran.stderr.splitlines()
    assert "Traceback" not in ran.stderr, f"{env_id}: {ran.stderr}"
    if ran.returncode == 0:
        assert find_checkpoints(run_dir)[-1].step == 30, env_id
        return "trained", ""
    errors = [line for line in told if line.startswith("deltabeast: error: ")]
    assert ran.returncode == 2 and len(errors) == 1 and told[-1] == errors[0], f"{env_id}: {ran.stderr}"
    assert not run_dir.exists(), f"{env_id}: refused, and yet it left files"
    return "refused", errors[0].removeprefix("deltabeast: error: ")


def main() -> None:
    rows = read_table()
    for row in rows:
        kind, detail = outcome(row["env"])
        with tempfile.TemporaryDirectory() as folder:
            trained, message = train(row["env"], Path(folder) / "run")
        assert (kind, detail if kind == "refused" else "") == (trained, message), row["env"]
        row |= {"outcome": kind, "detail": detail}
        print(*row.values(), sep=" | ", flush=True)
    with TABLE.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
