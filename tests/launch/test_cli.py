"""The command line as a person meets it: one line for wrong input, quick help, tables that are right."""

from __future__ import annotations

import inspect
import json
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import NoneType
from typing import Any, ClassVar, get_args

import numpy as np
import pytest
from command_line import refused, run
from rich.console import Console

from deltabeast.agents import Agent, AgentSpec, save_checkpoint
from deltabeast.cores import core_names, make_core, registry
from deltabeast.cores.options import Option
from deltabeast.envs import PAPER_GAMES, PROTOCOLS, GameInfo
from deltabeast.launch import cli, core_list, parsing
from deltabeast.launch.comparison.relative import LATER_CORES
from deltabeast.launch.config import (
    COMMANDS,
    BenchEnvConfig,
    BenchKernelsConfig,
    BenchThroughputConfig,
    EvalConfig,
    ProtocolName,
)
from deltabeast.launch.errors import RunError, UsageError
from deltabeast.launch.evaluation import environments
from deltabeast.launch.evaluation.command import evaluate_run
from deltabeast.launch.parse_errors import condense
from deltabeast.launch.runs.describe import describe_run
from deltabeast.launch.runs.directory import claim, read_config, resume_command, write_config
from deltabeast.launch.runs.published import published_scores
from deltabeast.launch.tables import (
    core_options_table,
    cores_table,
    games_table,
    leave_out_last_columns,
    plain_table,
    show,
)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["train", "--game", "pong", "--show-config", "--run-dir", ""], "the argument after --run-dir"),
        (["train", "--run-dir=", "--game", "pong", "--show-config"], "--run-dir"),
        (["compare", "runs", "--out", ""], "the argument after --out"),
        ([""], "the first argument"),
        (["eval", ""], "the argument after eval"),
        (["watch", "--host", "localhost", "", "--record", "r"], "the argument after localhost"),
        (["train", "--core-options", "layers", ""], "the argument after layers"),
    ],
)
def test_nothing_empty_is_taken_for_the_current_folder(
    arguments: list[str], what: str, capsys: pytest.CaptureFixture[str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    error = refused(capsys, *arguments)
    assert error.startswith(f"deltabeast: error: {what} is empty; give a value")
    assert not any(tmp_path.iterdir())


def test_every_protocol_can_be_asked_for() -> None:
    assert get_args(ProtocolName) == tuple(PROTOCOLS)


@pytest.mark.parametrize(
    ("arguments", "wrong", "right"),
    [
        ("", "no command", "train, probe, card, eval, watch, compare"),
        ("trian", "trian", "did you mean train?"),
        ("train --gmae gopher", "--gmae", "did you mean --game?"),
        ("train --deterministc", "--deterministc", "did you mean --deterministic?"),
        ("train --num-evns 3", "--num-evns", "--num-envs"),
        ("train --zzzz 3", "--zzzz", "deltabeast train --help"),
        ("eval --config r", "unknown option --config", "deltabeast eval --help"),
        ("eval nowhere --core lstm", "unknown option --core", "did you mean --trust-core?"),
        ("eval nowhere --forget-every x", "--forget-every", "it takes whole numbers"),
        ("eval run --zzz 1", "unknown option --zzz", "`deltabeast eval --help` lists the options"),
        ("train --lr 3", "unknown option --lr", "did you mean --learning-rate?"),
        ("bench kernels --stpes 3", "unknown option --stpes", "did you mean --steps?"),
        ("train --game nope", "unknown game 'nope'", "`deltabeast games`"),
        ("train --device", "--device has no value", "deltabeast train --help"),
        ("train --protocol foo", "'foo'", f"choose one of {', '.join(sorted(PROTOCOLS))}\n"),
        ("train --num-envs 3.5", "--num-envs '3.5'", "a whole number"),
        ("train --learning-rate fast", "--learning-rate 'fast'", "a number"),
        (
            "train --core-options hidden_size",
            "--core-options: hidden_size has no value",
            "pairs of a name and",
        ),
        (
            "train --core-options hidden_size 8 num_layers --steps 3M",
            "num_layers has no value",
            "give pairs of a name and a value",
        ),
        (
            "train --core-options=size 8 heads 2 size 9",
            "--core-options: size is given twice",
            "one value for it",
        ),
        (
            "train --core hybrid --core-options layers kda gtrxl",
            "--core-options: layers are one word",
            "layers kda,gtrxl\n",
        ),
        (
            "train --core hybrid --core-options layers kda:short_conv=2 gtrxl:window=9",
            "--core-options: layers are one word",
            "layers kda:short_conv=2,gtrxl:window=9\n",
        ),
        (
            "train --core hybrid --core-options layers kda:short_conv=4 :head_norm=true,gtrxl",
            ":head_norm=true,gtrxl has no value",
            "kda:short_conv=4:head_norm=true\n",
        ),
        (
            "train --core-options num_heads 2 layers kda, gtrxl , rdn ff_size 8",
            "layers are one word, with commas",
            "layers kda,gtrxl,rdn\n",
        ),
        ("train --core-options layers kda ff_size", "ff_size has no value", "give pairs"),
        ("train --env x --env-options limit", "--env-options: limit has no value", "give pairs"),
        ("probe --task swap --task-options n 1 n 1", "--task-options: n is given twice", "one value for it"),
        (
            "probe --task swap --core-options a 1 --core-options b 2 b 3",
            "--core-options: b is given twice",
            "one value",
        ),
        (
            "train --core-options a 1 --seed 3 --core_options=b 2",
            "--core-options is given twice",
            "after one --core-options",
        ),
        ("train --env-options a 1 --env-options a 1", "--env-options is given twice", "one --env-options"),
        ("train --core-options --steps 3M", "--core-options has no value", "deltabeast train --help"),
        ("eval nowhere --forget-every", "--forget-every has no value", "deltabeast eval --help"),
        ("eval nowhere --memory", "--memory has no value", "deltabeast eval --help"),
        (
            "eval nowhere --memory freze@5",
            "--memory freze@5: unknown operation",
            "choose from freeze@T, undo@T",
        ),
        ("eval nowhere --memory undo@3 freeze", "--memory freeze", "give freeze@T, T an agent step"),
        ("eval nowhere --memory restore:3@3", "--memory restore:3@3: give restore:S@T", "S before T"),
        ("eval nowhere --memory insert:4@3", "--memory insert:4@3: give insert:S@T", "S not after T"),
        (
            "eval nowhere --memory transplant:a",
            "--memory transplant:a: give transplant:RUN@T",
            "RUN a run of",
        ),
        ("eval nowhere --memory scale:.5 scale:0.5", "--memory: scale:.5 is given twice", "give it once"),
        ("eval nowhere --memory undo@1 undo@1", "--memory: undo@1 is given twice", "give it once"),
        ("eval nowhere --forget-every 2 4 02", "--forget-every: 2 is given twice", "give it once"),
        (
            "eval nowhere --forget-every 2 --forget-every 4",
            "--forget-every is given twice",
            "one --forget-every",
        ),
        ("card --cores lstm rdn lstm", "--cores: lstm is given twice", "give it once"),
        ("bench env --num-envs 8 --num-envs 9", "--num-envs is given twice", "one --num-envs"),
        ("bench kernels --rules", "--rules has no value", "deltabeast bench --help"),
        ("train --game gophr --steps 10", "gophr", "gopher"),
        ("eval", "RUN is missing", "deltabeast eval --help"),
        ("eval here there", "unexpected there", "deltabeast eval --help"),
        ("eval nowhere", "no run at nowhere", "runs/gopher/rdn/seed-1"),
        ("eval nowhere --episodes 0", "--episodes 0", "at least 1"),
        ("eval nowhere --flicker 1.5", "--flicker 1.5", "from 0 to less than 1"),
        ("eval nowhere --blink 1", "--blink 1.0", "from 0 to less than 1"),
        ("eval nowhere --seed -1", "--seed -1", "not be negative"),
        ("watch", "RUN is missing", "deltabeast watch --help"),
        ("watch nowhere", "no run at nowhere", "runs/gopher/rdn/seed-1"),
        ("watch nowhere --steps 0", "--steps 0", "from 1 to 20000"),
        ("watch nowhere --seed -1", "--seed -1", "from 0 to"),
        ("info nowhere", "no run at nowhere", "runs/gopher/rdn/seed-1"),
        ("compare", "no run given", "--published"),
        ("compare nowhere", "no run at nowhere", "their folder"),
        ("import-torchbeast", "MODEL is missing", "deltabeast import-torchbeast --help"),
        ("import-torchbeast m --game pong --run-dir r", "cannot read m", "model.tar"),
        ("cores rdnn", "unknown core 'rdnn'", "did you mean rdn?"),
        ("cores nowhere:Core", "core 'nowhere:Core' cannot be loaded", "give package.module:Class"),
        (
            "train --game pong --core-options head 3",
            "'rdn' has no option 'head'",
            "num_heads or head_norm? it has hidden",
        ),
        ("train --game pong --core-options num_heads x", "'rdn': num_heads is 'x'", "takes a whole number"),
        ("train --game pong --core lstm --core-options hidden_size -0.5", "is '-0.5'", "a whole number"),
        (
            "train --env CartPole-v1 --core lstm --core-options hidden_size 99999999",
            "no memory for core lstm",
            "give smaller --core-options",
        ),
        (
            "probe --task swap --core lstm --core-options hidden_size 999999999 --shell on",
            "no memory for core lstm",
            "give smaller --core-options",
        ),
        ("train --env CartPole-v1 --num-envs 100000000", "--num-envs 100000000", "from 1 to 65536"),
        ("train --env CartPole-v1 --unroll-length 0", "--unroll-length 0", "it must be from 1 to 65536"),
        ("versoin", "unknown command versoin", "say one of train"),
        ("games all", "unexpected all", "deltabeast games --help"),
    ],
)
def test_wrong_input_gets_one_line_and_code_2(
    arguments: str, wrong: str, right: str, capsys: pytest.CaptureFixture[str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    code, out, error = run(capsys, *arguments.split())
    assert (code, out) == (2, "")
    assert error.startswith("deltabeast: error: ") and error.count("\n") == 1 and error.endswith("\n")
    assert (
        wrong in error
        and right in error.split(wrong, 1)[1]
        and not set("│─") & set(error)
        and "---" not in error
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("frame", ["╭─│╰╮╯", "+-|+++"])
def test_messages_lose_their_frame_whatever_it_is_drawn_with(frame: str) -> None:
    corner, line, side, lower, right, lower_right = frame
    rows = ["Unrecognized options: --gmae, -x|y", line * 20, "Perhaps you meant:", "    --game {None}|STR"]
    box = [
        f"{corner}{line} Unrecognized options {line * 9}{right}",
        *(f"{side} {row:<40} {side}" for row in rows),
    ]
    message = condense("\n".join([*box, lower + line * 42 + lower_right]), ["train", "--gmae", "-x|y"])
    assert message == "unknown option --gmae; did you mean --game?"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("train --num-heads 3", "unknown option --num-heads; cores have it: --core-options num_heads ..."),
        (
            "probe --task dag --hidden-size 3",
            "unknown option --hidden-size; cores have it: --core-options hidden_size ...",
        ),
        ("eval run --num-seeds 1", "unknown option --num-seeds; did you mean --seed?"),
    ],
)
def test_options_of_cores_and_of_other_commands(
    arguments: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(capsys, *arguments.split())[2] == f"deltabeast: error: {says}\n"


def test_a_long_value_is_not_broken_in_the_message(capsys: pytest.CaptureFixture[str]) -> None:
    value = "/very" * 60 + "/long"
    _, _, error = run(capsys, "train", "--stem", value)
    assert value in error


@pytest.mark.parametrize(("error", "code"), [(UsageError("a\nb"), 2), (RunError("c"), 1)])
def test_errors_of_a_command_become_one_line(
    error: Exception, code: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> None:
        raise error

    monkeypatch.setitem(cli.RUN, "games", fail)
    got, _, printed = run(capsys, "games")
    assert got == code and printed.count("\n") == 1


def test_every_command_does_something() -> None:
    assert list(cli.RUN) == list(COMMANDS)


def test_help_is_quick_and_does_not_import_torch() -> None:
    script = (
        "import sys\nfrom deltabeast.launch.cli import main\n"
        "try: main(['--help'])\nexcept SystemExit as e: assert not e.code\n"
        "print('SLOW' if {'torch', 'ale_py', 'gymnasium'} & set(sys.modules) else 'quick')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("quick\n") and done.stderr == ""
    for command in COMMANDS:
        assert f"• {command} " in done.stdout


CONFIGS = {
    **{command: config for command, config in COMMANDS.items() if command != "bench"},
    "bench kernels": BenchKernelsConfig,
    "bench env": BenchEnvConfig,
    "bench throughput": BenchThroughputConfig,
}


@pytest.mark.parametrize("command", CONFIGS)
def test_every_option_of_every_command_is_explained(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, *command.split(), "--help")
    assert code == 0
    for name in CONFIGS[command].__dataclass_fields__:
        assert (
            name in ("run", "runs", "model", "folder", "repo")
            or (command, name) == ("cores", "core")
            or f"--{name.replace('_', '-')}" in out
        )


def test_arguments_reach_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    got: list[Any] = []
    monkeypatch.setitem(cli.RUN, "eval", got.append)
    cli.main(
        ["eval", "a/b", "--checkpoint", "50M", "--protocol", "ale-standard", "--random", "--episodes", "2"]
    )
    expected = EvalConfig(
        run=Path("a/b"), checkpoint="50M", protocol="ale-standard", random=True, episodes=2
    )  # fmt: skip
    assert got == [expected]


def test_cores_are_listed_with_their_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "cores")
    lines = [line.split() for line in out.splitlines() if re.match(r"  \w", line)]
    rows = {line[0]: line[1:3] for line in lines}
    assert rows["feedforward"] == ["0", "0"] and rows["lstm"] == ["527,360", "512"]
    assert rows["delta_net"] == ["429,568", "8,192"] and rows["rdn"] == ["454,400", "8,448"]
    assert set(rows) >= set(core_names()) and "W + β (v - W k) kᵀ" in out
    nets = {line[0]: line[-3:] for line in lines}
    assert nets["rdn"] == nets["rdn_large"] == ["recurrent", "delta", "linear"]
    assert nets["delta_rnn"] == ["feedforward", "delta", "recurrent"] and nets["lstm"] == ["-", "-", "-"]
    assert nets["linear_transformer"] == ["feedforward", "sum", "linear"]
    assert nets["delta_lstm"] == ["feedforward", "delta", "LSTM"] and nets["hybrid"] == ["-", "-", "-"]


@pytest.mark.parametrize(
    ("width", "costs", "missing"),
    [
        (160, None, []),
        (150, None, []),
        (110, None, ["slow net", "rule", "fast net"]),
        (110, (0.001, 0.1), ["source", "slow net", "rule", "fast net"]),
        (80, None, ["source", "slow net", "rule", "fast net"]),
        (10, None, ["parameters", "state", "a step", "source", "slow net", "rule", "fast net"]),
    ],
)
def test_a_narrow_terminal_shows_fewer_columns(
    width: int, costs: tuple[float, float] | None, missing: list[str]
) -> None:
    listed = core_list.list_cores()
    table = cores_table(listed, costs and {each.name: costs for each in listed})
    assert leave_out_last_columns(table, width) == missing
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(table)
    text = console.export_text()
    assert "…" not in text or width == 10
    shown = {str(column.header) for column in table.columns}
    for column, words in (
        ("a step", [each.equation for each in listed]),
        ("source", [each.source for each in listed]),
    ):
        assert column not in shown or {each.split()[-1] for each in words} <= set(text.split())
    assert max(map(len, text.splitlines())) <= width


def test_cores_are_listed_as_in_their_readme(capsys: pytest.CaptureFixture[str]) -> None:
    """In the same groups and order, every core once."""
    readme = (Path(core_list.__file__).parents[1] / "cores" / "README.md").read_text()
    told = re.findall(r"^\| (?:\*\*(.+)\*\*)? ?\| `(\w+)` \| .* \| .* \| .* \|$", readme, re.M)
    groups = [group for group, _ in told if group]
    assert tuple(groups) == tuple(core_list.GROUPS)
    names = [name for _, name in told]
    assert names == [name for group in core_list.GROUPS.values() for name in group]
    assert sorted(names) == list(core_names())
    first = {name: group for group, name in told if group}
    assert first == {names[0]: group for group, names in core_list.GROUPS.items()}
    _, out, _ = run(capsys, "cores")
    firsts = [re.split("  +", line.rstrip().removeprefix("  "))[0] for line in out.splitlines()[1:]]
    listed = [first for first in firsts if first]  # lines that go on with another column begin with spaces
    expected = [word for group, names in core_list.GROUPS.items() for word in (group, *names)]
    assert listed[: len(expected)] == expected


def test_what_is_advised_can_be_made(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "cores")
    for need, which in core_list.ADVICE.items():
        assert re.search(f"^  {need}  +{which}$", out, re.MULTILINE)
        names = set(re.findall(r"[a-z0-9_]+", which)) & {*core_names()}
        assert names or which.startswith("the same")
        layers = re.findall(r"layers (\S+)", which)
        for core in [make_core("hybrid", 3, layers=each) for each in layers]:
            assert len(core.initial_state(1)) > 0


@pytest.mark.parametrize("width", [80, 110, 160])
def test_columns_hold_for_a_pipe(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    _, out, _ = run(capsys, "cores")
    lines = out.splitlines()
    assert max(map(len, lines)) <= width and "…" not in out
    header = next(line for line in lines if line.startswith("core "))
    assert ("source" in header, "fast net" in header) == (width > 80, width > 110)
    assert ("A wider terminal also shows" in out) == (width < 160)
    assert "results/suite/README.md" in out and "deltabeast cores CORE" in " ".join(out.split())
    monkeypatch.delenv("COLUMNS")
    assert max(map(len, run(capsys, "cores")[1].splitlines())) == 160


def test_cores_are_measured(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    listed = [each for each in core_list.list_cores() if each.name in ("lstm", "delta_net")]
    monkeypatch.setattr(core_list, "list_cores", lambda: listed)
    _, out, _ = run(capsys, "cores", "--measure")
    costs = [line.split()[3:5] for line in out.splitlines() if line.split()[:1] in (["lstm"], ["delta_net"])]
    assert len(costs) == 2 and all(0 < float(step) < float(unroll) for step, unroll in costs)


def test_a_cores_options_are_listed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, out, _ = run(capsys, "cores", "gated_feedforward")
    assert out.startswith("gated_feedforward: One highway layer and no memory\n")
    assert (
        out.splitlines()[1]
        == "A step: no memory: y = g a(x) + (1 - g) b(x). Source: Irie et al. 2021, table 8"
    )
    rows = [re.split(r"  +", line.strip()) for line in out.splitlines()[3:]]
    assert rows[0] == ["option", "type", "default", "values", "what it is"]
    assert rows[1][:3] == ["hidden_size", "int", "256"] and rows[1][3].startswith("width of")
    assert rows[2][:3] == ["output_gate", "bool", "False"]
    assert "short_conv" in run(capsys, "cores", "feedforward")[1]
    for name in ("fast_weight_memory", "fast-weight-memory"):
        _, out, _ = run(capsys, "cores", name)
        assert out.startswith("fast_weight_memory: a rule alone, which no core has")
        options = re.findall(r"^(\w+) +(?:str|int|float|bool) ", out, re.MULTILINE)
        assert options == ["feature_map", "dpfp_nu", "favor_features"]
        assert "deltabeast probe --task retrieval --core fast_weight_memory --core-options" in out
    monkeypatch.setattr(registry, "_FACTORIES", {**registry._FACTORIES, "bare": lambda input_size: None})
    assert "It has no options." in run(capsys, "cores", "bare")[1]


def test_listed_values_and_required_options_are_shown() -> None:
    empty = inspect.Parameter.empty
    options = [Option("mode", (NoneType,), ("sum", "delta"), "sum", "how"), Option("size", (), (), empty, "")]
    console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(core_options_table(options))
    rows = [re.split(r"  +", line.strip()) for line in console.export_text().splitlines()]
    assert rows[1:] == [["mode", "str or None", "sum", "sum, delta", "how"], ["size", "any", "required"]]


def test_published_scores_are_found_by_the_games_name() -> None:
    assert published_scores("gopher", "rdn")[200] == (86008.0, 11815.0)
    assert published_scores("battle_zone", "lstm")[200] == (24873.0, 1240.0)
    assert published_scores("qbert", "rdn")[200] == (987275.0, 0.0)
    assert published_scores("breakout", "rdn") == {} == published_scores("gopher", "mine")
    later = {core: {game: published_scores(game, core) for game in PAPER_GAMES} for core in LATER_CORES}
    assert {core: sum(map(bool, games.values())) for core, games in later.items()} == {
        "gated_feedforward": 4, "rdn_large": 4
    }  # fmt: skip
    assert later["rdn_large"]["battle_zone"] == {200: (28273.0, 5333.0)}
    assert later["gated_feedforward"]["space_invaders"] == {200: (95629.0, 11991.0)}


# --- deltabeast eval, on a saved agent and a small environment -------------------------------------------


class CountdownEnv:
    """Rows of episodes of 3 steps that pay 2 each; a game is two episodes. Stands in for an Atari game."""

    made: list[dict[str, Any]]
    metadata: ClassVar[dict[str, Any]] = {}

    def __init__(self, num_envs: int) -> None:
        self.num_envs, self.t, self.unwrapped = num_envs, 0, self

    def reset(self, *, seed: int) -> tuple[Any, dict[str, Any]]:
        return np.zeros((self.num_envs, 4, 84, 84), np.uint8), {}

    def step(self, actions: Any) -> Any:
        n = self.num_envs
        self.t += 1
        life, game = np.full(n, self.t % 3 == 0), np.full(n, self.t % 6 == 0)
        infos = {"life_return": np.full(n, 6.0), "_life_return": life, "life_length": np.full(n, 3),
                 "game_return": np.full(n, 12.0), "_game_return": game, "game_length": np.full(n, 6),
                 "score_wraps": np.zeros(n, int)}  # fmt: skip
        obs = np.zeros((n, 4, 84, 84), np.uint8)
        return obs, np.full(n, 2.0, np.float32), life, np.zeros(n, bool), infos

    def close(self) -> None:
        pass


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    spec = AgentSpec((4, 84, 84), 8, "feedforward", "nature", game="gopher", protocol="paper-code")
    for step in (1600, 3200):
        save_checkpoint(tmp_path / "run", step, Agent(spec), {}, milestone=True)
    return tmp_path / "run"


@pytest.fixture
def envs(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []

    def make(game: str | None = None, **options: Any) -> CountdownEnv:
        made.append({"game": game, **options})
        return CountdownEnv(options["num_envs"])

    monkeypatch.setattr(environments, "make_vector_env", make)
    return made


def evaluated(run_dir: Path, **options: Any) -> tuple[str, dict[str, Any]]:
    console = Console(width=100, force_terminal=False, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    path = evaluate_run(EvalConfig(run_dir, device="cpu", **options), console)
    return console.export_text(), json.loads(path.read_text())


def test_an_evaluation_is_printed_beside_what_was_published(saved: Path, envs: list[dict[str, Any]]) -> None:
    text, content = evaluated(saved, episodes=3, repeats=2, random=True)
    assert "gopher · feedforward · step 3,200 · paper-code · 2 x 3 episodes · greedy" in text
    life = next(line for line in text.splitlines() if line.startswith("life return"))
    assert life.split("  ") and life.count("6 ± 0") == 2 and "61,350 ± 3,891" in life
    assert next(line for line in text.splitlines() if line.startswith("game return")).count("12 ± 0") == 2
    assert f"{(12 - 257.6) / (2412.5 - 257.6):.1%}" in text and "one life" in text
    assert content["results"]["trained"]["summary"]["game"]["interval"] == [12.0, 12.0]
    assert content["results"]["trained"]["life"]["returns"] == [[6.0] * 3] * 2
    assert content["results"]["random"]["game"]["returns"] == [[12.0]] * 2
    assert content["step"] == 3200 and content["seed"] == 1 and content["versions"]["torch"]
    assert [env["num_envs"] for env in envs] == [1, 2, 2]
    assert envs[1]["game"] == "gopher" and envs[1]["full_action_set"] is False
    (path,) = (saved / "eval").iterdir()
    assert path.name.startswith("paper-code-3200-") and path.suffix == ".json"


def test_a_result_that_cannot_be_saved_is_printed_all_the_same(
    saved: Path, envs: list[dict[str, Any]]
) -> None:
    (saved / "eval").write_text("mine")
    console = Console(width=100, force_terminal=False, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with pytest.raises(RunError, match="; the result is above"):
        evaluate_run(EvalConfig(saved, episodes=3, repeats=2, device="cpu"), console)
    assert "6 ± 0" in console.export_text() and (saved / "eval").read_text() == "mine"


def test_another_protocol_says_so_and_shows_no_published_score(
    saved: Path, envs: list[dict[str, Any]]
) -> None:
    text, content = evaluated(saved, episodes=2, repeats=1, protocol="ale-standard", checkpoint="1600")
    assert "trained under paper-code, not ale-standard" in text and "published" not in text
    # Gopher: random 257.6, human 2412.5; the score is 12.
    assert f"{(12 - 257.6) / (2412.5 - 257.6):.1%}" in text
    assert content["step"] == 1600 and content["published"] == {}
    assert envs[-1]["protocol"] == "ale-standard" and envs[-1]["full_action_set"] is False


def test_sampled_play_is_not_set_beside_published_greedy_play(
    saved: Path, envs: list[dict[str, Any]]
) -> None:
    text, _ = evaluated(saved, episodes=1, repeats=1, sample=True)
    assert "published" not in text and "sampled actions" in text and "none finished" in text


@pytest.mark.usefixtures("envs")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"checkpoint": "50M"}, "no checkpoint at step 50000000 or later.*1600, 3200"),
        ({"checkpoint": "newest"}, "no checkpoint 'newest'.*latest"),
        ({"device": "cuda:99"}, "cuda"),
    ],
)
def test_a_wrong_request_writes_nothing(saved: Path, options: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        evaluate_run(EvalConfig(saved, **options), Console(quiet=True))
    assert not (saved / "eval").exists()


def test_a_checkpoint_directory_leaves_nothing_to_choose(saved: Path) -> None:
    checkpoint = saved / "checkpoints" / f"{1600:012d}"
    with pytest.raises(UsageError, match=r"--checkpoint 3200: .* is one checkpoint"):
        evaluate_run(EvalConfig(checkpoint, checkpoint="3200"), Console(quiet=True))


def test_an_agent_with_all_actions_keeps_them(tmp_path: Path, envs: list[dict[str, Any]]) -> None:
    spec = AgentSpec((4, 84, 84), 18, "feedforward", "nature", game="gopher", protocol="ale-standard")
    save_checkpoint(tmp_path, 1, Agent(spec), {})
    evaluated(tmp_path, episodes=1, repeats=1, protocol="paper-code")
    assert envs[-1]["full_action_set"] is True and envs[-1]["protocol"] == "paper-code"


def test_an_agent_with_the_first_six_actions_keeps_to_them(
    tmp_path: Path, envs: list[dict[str, Any]]
) -> None:
    spec = AgentSpec((4, 84, 84), 6, "feedforward", "nature", game="amidar", protocol="paper-code")
    save_checkpoint(tmp_path, 1, Agent(spec), {})
    for protocol in ("paper-code", "ale-standard"):
        text, _ = evaluated(tmp_path, episodes=1, repeats=1, protocol=protocol)
        assert envs[-1]["full_action_set"] is False and "first 6" not in text
    save_checkpoint(tmp_path, 2, Agent(replace(spec, num_actions=10)), {})
    assert "chose among its first 6 actions, this one among 10" in evaluated(tmp_path, episodes=1)[0]


def test_an_agent_of_another_game_is_refused(tmp_path: Path) -> None:
    spec = AgentSpec((4, 84, 84), 5, "feedforward", "nature", game="gopher", protocol="paper-code")
    save_checkpoint(tmp_path, 1, Agent(spec), {})
    with pytest.raises(UsageError, match="5 actions, gopher has 8 or 18"):
        evaluate_run(EvalConfig(tmp_path), Console(quiet=True))


@pytest.mark.parametrize(("size", "actions"), [(5, 2), (4, 3)])
def test_an_agent_of_another_environment_is_refused(size: int, actions: int, tmp_path: Path) -> None:
    """As when another version of a package shows more than the agent was trained with."""
    save_checkpoint(tmp_path, 1, Agent(AgentSpec((size,), actions, "lstm", "mlp", env_id="CartPole-v1")), {})
    with pytest.raises(
        UsageError, match=rf"shape \({size},\) and {actions} actions, CartPole-v1 has \(4,\) and 2;"
    ):
        evaluate_run(EvalConfig(tmp_path), Console(quiet=True))
    assert not (tmp_path / "eval").exists()


def test_damaged_checkpoints_fall_back_or_say_so(saved: Path, envs: list[dict[str, Any]]) -> None:
    (saved / "checkpoints" / f"{3200:012d}" / "weights.safetensors").write_bytes(b"no")
    text, content = evaluated(saved, episodes=1, repeats=1)
    assert content["step"] == 1600 and "weights.safetensors" in text
    with pytest.raises(RunError, match="damaged"):
        evaluate_run(EvalConfig(saved / "checkpoints" / f"{3200:012d}"), Console(quiet=True))


def test_info_says_one_return_where_there_are_no_lives(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"config": {"env": "CartPole-v1", "core": "gru"}}))
    (tmp_path / "logs.csv").write_text("step,time,game_return,life_return,episodes\n1600,1000.000,7,7,16\n")
    lines = dict(describe_run(tmp_path))
    assert lines["return"] == "7.0 (last 16, step 1,600)"
    assert "game return" not in lines and "life return" not in lines


@pytest.mark.usefixtures("envs")
def test_info_says_how_far_a_run_came(saved: Path) -> None:
    (saved / "config.json").write_text(json.dumps({"config": {"game": "gopher", "seed": 4, "steps": "200M"}}))
    header = "step,time,sps,game_return,life_return,best_game_return,episodes\n"
    (saved / "logs.csv").write_text(header + "1600,1000.000,50,7,2,,16\n3200,1060.000,55,,2.5,9,30\n")
    evaluated(saved, episodes=2, repeats=1)
    lines = dict(describe_run(saved, now=1060 + 5 * 60))
    assert lines["trains"] == "gopher · feedforward · nature · paper-code · seed 4"
    assert lines["progress"] == "step 3,200 of 200M, 55 steps/s, last row 5 m 0 s ago"
    assert lines["game return"] == "7.0 (last 16, step 1,600)"
    assert lines["life return"] == "2.5 (last 100 at most, step 3,200)" and lines["best game return"] == "9.0"
    assert lines["checkpoints"] == "1,600 (kept), 3,200 (kept)"
    assert (
        lines["evaluation"]
        == "step 3,200, paper-code, greedy, 1 x 2 episodes: life 6.0 ± 0.0, game 12.0 ± 0.0"
    )
    (path,) = saved.glob("eval/*.json")
    more = json.loads(path.read_text())
    more["results"] |= dict.fromkeys(("random", "wipe@5", "wipe@9"), more["results"]["trained"])
    path.write_text(json.dumps(more | {"certificate": {}}))
    assert dict(describe_run(saved))["evaluation"].endswith(
        "game 12.0 ± 0.0; also random play, 2 alterations of the memory, a certificate"
    )
    assert lines["remaining"] == "199,996,800 steps, 42 d 2 h at 55 steps/s"
    assert lines["to go on"] == f"deltabeast train --game gopher --core rdn --seed 4 --run-dir {saved}"
    assert lines["disk"].endswith("GB free") and "held by" not in lines
    (saved / "logs.csv").write_text(header + "3200,1060.000,55,7,2.5,9,300\n")
    assert dict(describe_run(saved))["game return"] == "7.0 (last 100, step 3,200)"
    (saved / "logs.csv").write_text(header + "4800,1060.000,55,7,2.5,9,300\n")  # killed thereafter
    lines = dict(describe_run(saved))
    assert lines["remaining"].endswith(" steps/s, from the newest checkpoint, step 3,200")
    with claim(saved):
        lines = dict(describe_run(saved))
        assert "another process" in lines["held by"] and "to go on" not in lines
    (saved / "config.json").write_text(json.dumps({"config": {"game": "gopher", "steps": "3200"}}))
    lines = dict(describe_run(saved))
    assert lines["next"] == f"finished; deltabeast eval {saved}" and "remaining" not in lines
    (saved / "config.json").unlink()
    assert dict(describe_run(saved))["damaged"] == "config.json is not there, so its options are not known"


def test_info_says_the_options_of_the_core(tmp_path: Path) -> None:
    options = {"core": "lstm", "core_options": {"hidden_size": 8, "chrono": 4}}
    (tmp_path / "config.json").write_text(json.dumps({"config": {"game": "gopher", **options}}))
    assert dict(describe_run(tmp_path))["trains"] == "gopher · lstm (hidden_size 8, chrono 4)"


@pytest.mark.parametrize("command", ["info", "eval"])
def test_a_folder_of_runs_names_them(command: str, saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (saved / "config.json").write_text("{}")
    code, _, error = run(capsys, command, str(saved.parent))
    assert code == 2 and f"no run at {saved.parent}; give one below it: {saved}" in error
    code, _, error = run(capsys, command, str(saved.parent / "nowhere"))
    assert code == 2 and "give a directory such as runs/gopher/rdn/seed-1" in error


def test_info_names_what_is_damaged_and_says_the_rest(saved: Path) -> None:
    run = saved.rename(saved.with_name("a run"))
    (run / "config.json").write_text(json.dumps({"config": {"game": "gopher", "steps": "3200"}}))
    assert dict(describe_run(run))["next"] == f"finished; deltabeast eval '{run}'"
    assert "damaged" not in dict(describe_run(run))
    (run / "config.json").write_text("{")
    (run / "logs.csv").write_text("step,time,sps\n1600,1000.0,fast\n")
    (run / "checkpoints" / f"{3200:012d}" / "weights.safetensors").write_bytes(b"half")
    lines = describe_run(run)
    damage = [text.split()[0] for label, text in lines if label == "damaged"]
    assert damage == ["config.json", "logs.csv", "weights.safetensors"]
    assert dict(lines)["trains"] == "gopher · feedforward · nature · paper-code"
    assert dict(lines)["checkpoints"] == "1,600 (kept), 3,200 (kept)"


@pytest.mark.parametrize(
    "arguments",
    [
        "--game pong --core rdn",
        "--env CartPole-v1 --core lstm --core-options hidden_size 8 --steps 3M --seed 0 --deterministic",
        "--game gopher --protocol ale-standard --learning-rate 2e-4 --bptt per_step --batch-size 8",
    ],
)
def test_the_command_to_go_on_means_the_same_run(arguments: str, tmp_path: Path) -> None:
    run_dir = tmp_path / "a run"
    run_dir.mkdir()
    config = parsing.parse(["train", *arguments.split(), "--run-dir", str(run_dir)])
    write_config(run_dir, config)
    command = shlex.split(resume_command(read_config(run_dir), run_dir))
    assert command[0] == "deltabeast" and parsing.parse(command[1:]) == config


def test_games_are_listed_with_what_is_known_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    info = GameInfo("gopher", actions=8, fire=True, lives=3, random=257.6, human=2412.5)
    console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(games_table([info], {"gopher": "Gopher"}))
    row = console.export_text().splitlines()[1].split()
    assert row == ["gopher", "Gopher", "8", "3", "yes", "257.6", "2,412"]


@pytest.mark.parametrize("length", [20, 150, 300])
def test_a_pipe_cuts_no_name(length: int, capsys: pytest.CaptureFixture[str]) -> None:
    table = plain_table("run", "return")
    name = "x" * length
    table.add_row(name, "12.5")
    show(table)
    assert capsys.readouterr().out.splitlines()[1].split() == [name, "12.5"]
