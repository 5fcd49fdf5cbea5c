"""Agents given away: folders that are runs of their own, cards, and a hub's stand-in."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hub_stand_in import Hub, stand_in
from PIL import Image
from training_in_process import FEEDFORWARD, run

from deltabeast.agents import Agent, AgentSpec, load_agent, save_checkpoint
from deltabeast.launch.cli import main
from deltabeast.launch.config import ExportConfig, TrainConfig
from deltabeast.launch.evaluation.loading import Loaded
from deltabeast.launch.runs.directory import write_config
from deltabeast.launch.runs.log import read_rows
from deltabeast.launch.sharing import hub as hubs
from deltabeast.launch.sharing.card import Exported, _training
from deltabeast.launch.sharing.export import _read


def failing(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return int(ended.value.code or 0), error


def weights(agent: Agent) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in agent.state_dict().items()}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of CartPole, evaluated at its last step and at another."""
    folder = tmp_path_factory.mktemp("run") / "seed-1"
    run(
        folder,
        "--env",
        "CartPole-v1",
        *FEEDFORWARD,
        "--steps",
        "100",
        "--log-seconds",
        "0",
        "--milestone-steps",
        "40",
    )
    for options in ((), ("--sample", "--certificate"), ("--checkpoint", "40")):
        main(["eval", str(folder), "--episodes", "2", "--repeats", "2", *options])
    return folder


@pytest.fixture
def exported(trained: Path, tmp_path: Path) -> Path:
    main(["export", str(trained), str(tmp_path / "agent"), "--note", "The best of one."])
    return tmp_path / "agent"


def test_an_exported_agent_is_a_run_that_is_evaluated_as_it_was(
    trained: Path, exported: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ours, theirs = weights(load_agent(trained)), weights(load_agent(exported))
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert not list(exported.rglob("state.pt"))
    before = {path.name for path in (exported / "eval").iterdir()}
    assert len(before) == 2  # of this step alone
    main(["eval", str(exported), "--episodes", "2", "--repeats", "2"])
    (new,) = {path.name for path in (exported / "eval").iterdir()} - before
    results = [json.loads((exported / "eval" / name).read_text()) for name in (new, *before)]
    assert results[0]["results"] in [each["results"] for each in results[1:]]
    capsys.readouterr()
    main(["info", str(exported)])
    assert "damaged" not in capsys.readouterr().out
    main(["compare", str(exported)])
    assert (exported.parent / "comparison" / "report.md").exists() or list(exported.parent.rglob("report.md"))


def test_the_card_says_what_it_is_and_nothing_of_this_machine(trained: Path, exported: Path) -> None:
    card = (exported / "README.md").read_text()
    head = card.split("---")[1]
    metadata = {
        line.partition(": ")[0]: json.loads(line.partition(": ")[2]) for line in head.strip().splitlines()
    }
    (result,) = metadata["model-index"][0]["results"][:1]
    evaluations = [json.loads(path.read_text()) for path in sorted((exported / "eval").iterdir())]
    means = [each["results"]["trained"]["summary"]["game"]["mean"] for each in evaluations]
    assert result["metrics"][0]["value"] in [round(mean, 3) for mean in means]
    assert (
        "The best of one." in card and "| a game |" in card and "greedy" in card and "sampled actions" in card
    )
    memory = card.split("## Memory\n")[1].split("## ")[0]
    assert "| correct | yes |" in memory and "sampled actions" in memory and "| recovers |" not in memory
    assert "(curve.png)" in card and Image.open(exported / "curve.png").size[0] > 300
    for file in exported.rglob("*"):
        if file.is_file():
            assert str(trained).encode() not in file.read_bytes(), file


def test_an_export_names_no_cluster_and_no_tracker(trained: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    about = json.loads((run / "config.json").read_text())
    about["config"] |= {"ray_address": "10.0.0.9:6379", "track": "wandb"}
    (run / "config.json").write_text(json.dumps(about))
    folder = tmp_path / "agent"
    main(["export", str(run), str(folder)])
    assert json.loads((folder / "config.json").read_text())["config"]["env"] == "CartPole-v1"
    for file in filter(Path.is_file, folder.rglob("*")):
        assert not re.search(rb"10\.0\.0\.9|wandb", file.read_bytes()), file


def test_the_card_lists_what_is_no_default(exported: Path) -> None:
    listed = (exported / "README.md").read_text().split("not the defaults: ")[1].splitlines()[0]
    assert {name.split("`")[1] for name in listed.rstrip(".").split(", ")} == {
        *("steps", "num_envs", "num_workers", "batch_size", "unroll_length", "device", "precision"),
        *("log_seconds", "milestone_steps", "checkpoint_minutes"),
        *("preset", "learning_rate", "entropy_cost", "baseline_cost", "rmsprop_eps"),  # that of --env
        *("reward_clip", "normalise_rewards", "normalise_advantages"),
    }


def test_another_export_loses_no_evaluation_and_an_earlier_step_has_an_earlier_log(
    trained: Path, exported: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["eval", str(exported), "--episodes", "1", "--repeats", "1"])
    before = {path.name for path in (exported / "eval").iterdir()}
    main(["export", str(trained), str(exported)])
    assert {path.name for path in (exported / "eval").iterdir()} == before and len(before) == 3
    main(["export", str(trained), str(exported), "--checkpoint", "40"])
    assert [row["step"] for row in read_rows(exported / "logs.csv")] == [20, 40]
    assert all("-40-" in path.name for path in (exported / "eval").iterdir())
    config = json.loads((exported / "config.json").read_text())
    config["config"]["seed"] = 7
    (exported / "config.json").write_text(json.dumps(config))
    assert "holds an export of another run" in failing(capsys, "export", trained, exported)[1]


def test_an_export_removes_nothing_of_its_owners(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = tmp_path / "theirs"
    for name in ("best", "epoch-10"):
        (theirs / "checkpoints" / name).mkdir(parents=True)
        (theirs / "checkpoints" / name / "model.pt").write_text("mine")
    assert "is something else than an export" in failing(capsys, "export", trained, theirs)[1]
    assert len(list(theirs.rglob("model.pt"))) == 2 and not (theirs / "README.md").exists()

    ours = tmp_path / "ours"
    main(["export", str(trained), str(ours), "--checkpoint", "40"])
    for name in ("notes", "20", ".git"):
        (ours / "checkpoints" / name).mkdir()
        (ours / "checkpoints" / name / "file").write_text("mine")
    capsys.readouterr()
    main(["export", str(trained), str(ours)])
    said = capsys.readouterr().out
    assert f"left beside it in {ours / 'checkpoints'}: .git, 20, notes" in said.replace("\n", " ")
    names = {path.name for path in (ours / "checkpoints").iterdir()}
    assert names == {".git", "notes", "20", f"{100:012}"}
    assert all(
        (ours / "checkpoints" / name / "file").read_text() == "mine" for name in names - {f"{100:012}"}
    )


def test_what_was_written_on_a_card_or_evaluated_there_is_set_aside(
    trained: Path, exported: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["export", str(trained), str(exported)])
    assert not list(exported.glob("*previous*"))
    with (exported / "README.md").open("a") as card:
        card.write("What I found.\n")
    main(["eval", str(exported), "--episodes", "1", "--repeats", "1"])
    mine = {path.name for path in (exported / "eval").iterdir()} - {
        p.name for p in (trained / "eval").iterdir()
    }
    main(["export", str(trained), str(exported), "--checkpoint", "40"])
    assert (exported / "README.previous.md").read_text().endswith("What I found.\n")
    assert {path.name for path in (exported / "eval.previous").iterdir()} == mine and len(mine) == 1
    assert "What I found" not in (exported / "README.md").read_text()


def test_an_evaluation_that_cannot_be_read_is_left_out(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(trained, tmp_path / "run")
    last, *others = sorted((tmp_path / "run" / "eval").glob("*-100-*.json"))
    content = json.loads(last.read_text())
    for change in (
        {"protocol": 1e300},
        {"results": {}},
        {"results": {"trained": {"summary": {"game": "x"}}}},
    ):
        last.write_text(json.dumps(content | change))
        main(["export", str(tmp_path / "run"), str(tmp_path / "agent")])
        said = capsys.readouterr().out
        assert f"{last} cannot be read, and is left out" in said.replace("\n", " ")
        assert [path.name for path in (tmp_path / "agent" / "eval").iterdir()] == [
            each.name for each in others
        ]
        shutil.rmtree(tmp_path / "agent")


def test_another_runs_scores_are_not_on_the_card(
    trained: Path, exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    shutil.copytree(trained, other)
    config = json.loads((other / "config.json").read_text())
    config["config"]["learning_rate"] = 1e-5
    (other / "config.json").write_text(json.dumps(config))
    assert "holds an export of another run" in failing(capsys, "export", other, exported)[1]
    exported_with = json.loads((exported / "config.json").read_text())["config"]
    config["config"] |= {"learning_rate": exported_with["learning_rate"], "steps": "1M"}
    (other / "config.json").write_text(json.dumps(config))
    shutil.rmtree(other / "eval")
    agent = load_agent(other)
    with torch.no_grad():
        next(agent.parameters()).add_(1.0)
    save_checkpoint(other, 100, agent, {"some": 1})  # trained anew: other numbers at the same step
    main(["export", str(other), str(exported)])
    assert not list(exported.glob("eval/*")) and "Not evaluated." in (exported / "README.md").read_text()


def test_a_full_disk_leaves_the_earlier_export_and_a_folder_to_try_again(
    trained: Path,
    exported: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def is_full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full:
        full.setattr("deltabeast.agents.files.create", is_full)
        for folder in (exported, tmp_path / "new"):
            assert "No space left" in failing(capsys, "export", trained, folder)[1]
    load_agent(exported)
    for folder in (exported, tmp_path / "new"):
        main(["export", str(trained), str(folder)])
        assert [path.name for path in (folder / "checkpoints").iterdir()] == [f"{100:012}"]


def test_what_an_exported_milestone_needs_next_is_no_training(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["export", str(trained), str(tmp_path / "agent"), "--checkpoint", "40"])
    capsys.readouterr()
    main(["info", str(tmp_path / "agent")])
    said = capsys.readouterr().out
    assert "an exported agent" in said and "deltabeast train" not in said


def test_a_checkpoint_of_another_run_is_evaluated_there(trained: Path, exported: Path) -> None:
    before = set(trained.rglob("*.json"))
    (checkpoint,) = (exported / "checkpoints").iterdir()
    main(["eval", str(trained), "--checkpoint", str(checkpoint), "--episodes", "1", "--repeats", "1"])
    assert set(trained.rglob("*.json")) == before and len(list((exported / "eval").iterdir())) == 3


def test_two_processes_may_fetch_the_same_agent(exported: Path, tmp_path: Path) -> None:
    target = tmp_path / "there"
    for number in range(2):
        fetched = tmp_path / f"fetched {number}"
        shutil.copytree(exported, fetched)
        hubs._keep(fetched, target, "me/cartpole")
    assert [path.name for path in tmp_path.glob("*there*")] == ["there"]
    load_agent(target)


LINK = "[A recorded game](game.html)"


@pytest.fixture(scope="module")
def recordings(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two games of the last step, and one of another."""
    folder = tmp_path_factory.mktemp("games")
    for name, *options in (("1", "--seed", "1"), ("2", "--seed", "2"), ("40", "--checkpoint", "40")):
        main(["watch", str(trained), "--record", str(folder / f"{name}.html"), "--steps", "5", *options])
    return [folder / f"{name}.html" for name in ("1", "2", "40")]


def test_a_recorded_game_lies_beside_the_card_and_replaces_nothing(
    trained: Path,
    exported: Path,
    recordings: list[Path],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("deltabeast.launch.sharing.export._pictures", lambda *_: [])  # which take a while
    card, game = exported / "README.md", exported / "game.html"
    retrained = re.sub(b'"weights":"[0-9a-f]+"', b'"weights":"0"', recordings[0].read_bytes())
    others = {
        recordings[2].read_bytes(): "of feedforward on CartPole-v1 at step 40",
        retrained: "of other weights",
        b"mine": "no recorded game",
    }
    for theirs, what in others.items():
        game.write_bytes(theirs)
        main(["export", str(trained), str(exported)])
        assert LINK not in card.read_text() and game.read_bytes() == theirs
        said = capsys.readouterr().out.replace("\n", " ")
        assert f"{game} is {what}, and stays without a link; `deltabeast push` does not send it" in said
    for recording in (recordings[0], recordings[0], recordings[1], game):
        main(["export", str(trained), str(exported), "--recording", str(recording)])
        assert LINK in card.read_text() and "16 bits" not in card.read_text()
    said = capsys.readouterr().out.replace("\n", " ")
    room = f"{game} makes room for the new recording: it is"
    assert f"{room} game.previous.html now" in said and f"{room} game.previous-2.html now" in said
    assert said.count("now") == 2 and "without a link" not in said and "somebody else" not in said
    main(["export", str(trained), str(exported), "--half"])  # other numbers, so another agent
    said = capsys.readouterr().out.replace("\n", " ")
    assert f"{game} is from before the weights here changed: it is game.previous-3.html now" in said
    assert LINK not in card.read_text() and not game.exists()
    aside = [exported / f"game.previous{number}.html" for number in ("", "-2", "-3")]
    games = [path.read_bytes() for path in recordings]
    assert [path.read_bytes() for path in aside] == [b"mine", *games[:2]] and games[0] != games[1]
    main(["export", str(trained), str(exported), "--half", "--recording", str(recordings[1])])
    assert "Played before the numbers were rounded to 16 bits." in card.read_text()
    main(["export", str(trained), str(exported), "--half"])
    assert LINK in card.read_text() and game.read_bytes() == games[1], "of the same agent"
    assert "without a link" not in capsys.readouterr().out.replace("\n", " ")
    assert recordings[1].read_bytes() == games[1]


@pytest.mark.parametrize(
    ("core", "expected"),
    [("rdn", True), ("softmax_attention", True), ("lstm", False), ("feedforward", False)],
)
def test_a_game_shows_what_is_read_of_memories_that_are_sums(
    core: str, expected: bool, tmp_path: Path
) -> None:
    agent = Agent(AgentSpec((4,), 2, core, "mlp", env_id="CartPole-v1"))
    loaded = Loaded(tmp_path, agent, tmp_path, 1600)
    config = ExportConfig(run=tmp_path, folder=tmp_path)
    assert _read(loaded, tmp_path, [], True, config).reads_writes == expected


def test_another_file_than_a_recording_of_the_agent_is_one_line(
    trained: Path, recordings: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(path: Path) -> str:
        return failing(capsys, "export", trained, tmp_path / "new", "--recording", path)[1]

    anew = f"make one with `deltabeast watch {trained} --checkpoint 100 --record FILE`"
    file = tmp_path / "file.html"
    whole = recordings[0].read_text()
    for text in (
        "",
        "<html></html>",
        whole.replace('"seats":[', '"seats":3,"x":['),
        whole[:-9],
    ):
        file.write_text(text)
        assert f"--recording {file} is no recorded game; {anew}" in refused(file)
    file.write_bytes(b"\xff\xfe")
    assert "is no recorded game" in refused(file)
    file.write_text(whole.replace('"title":"CartPole-v1"', '"title":"Pong"'))
    ours = "feedforward on CartPole-v1 at step 100"
    assert f"{file} is of feedforward on Pong at step 100, not of {ours}; {anew}" in refused(file)
    other = f"feedforward on CartPole-v1 at step 40, not of {ours}"
    assert f"--recording {recordings[2]} is of {other}; {anew}" in refused(recordings[2])
    file.write_text(re.sub('"weights":"[0-9a-f]{64}"', '"weights":"' + 64 * "0" + '"', whole))
    assert f"{file} is of {ours}, but of other weights; {anew}" in refused(file)
    assert f"--recording {tmp_path / 'none'} cannot be read: No such file" in refused(tmp_path / "none")
    assert "cannot be read: it is not a regular file" in refused(tmp_path)
    assert not (tmp_path / "new").exists()


def test_half_precision_is_half_the_size_and_the_same_to_rounding(trained: Path, tmp_path: Path) -> None:
    main(["export", str(trained), str(tmp_path / "half"), "--half"])
    main(["export", str(trained), str(tmp_path / "whole")])
    sizes = [
        next((tmp_path / name).rglob("weights.safetensors")).stat().st_size for name in ("half", "whole")
    ]
    assert 0.45 < sizes[0] / sizes[1] < 0.6
    half, whole = (weights(load_agent(tmp_path / name)) for name in ("half", "whole"))
    for name in whole:
        assert half[name].dtype == whole[name].dtype
        torch.testing.assert_close(half[name], whole[name], rtol=1e-3, atol=1e-6)
    card = (tmp_path / "half" / "README.md").read_text()
    assert "stored in 16 bits" in card and "Measured before" in card


def test_an_atari_agent_has_a_still_of_its_game(tmp_path: Path) -> None:
    spec = AgentSpec((4, 84, 84), 6, "rdn", "nature", {"num_layers": 1}, game="pong", protocol="paper-code")
    save_checkpoint(tmp_path / "run", 1600, Agent(spec), {"some": 1})
    write_config(tmp_path / "run", TrainConfig(game="pong", run_dir=tmp_path / "run"))
    main(["export", str(tmp_path / "run"), str(tmp_path / "agent")])
    picture = Image.open(io.BytesIO((tmp_path / "agent" / "still.png").read_bytes()))
    assert picture.size[0] > picture.size[1] > 100 and len(np.unique(np.asarray(picture))) > 8
    card = (tmp_path / "agent" / "README.md").read_text()
    assert "(still.png)" in card and "Not evaluated." in card and "num_layers 1" in card


def test_what_cannot_be_exported_is_one_line(
    trained: Path, exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("mine")
    assert "is the run itself" in failing(capsys, "export", trained, trained)[1]
    assert "is something else than an export" in failing(capsys, "export", trained, tmp_path / "full")[1]
    assert "no run at" in failing(capsys, "export", tmp_path / "none", tmp_path / "new")[1]
    assert (tmp_path / "full" / "thesis.tex").read_text() == "mine" and not (tmp_path / "new").exists()
    main(["export", str(trained), str(exported), "--checkpoint", "40"])  # over an earlier one
    assert [path.name for path in (exported / "checkpoints").iterdir()] == [f"{40:012}"]
    words = ("train", "--env", "CartPole-v1", *FEEDFORWARD, "--steps", "200", "--run-dir", exported)
    code, error = failing(capsys, *words)
    assert code == 2 and "holds an exported agent, without the state of its training; give another" in error


def test_a_foreign_core_asks_for_consent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = AgentSpec((4,), 2, "feedforward", "mlp", env_id="CartPole-v1")
    path = save_checkpoint(tmp_path / "run", 10, Agent(spec), {"some": 1})
    content = json.loads((path / "agent.json").read_text()) | {"core": "my_evil:Core"}
    (path / "agent.json").write_text(json.dumps(content))
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["sha256"]["agent.json"] = hashlib.sha256((path / "agent.json").read_bytes()).hexdigest()
    (path / "manifest.json").write_text(json.dumps(manifest))
    code, error = failing(capsys, "export", tmp_path / "run", tmp_path / "agent")
    assert code == 2 and "--trust-core my_evil:Core" in error and not (tmp_path / "agent").exists()


def test_a_card_names_what_training_again_would_import() -> None:
    spec = AgentSpec((4,), 2, "feedforward", "mlp", env_id="CartPole-v1")
    options = {"core": "my_own:Core", "learning_rate": 0.1}
    agent = SimpleNamespace(spec=replace(spec, core="my_own:Core", env_id="my.part:Env-v0"))
    exported = Exported(agent, 10, options, {}, [], [], half=False, note=None)  # type: ignore[arg-type]
    again = "`deltabeast train --config config.json --core my_own:Core --env my.part:Env-v0`"
    assert again in _training(exported)
    agent.spec = spec
    assert "`deltabeast train --config config.json`" in _training(exported)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    with stand_in() as running:
        monkeypatch.setenv("HF_ENDPOINT", running.address)
        monkeypatch.setenv("HF_TOKEN", "hf_of_a_test")
        monkeypatch.chdir(tmp_path)
        yield running


def test_what_is_pushed_is_evaluated_from_the_hub_by_its_commit(
    trained: Path, exported: Path, recordings: list[Path], hub: Hub, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["export", str(trained), str(exported), "--recording", str(recordings[0])])
    capsys.readouterr()
    (exported / "secret.txt").write_text("not to be sent")
    for folder in (exported, next(exported.glob("checkpoints/*"))):
        (folder / "code.py").write_text("print('never')")
    main(["push", str(exported), "me/cartpole", "--private"])
    said = capsys.readouterr().out
    first, files = hub.files("me/cartpole", "main")
    assert f"{hub.address}/me/cartpole/commit/{first}" in said and hub.private["me/cartpole"]
    assert f"deltabeast eval hub:me/cartpole@{first}" in said
    assert {"README.md", "config.json"} <= files.keys()
    assert not [name for name in files if name.endswith((".py", ".txt"))]
    assert files["game.html"] == recordings[0].read_bytes()  # sent, though not fetched
    files["evil.pkl"] = files["checkpoints/evil.py"] = b"somebody else's"

    for name in ("curve.png", "game.html"):
        (exported / name).unlink()
    main(["push", str(exported), "me/cartpole"])
    assert f"which is not in {exported}: one that is at me/cartpole stays" in capsys.readouterr().out
    second, later = hub.files("me/cartpole", "main")
    assert second != first and "curve.png" not in later  # gone here, gone there
    assert later["game.html"] == files["game.html"]  # the card still links it, as that of a fetched folder

    main(["export", str(trained), str(exported)])
    assert LINK not in (exported / "README.md").read_text()
    (exported / "curve.png").unlink()
    (exported / "game.html").write_text("somebody's own")
    main(["push", str(exported), "me/cartpole"])
    second, later = hub.files("me/cartpole", "main")
    assert "game.html" not in later  # to which nothing links
    assert "game.html, which is not" not in capsys.readouterr().out

    quick = ("--episodes", "1", "--repeats", "1")
    for name, commit in (("hub:me/cartpole", second), (f"hub:me/cartpole@{first}", first)):
        main(["eval", name, *quick])
        folder = Path("runs/hub/me/cartpole") / commit
        assert f"hub:me/cartpole@{commit} is in {folder}" in capsys.readouterr().out
        kinds = {path.suffix for path in folder.rglob("*") if path.is_file()}
        assert kinds <= {".json", ".safetensors", ".md", ".csv", ".png"}
        assert len(list((folder / "eval").iterdir())) == 3  # two came along
        assert (folder / "curve.png").exists() == (commit == first)
    capsys.readouterr()
    for command in ("info", "compare"):
        main([command, f"hub:me/cartpole@{first}"])
        assert "CartPole-v1" in capsys.readouterr().out
    assert "CartPole-v1" in Path("runs/hub/me/cartpole/comparison/report.md").read_text()
    hub.commits.clear()
    main(["eval", f"hub:me/cartpole@{first}", *quick])  # is here, and asks nobody


def test_what_is_wrong_with_a_hub_is_one_line(
    exported: Path,
    trained: Path,
    hub: Hub,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert "cannot fetch me/none: " in failing(capsys, "eval", "hub:me/none")[1]
    hub.commits["me/empty"] = {"1" * 40: {"README.md": b"nothing"}}
    assert "holds no agent that" in failing(capsys, "eval", "hub:me/empty")[1]
    assert not list(Path("runs/hub").rglob("*.md"))
    main(["push", str(exported), "me/damaged"])
    _, files = hub.files("me/damaged", "main")
    name = next(name for name in files if name.endswith(".safetensors"))
    files[name] = files[name][:-1] + b"x"
    assert "its checksum differs" in failing(capsys, "eval", "hub:me/damaged")[1]
    hub.sizes = {"video.mp4": 1 << 40, name: (4 << 30) + 1 - sum(map(len, files.values())) + len(files[name])}
    files["video.mp4"] = b"not fetched"
    refused = failing(capsys, "eval", "hub:me/damaged")[1]
    assert f"me/damaged has {len(files) - 1} files of 4,294,967,297 bytes, more than any agent" in refused
    hub.sizes[name] -= 1
    assert "its checksum differs" in failing(capsys, "eval", "hub:me/damaged")[1]
    hub.commits["me/many"] = {"1" * 40: {f"{i}.png": b"" for i in range(1001)}}
    assert "me/many has 1,001 files of 0 bytes" in failing(capsys, "eval", "hub:me/many")[1]
    for commit in ("../../astray", "main", "1" * 39, "G" * 40):
        hub.commits["me/astray"] = {commit: dict(files)}
        assert "which is no hash" in failing(capsys, "eval", "hub:me/astray")[1]
    assert not list(Path.cwd().rglob("*astray*"))
    for wrong in ("hub:me", "hub:../x/y", "hub:me/../y", "hub:./x", "hub:me/."):
        assert "is no repository of a hub; give OWNER/NAME" in failing(capsys, "eval", wrong)[1]
    assert "is no exported agent; make one with" in failing(capsys, "push", trained, "me/x")[1]
    assert "deltabeast export RUN nowhere" in failing(capsys, "push", "nowhere", "me/x")[1]
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    code, error = failing(capsys, "push", exported, "me/x")
    assert code == 1 and "cannot push to me/x: " in error
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    assert "say `hf auth login`, or set HF_TOKEN" in failing(capsys, "push", exported, "me/x")[1]
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert "pip install huggingface_hub" in failing(capsys, "push", exported, "me/x")[1]
    assert hubs.PREFIX == "hub:"
