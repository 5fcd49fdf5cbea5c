"""`deltabeast import-torchbeast`: from a file as the released code writes it to a run like any other."""

from __future__ import annotations

import json
import os
import pickle
import random
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference_torchbeast as reference
import torch

from deltabeast.agents import load_agent, load_checkpoint, resolve_checkpoint
from deltabeast.launch.config import ImportConfig
from deltabeast.launch.errors import UsageError
from deltabeast.launch.parsing import parse
from deltabeast.launch.runs.describe import describe_run
from deltabeast.launch.training.command import train
from deltabeast.launch.training.import_torchbeast import import_model

FLAGS = {
    "env": "GopherNoFrameskip-v4", "unroll_length": 5, "batch_size": 4, "learning_rate": 0.0006,
    "alpha": 0.99, "momentum": 0, "epsilon": 0.01, "discounting": 0.98, "entropy_cost": 0.01,
    "baseline_cost": 0.5, "grad_norm_clipping": 40.0, "reward_clipping": "abs_one",
    "total_steps": 1000, "num_head": 2,
    "dropout": 0.0, "learner_device": torch.device("cpu"), "xpid": None, "disable_cuda": False,
}  # fmt: skip


def write_model(path: Path, core: str = "rdn", actions: int = 8, old: bool = False, **flags: Any) -> Any:
    """A model.tar as PolyBeast saves it after 3 updates; `old` as torch 1.2 and NumPy 1 wrote it."""
    weights = reference.random_weights(core, actions)
    parameters = [torch.nn.Parameter(tensor) for tensor in weights.values()]
    optimizer = torch.optim.RMSprop(parameters, lr=6e-4, eps=0.01, alpha=0.99)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1 - epoch / 50)
    for _ in range(3):
        for parameter in parameters:
            parameter.grad = torch.rand_like(parameter)
        optimizer.step()
        scheduler.step()
    stats = {
        "step": 60,
        "episode_returns": tuple(np.array([20.0, 40.0], np.float32)),
        "mean_episode_return": 30.0,
        "learner_queue_size": 4,
    }
    content = {
        "model_state_dict": {name: p.detach() for name, p in zip(weights, parameters, strict=True)},
        "optimizer_state_dict": optimizer.state_dict(),
        "scheduler_state_dict": scheduler.state_dict(),
        "stats": stats,
        "flags": {**FLAGS, **flags},
    }
    torch.save(content, path, _use_new_zipfile_serialization=not old)
    if old:
        raw = path.read_bytes()
        assert b"numpy._core.multiarray" in raw
        path.write_bytes(raw.replace(b"numpy._core.multiarray", b"numpy.core.multiarray"))
    return content


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("core", ["lstm", "linear_transformer", "rdn"])
def test_the_run_acts_as_the_released_network(tmp_path: Path, core: str, old: bool, seed: int) -> None:
    weights = write_model(tmp_path / "model.tar", core, old=old)["model_state_dict"]
    said = import_model(ImportConfig(tmp_path / "model.tar", "Gopher", tmp_path / "run", core))
    assert "step 60" in said[0] and len(said) == 2
    agent = load_agent(tmp_path / "run")
    assert (agent.spec.game, agent.spec.protocol, agent.spec.num_actions) == ("gopher", "paper-code", 8)
    frame = torch.randint(0, 256, (3, 1, 4, 84, 84), dtype=torch.uint8)
    reward, done = torch.tensor([[0.0], [5.0], [1.0]]), torch.tensor([[True], [False], [True]])
    state: reference.State = {"h": torch.zeros(1, 8), "c": torch.zeros(1, 8)}
    if core != "lstm":
        state = {f"core.fwm_layers.{layer}.{head}.{name}": torch.zeros(1, 4, *([4] if name == "fast" else []))
                 for layer in range(2) for head in range(2) for name in ("fast", "last")}  # fmt: skip
    state = {name: part.double() for name, part in state.items()}
    expected, _, _ = reference.unroll(weights, 2, frame, reward, done, state)
    ours = agent.initial_state(1)
    with torch.no_grad():
        for t in range(3):
            output, ours = agent.act(frame[t], reward[t], done[t], ours, greedy=True)
            assert torch.allclose(output.policy_logits.double(), expected[t], atol=1e-4, rtol=1e-4)


def test_training_goes_on_with_their_optimizer_steps_and_options(tmp_path: Path) -> None:
    content = write_model(tmp_path / "model.tar", "rdn")
    import_model(ImportConfig(tmp_path / "model.tar", "gopher", tmp_path / "run"))
    _, state = load_checkpoint(resolve_checkpoint(tmp_path / "run"))
    learner = state["learner"]
    assert (learner["steps"], learner["version"]) == (60, 3)
    assert learner["optimizer"]["state"][0]["step"] == 3
    squares = sorted(float(part["square_avg"].sum()) for part in learner["optimizer"]["state"].values())
    theirs = content["optimizer_state_dict"]["state"].values()
    assert squares == pytest.approx(sorted(float(part["square_avg"].sum()) for part in theirs))
    config = json.loads((tmp_path / "run" / "config.json").read_text())["config"]
    assert config["discount"] == 0.98 and config["steps"] == "1k" and config["bptt"] == "per_step"
    assert json.loads((tmp_path / "run" / "imported.json").read_text())["flags"]["env"] == FLAGS["env"]
    options = "--unroll-length 5 --batch-size 4 --num-envs 4 --discount 0.98 --preset published --steps 80"
    sizes = "--core-options hidden_size 8 num_heads 2 ff_size 12"
    train(
        parse(
            f"train --game gopher --core rdn {sizes} {options} --run-dir {tmp_path}/run --device cpu".split()
        )
    )
    assert resolve_checkpoint(tmp_path / "run").name.endswith("80")
    trained, before = (
        load_agent(tmp_path / "run"),
        load_agent(tmp_path / "run" / "checkpoints" / f"{60:012d}"),
    )
    pairs = zip(trained.state_dict().values(), before.state_dict().values(), strict=True)
    largest = max(float((a - b).abs().max()) for a, b in pairs)
    assert 0 < largest < 0.1, "one update from where it was"


def test_what_training_would_do_otherwise_is_said(tmp_path: Path) -> None:
    write_model(tmp_path / "model.tar", "lstm", actions=6, reward_clipping="none", dropout=0.1)
    said = import_model(ImportConfig(tmp_path / "model.tar", "amidar", tmp_path / "run"))
    assert any("first 6 of 10 actions" in line for line in said) and "train on" in said[-1]
    assert any("reward_clipping abs_one, not none" in line for line in said)
    assert any("dropout 0.0, not 0.1" in line for line in said)


def test_an_agent_with_six_actions_trains_on_with_them(tmp_path: Path) -> None:
    write_model(tmp_path / "model.tar", "lstm", actions=6)
    import_model(ImportConfig(tmp_path / "model.tar", "amidar", tmp_path / "run"))
    (command,) = (line for label, line in describe_run(tmp_path / "run") if label == "to go on")
    words = command.split()[1:]
    assert words[words.index("--num-actions") + 1] == "6"
    train(parse([*words, "--steps", "80"]))
    assert load_agent(tmp_path / "run").spec.num_actions == 6
    words = " ".join(words).replace(" --num-actions 6", "").split()
    with pytest.raises(UsageError, match=r"holds a run with num actions 6, not 10; give another --run-dir"):
        train(parse([*words, "--steps", "120"]))


def test_another_game_in_the_flags_is_said(tmp_path: Path) -> None:
    for env, said in (("PongNoFrameskip-v4", True), ("GopherNoFrameskip-v4", False)):
        write_model(tmp_path / "model.tar", env=env)
        lines = import_model(ImportConfig(tmp_path / "model.tar", "gopher", tmp_path / env))
        assert any("check --game: its flags name PongNoFrameskip-v4" in line for line in lines) == said


def test_bare_weights_are_enough(tmp_path: Path) -> None:
    weights = reference.random_weights("linear_transformer", 8)
    torch.save(weights, tmp_path / "weights.pt")
    said = import_model(ImportConfig(tmp_path / "weights.pt", "gopher", tmp_path / "run", num_heads=4))
    assert any("new optimizer" in line for line in said) and "num_heads" not in said[0]
    assert load_agent(tmp_path / "run").spec.core_options["hidden_size"] == 8


class Evil:
    def __reduce__(self) -> Any:
        return os.mkdir, (str(Evil.target),)

    target: Path


def test_nothing_in_a_file_is_executed(tmp_path: Path) -> None:
    Evil.target = tmp_path / "executed"
    for name, write in (("zip", torch.save), ("pickle", lambda o, p: p.write_bytes(pickle.dumps(o)))):
        write({"model_state_dict": Evil()}, tmp_path / name)
        with pytest.raises(UsageError, match=f"{name} is damaged, or holds more than"):
            import_model(ImportConfig(tmp_path / name, "gopher", tmp_path / "run"))
    assert not Evil.target.exists() and not (tmp_path / "run").exists()


def test_a_file_that_is_none_or_packed_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="pipe: it is not a regular file; give"):
        import_model(ImportConfig(tmp_path / "pipe", "gopher", tmp_path / "run"))
    torch.save({"model_state_dict": {"x": torch.zeros(10**6)}}, tmp_path / "model.tar")
    with (
        zipfile.ZipFile(tmp_path / "model.tar") as whole,
        zipfile.ZipFile(tmp_path / "packed.tar", "w", zipfile.ZIP_DEFLATED) as packed,
    ):
        for entry in whole.infolist():
            packed.writestr(entry.filename, whole.read(entry))
    with pytest.raises(UsageError, match=r"packed\.tar is damaged"):
        import_model(ImportConfig(tmp_path / "packed.tar", "gopher", tmp_path / "run"))


def test_a_damaged_file_gets_one_line(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "model.tar"
    write_model(path, "feedforward")
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2 + random.randrange(1000)] ^= 1 << random.randrange(8)  # amid the largest tensors
    damages = [
        bytes(flipped),
        whole[: random.randrange(len(whole))],
        b"",
        b"no checkpoint",
        random.randbytes(500),
    ]
    for damage in damages:
        path.write_bytes(damage)
        with pytest.raises(UsageError, match=r"model.tar is damaged") as error:
            import_model(ImportConfig(path, "gopher", tmp_path / "run"))
        assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"game": "pong"}, "its policy has 8 actions, pong has 6"),
        ({"game": "gophr"}, "unknown game"),
        ({"core": "lstm"}, "holds an agent with core rdn, not lstm; give --core rdn"),
        ({"num_heads": 3}, "the tensors of .* show its heads; omit it"),
        ({"run_dir": "taken"}, "exists already; give another --run-dir"),
        ({"model": "list.pt"}, "holds a list"),
        ({"model": "dict.pt"}, "holds no model_state_dict"),
        ({"model": "."}, "cannot read"),
    ],
)
def test_wrong_input_writes_nothing(tmp_path: Path, arguments: dict[str, Any], message: str) -> None:
    write_model(tmp_path / "model.tar")
    torch.save([1], tmp_path / "list.pt")
    torch.save({"a": 1}, tmp_path / "dict.pt")
    (tmp_path / "taken" / "checkpoints" / "000000000001").mkdir(parents=True)
    given: dict[str, Any] = {"model": "model.tar", "game": "gopher", "run_dir": "run"} | arguments
    given |= {name: tmp_path / given[name] for name in ("model", "run_dir")}
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UsageError, match=message) as error:
        import_model(ImportConfig(**given))
    assert sorted(tmp_path.rglob("*")) == before and "\n" not in str(error.value)


def test_costs_of_nothing_stay(tmp_path: Path) -> None:
    write_model(tmp_path / "model.tar", entropy_cost=0.0, baseline_cost=0)
    import_model(ImportConfig(tmp_path / "model.tar", "gopher", tmp_path / "run"))
    config = json.loads((tmp_path / "run" / "config.json").read_text())["config"]
    assert config["entropy_cost"] == config["baseline_cost"] == 0
