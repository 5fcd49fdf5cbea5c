"""Options from a file: a run's own, JSON, YAML; what is typed wins."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import run

from deltabeast.launch import parsing
from deltabeast.launch.config import ProbeConfig, TrainConfig
from deltabeast.launch.runs.directory import option_words, write_config
from deltabeast.launch.runs.mine import remember

TYPED = (
    *("train", "--game", "gopher", "--core", "delta_net", "--core-options", "hidden_size", "64"),
    *("--preset", "laptop", "--steps", "30k", "--learning-rate", "1e-3", "--deterministic"),
    *("--no-rmsprop-corrected", "--num-workers", "1"),
)


def test_a_runs_configuration_begins_another_run(tmp_path: Path) -> None:
    begun = parsing.parse(TYPED)
    begun.run_dir = tmp_path
    write_config(tmp_path, begun)
    again = parsing.parse(["train", "--config", str(tmp_path / "config.json")])
    assert again.run_dir is None  # not into the same directory
    begun.run_dir, begun.config = None, again.config
    assert again == begun
    other = parsing.parse(["train", f"--config={tmp_path / 'config.json'}", "--seed", "7", "--steps", "1M"])
    assert (other.seed, other.steps, other.learning_rate) == (7, "1M", 1e-3)
    assert other.core_options == {"hidden_size": "64"}  # words, which the core reads


def test_yaml_begins_from_a_preset_and_what_is_typed_wins(tmp_path: Path) -> None:
    file = tmp_path / "pong.yaml"
    file.write_text(
        "game: pong\npreset: laptop\nlearning-rate: 3e-4\ncore_options: {num_layers: 1}\n"
        "cores: [lstm, rdn]\ncompile: 'off'\n"
    )
    config = parsing.parse(["train", "--config", str(file), "--unroll-length", "30"])
    assert config.game == "pong" and config.batch_size == 16  # the preset's
    assert config.learning_rate == 3e-4 and config.core_options == {"num_layers": 1}
    assert config.cores == ("lstm", "rdn") and config.compile == "off"
    assert config.unroll_length == 30  # the preset has 20


def test_a_probe_is_taken_from_a_file_whole(tmp_path: Path) -> None:
    config = ProbeConfig("swap", {"length": 16}, core="lstm", updates=30)
    write_config(tmp_path, config, command="probe")
    again = parsing.parse(["probe", "--config", str(tmp_path / "config.json"), "--seed", "2"])
    assert (again.task, again.task_options, again.core) == ("swap", {"length": 16}, "lstm")
    assert (again.updates, again.seed) == (30, 2)


@pytest.mark.parametrize("command", [TYPED, ("probe", "--task", "swap", "--core", "lstm")])
def test_what_is_shown_can_be_given_back(
    command: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, shown, _ = run(capsys, *command, "--show-config")
    assert code == 0
    file = tmp_path / "shown.json"
    file.write_text(shown)
    config, again = parsing.parse(command), parsing.parse([command[0], "--config", str(file)])
    config.config = again.config
    if command[0] == "train":
        config.protocol = "paper-code"  # is filled in
        config.core_options = {"hidden_size": 64}  # as the core declares it, where a word was typed
    assert again == config
    assert "runs" not in shown and not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("", "no environment given"),
        ("--game pnog", "pnog"),
        ("--game pong --core rdnn", "rdnn"),
        ("--game pong --core-options heads 3", "no option 'heads'"),
        ("--env NoSuch-v0", "NoSuch"),
        ("--game pong --device tpu", "--device tpu: choose auto, cpu or cuda"),
        ("--game pong --num-workers 3", "it must divide --num-envs 32"),
        ("--game pong --seeds 2", "needs --engine ray"),
        ("--game pong --cores lstm rnd --engine ray", "rnd"),
        ("--game pong --num-learners 3 --engine ray", "--num-learners"),
        (
            "--env CartPole-v1 --core lstm --core-options hidden_size 999999",
            "no memory for core lstm of this",
        ),
        (
            "--env CartPole-v1 --core rdn --core-options num_layers 1000000000",
            "than 5,000 modules and tensors",
        ),
        (
            "--env CartPole-v1 --core gtrxl --core-options window 1000000000",
            "no memory for core gtrxl of this",
        ),
    ],
)
def test_what_could_not_run_is_not_shown(options: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, error = run(capsys, "train", *options.split(), "--show-config")
    assert (code, out) == (2, "") and says in error


def test_what_is_typed_displaces_what_excludes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_config(tmp_path, parsing.parse(TYPED))
    file = ("train", "--config", str(tmp_path))  # a run stands for its config.json
    env = parsing.parse([*file, "--env", "CartPole-v1"])
    assert env.game is None and env.core_options == {"hidden_size": "64"}
    assert capsys.readouterr().err == ""
    core = parsing.parse([*file, "--core", "gru"])
    assert (core.core, core.core_options) == ("gru", {})
    assert "--core-options hidden_size 64 was for another core and is left out" in capsys.readouterr().err
    for same in (["--core=delta_net"], ["--core", "delta_net"]):
        assert parsing.parse([*file, *same]).core_options == {"hidden_size": "64"}
    assert parsing.parse([*file, "--core-options", "num_heads", "2"]).core_options == {"num_heads": "2"}
    assert parsing.parse([*file, "--engine", "ray"]).num_workers is None  # which is for the local engine
    code, _, error = run(capsys, *file, "--config", "other.json")
    assert code == 2 and "give one of them" in error


def test_what_is_typed_displaces_what_only_the_other_had(tmp_path: Path) -> None:
    (tmp_path / "game.json").write_text(
        '{"game": "pong", "frame_stack": 1, "num_actions": 6, "protocol": "paper-text"}'
    )
    env = parsing.parse(["train", "--config", str(tmp_path / "game.json"), "--env", "CartPole-v1"])
    assert (env.frame_stack, env.num_actions, env.protocol) == (4, None, None)
    (tmp_path / "ray.json").write_text(
        '{"game": "pong", "engine": "ray", "num_learners": 2, "cores": ["lstm", "rdn"], "seeds": 3}'
    )
    file = ("train", "--config", str(tmp_path / "ray.json"))
    one = parsing.parse([*file, "--engine", "local", "--core", "gru", "--seed", "2"])
    assert (one.core, one.cores, one.seed, one.seeds, one.num_learners) == ("gru", (), 2, None, 1)
    assert parsing.parse([*file, "--cores", "gru"]).cores == ("gru",)


def test_a_typed_preset_wins_over_the_files_values(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"game": "pong", "learning_rate": 1e-3, "discount": 0.9}')
    config = parsing.parse(["train", "--config", str(tmp_path / "a.json"), "--preset", "laptop"])
    assert (config.preset, config.learning_rate, config.discount) == ("laptop", 4e-4, 0.9)


CODE = "from pathlib import Path\nPath('imported').touch()\n"


@pytest.mark.parametrize(
    ("options", "consent"),
    [
        ('"env": "CartPole-v1", "core": "mine:Core"', "--core mine:Core"),
        ('"env": "CartPole-v1", "cores": ["rdn", "mine:Core"], "engine": "ray"', "--cores rdn mine:Core"),
        ('"env": "mine:Env-v0"', "--env mine:Env-v0"),
        ('"env": "package.part:Env-v0"', "--env package.part:Env-v0"),
    ],
)
def test_code_that_a_file_names_is_imported_once_its_name_is_typed(
    options: str,
    consent: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "package").mkdir()
    for path in ("mine.py", "package/part.py"):
        (tmp_path / path).write_text(CODE)
    (tmp_path / "file.json").write_text(f"{{{options}}}")
    for show in ((), ("--show-config",)):
        code, out, error = run(capsys, "train", "--config", "file.json", *show)
        assert (code, out) == (2, "") and error.endswith(f"if you trust it, give {consent}\n")
        assert re.search(r" file\.json has \w+ (mine|package)\S*, which would be imported", error)
        assert not (tmp_path / "imported").exists()
    run(capsys, "train", "--config", "file.json", *consent.split(), "--show-config")
    assert (tmp_path / "imported").exists()
    for name in ("mine", "package", "package.part"):
        sys.modules.pop(name, None)


def test_a_value_of_a_file_is_never_an_option(tmp_path: Path) -> None:
    """Whatever it looks like: it is the value of the option that has it, and no other's."""
    file = tmp_path / "a.json"
    file.write_text('{"env": "--core a:B-v0", "device": "--run-dir=x", "preset": null, "steps": "--seed 3"}')
    config = parsing.parse(["train", "--config", str(file), "--num-envs", "4"])
    assert (config.env, config.device, config.steps) == ("--core a:B-v0", "--run-dir=x", "--seed 3")
    assert (config.core, config.run_dir, config.seed, config.num_envs) == ("rdn", None, 1, 4)


def test_what_a_command_says_can_be_typed_again() -> None:
    """Values that would be read as options are tied to their own; mappings and lists never hold one."""
    given = {"env": "--core=a:B", "device": "-x", "learning_rate": 1e-3, "deterministic": True, "seed": -1}
    words = [word for name, value in given.items() for word in option_words(name, value)]
    assert words[:2] == ["--env=--core=a:B", "--device=-x"]
    config = parsing.parse(["train", *words])
    assert {name: getattr(config, name) for name in given} == given
    several = option_words("core_options", {"a": -1, "b": "-.5", "c": None})
    assert parsing.parse(["train", *several]).core_options == {"a": "-1", "b": "-.5", "c": "None"}


REACHING = {
    "ray_address": ("10.0.0.9:6379", "Ray unpickles what answers there, which runs code"),
    "track": ("wandb", "the log would be sent to that service"),
    "run_dir": ("elsewhere", "the run would be written there"),
}


@pytest.mark.parametrize("option", REACHING)
def test_where_a_file_reaches_out_to_is_typed_as_well(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    value, why = REACHING[option]
    file = tmp_path / "a.json"
    file.write_text(json.dumps({"env": "CartPole-v1", "engine": "ray", option: value}))
    consent = f"--{option.replace('_', '-')} {value}"
    for show in ((), ("--show-config",)):
        code, out, error = run(capsys, "train", "--config", str(file), *show)
        assert (code, out) == (2, "")
        assert error.endswith(f"{file} has {option} {value}: {why}; if you want that, give {consent}\n")
    config = parsing.parse(["train", "--config", str(file), *consent.split()])
    assert str(getattr(config, option)) == value


@pytest.mark.parametrize("command", ["train", "probe"])
def test_a_run_that_was_begun_here_goes_on_unasked(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its config.json is as this user's process left it, at its place; a copy, or a change, is another's."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    begun: TrainConfig | ProbeConfig = (
        TrainConfig(env="CartPole-v1", engine="ray", ray_address="auto", track="wandb")
        if command == "train"
        else ProbeConfig("swap", track="mlflow")
    )
    home, copy = tmp_path / "run", tmp_path / "copy"
    home.mkdir()
    write_config(home, begun, command=command)
    words = (command, "--config", str(home))
    assert run(capsys, *words, "--show-config")[0] == 2
    said: list[str] = []
    remember(home, begun, said.append)
    again = parsing.parse(words)
    assert again.track == begun.track and said == []
    if isinstance(begun, TrainConfig):
        assert again.ray_address == "auto"
    shutil.copytree(home, copy)
    code, _, error = run(capsys, command, "--config", str(copy))
    assert code == 2 and "if you want that, give --" in error
    file = home / "config.json"
    file.write_text(file.read_text().replace("auto", "10.0.0.9:6379").replace("mlflow", "wandb"))
    assert run(capsys, *words)[0] == 2
    write_config(home, begun, command=command)
    remember(home, begun, said.append)
    assert parsing.parse(words) == again


def test_a_record_that_cannot_be_written_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "state").write_text("a file, no folder")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    config, said = TrainConfig(env="CartPole-v1", track="wandb"), list[str]()
    write_config(tmp_path, config)
    remember(tmp_path, config, said.append)
    (line,) = said
    assert line.startswith(f"cannot write {tmp_path}/state/") and line.endswith(" will need --track as well")
    remember(tmp_path, TrainConfig(env="CartPole-v1"), said.append)
    assert len(said) == 1, "what reaches out to nothing needs no record"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("[" * 20_000, "more than 32 deep"),
        ("a: &a [x]\nsteps: [*a, *a]\n", "has an alias"),
        ("a: &a {b: *a}\n", "has an alias"),
        ("seed: 1:1:1:1:1:1:1:1:1:1:1:1:1:1\n", "more than 64 bits"),
        ("seed: 1" + ":1" * 400 + ".5\n", "too large"),
        ("seed: 2001-01-01\n", "put it in quotes"),
        ("seed: 2001-99-01\n", "month must be in"),
        ("1: 2\n", "put it in quotes"),
        ("seed: !!binary YWJj\n", "put it in quotes"),
        ("game: " + "x" * (64 << 10), "larger than 65,536 bytes"),
    ],
    ids=range(10),
)
def test_a_yaml_file_beyond_a_limit_is_refused(
    content: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.yaml").write_text(content)
    code, out, error = run(capsys, "train", "--config", str(tmp_path / "a.yaml"))
    assert (code, out) == (2, "") and says in error and error.count("\n") == 1 and len(error) < 500


def test_a_file_that_is_no_file_hangs_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "zero.json").symlink_to("/dev/zero")
    for name in ("pipe.json", "zero.json"):
        code, _, error = run(capsys, "train", "--config", str(tmp_path / name))
        assert code == 2 and f"cannot read {tmp_path / name}: it is not a regular file; give" in error


def test_on_and_off_are_words_in_yaml_too(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("game: pong\noverlap: off\ncompile: on\ndeterministic: off\n")
    config = parsing.parse(["train", "--config", str(tmp_path / "a.yaml")])
    assert (config.overlap, config.compile, config.deterministic) == ("off", "on", False)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "cannot read FILE: No such file or directory; give"),
        ("{", "FILE is no KIND: "),
        ("[1]", "FILE holds no options; give"),
        ('{"learning_rat": 1}', "FILE: unknown option 'learning_rat'; did you mean learning_rate?"),
        ('{"zzz": 1}', "FILE: unknown option 'zzz'; see `deltabeast train --help`"),
        ('{"config": 3}', "FILE: config is 3; give options"),
        ('{"command": "probe", "config": {}}', "FILE holds a configuration of probe; say deltabeast probe"),
        (
            '{"command": "eval", "config": {}}',
            "FILE holds a configuration of eval; give one of train or probe",
        ),
        ('{"num_envs": [1, 2]}', "FILE: num_envs is [1, 2]; it takes one value"),
        ('{"run_dir": ""}', "FILE: run_dir is ''; it takes a path"),
        ('{"num_envs": true}', "FILE: num_envs is True; it takes one value"),
        ('{"deterministic": 1}', "FILE: deterministic is 1; it takes true or false"),
        ('{"core_options": 3}', "FILE: core_options is 3; it takes names with values"),
        ('{"cores": {"rdn": 1}}', "FILE: cores is {'rdn': 1}; it takes words"),
        ('{"core": "json:Core"}', "FILE has core json:Core, which would be imported"),  # whatever package
        ('{"core": "json:a-b"}', "FILE has core json:a-b, which would be imported"),  # and thing
        ('{"num_envs": "many"}', "FILE: num_envs is 'many'; it takes a whole number"),
        ('{"num_envs": 2.5}', "FILE: num_envs is 2.5; it takes a whole number"),
        ('{"learning_rate": "fast"}', "FILE: learning_rate is 'fast'; it takes a number"),
        ('{"engine": "cloud"}', "FILE: engine is 'cloud'; it takes one of local, ray"),
        ('{"core_options": {"a": [1]}}', "it takes names with values, and a has several"),
        ('{"core_options": {"--core": "a:B"}}', "it takes names with values, and '--core' is no name"),
        ('{"core_options": {"a b": 1}}', "it takes names with values, and 'a b' is no name"),
        ('{"core_options": {"a": "--core=b:C"}}', "it takes words that do not begin with -"),
        ('{"cores": ["rdn", "--core=b:C"]}', "it takes words that do not begin with -"),
        ('{"cores": ["rdn", "-h"]}', "it takes words that do not begin with -"),
        ('{"cores": [["rdn"]]}', "it takes words"),
        ('{"env": "a\\u0000b"}', "FILE: env is 'a\\x00b'; it takes words without a NUL"),
    ],
)
@pytest.mark.parametrize("suffix", ["json", "yaml"])
def test_a_wrong_file_is_one_line(
    suffix: str, content: str | None, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / f"file.{suffix}"
    if content is not None:
        file.write_text(content)
    code, out, error = run(capsys, "train", "--config", str(file))
    assert (code, out) == (2, "") and error.count("\n") == 1
    kind = {"json": "JSON (YAML is read from .yaml)", "yaml": "YAML"}[suffix]
    assert says.replace("FILE", str(file)).replace("KIND", kind) in error


def test_what_was_typed_wrong_is_not_laid_to_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file.json").write_text('{"num_envs": 4}')
    _, _, error = run(capsys, "train", "--config", str(tmp_path / "file.json"), "--seed", "x")
    assert error == "deltabeast: error: --seed 'x'; it takes a whole number\n"


def test_what_is_shown_is_what_can_run(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("train", "--env", "CartPole-v1", "--core", "lstm", "--show-config", "--core-options", "chrono")
    assert run(capsys, *words, "2")[0] == 0
    code, out, error = run(capsys, *words, "1")
    assert (code, out) == (2, "") and "chrono is 1; it must be at least 2 steps" in error


def test_a_yaml_file_makes_no_objects(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.yaml").write_text(f"seed: !!python/object/apply:os.mkdir [{tmp_path / 'made'}]\n")
    code, _, error = run(capsys, "train", "--config", str(tmp_path / "a.yaml"))
    assert code == 2 and "is no YAML" in error and not (tmp_path / "made").exists()


def test_a_folder_of_runs_is_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "seed-1").mkdir()
    write_config(tmp_path / "seed-1", parsing.parse(TYPED))
    code, _, error = run(capsys, "train", "--config", str(tmp_path))
    assert code == 2 and f"no run at {tmp_path}; give one below it: {tmp_path / 'seed-1'}" in error


def test_yaml_without_its_package_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.yml").write_text("game: pong\n")
    monkeypatch.setitem(sys.modules, "yaml", None)
    code, _, error = run(capsys, "train", "--config", str(tmp_path / "a.yml"))
    assert code == 2 and "pip install pyyaml" in error


def test_version_names_what_results_depend_on(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--version")
    assert code == 0
    assert re.fullmatch(
        r"deltabeast \d[\w.]* \(commit [0-9a-f]{12}[\w-]*\), torch 2\.\S+, Python 3\.\S+\n", out
    )


COMPLETE = {
    "bash": "COMP_WORDS=({words}) COMP_CWORD={last}; _tyro_deltabeast; printf '%s\\n' ${{COMPREPLY[@]}}",
    "fish": 'complete -C "{words}"',
}


@pytest.mark.parametrize("shell", COMPLETE)
def test_a_shell_completes_options_and_names(
    shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell}")
    _, script, _ = run(capsys, "--print-completion", shell)
    (tmp_path / "script").write_text(script)
    cases = {
        "tr": "train",
        "train --learning-r": "--learning-rate",
        "train --core gated_d": "gated_delta_net",
        "card --cores lstm gtr": "gtrxl",
        "train --cores lstm rdn --see": "--seed",
        "train --game space_i": "space_invaders",
        "train --preset gym": "gymnasium",
        "cores gated_d": "gated_delta_net",
        "eval some_r": "some_runs/",
        "compare some_runs/a some_runs/b_": "some_runs/b_run/",
        "train --config some_r": "some_runs/",
    }
    for name in ("a", "b_run"):
        (tmp_path / "some_runs" / name).mkdir(parents=True)
    for words, want in cases.items():
        line = COMPLETE[shell].format(words=f"deltabeast {words}", last=len(words.split()))
        done = subprocess.run(
            [shell, "-c", f"source ./script; {line}"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
        found = done.stdout.split()[:1]
        assert found in ([want], [want.rstrip("/")]) and done.stderr == "", words  # bash adds / later


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_for_a_shell(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--print-completion", shell)
    assert code == 0 and "deltabeast" in out and "import-torchbeast" in out and "learning-rate" in out
    assert "\\ntwenty" not in out and "'None'" not in out
    code, out, error = run(capsys, "--print-completion")
    assert (code, out) == (2, "")
    assert error.endswith("--print-completion has no shell; say --print-completion bash, zsh or fish\n")
    code, out, error = run(capsys, "--print-completion", "tcsh")
    assert (code, out) == (2, "") and "error: --print-completion tcsh; say --print-completion bash" in error
