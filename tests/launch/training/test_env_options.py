"""Options of environments, and environments that a function in one's own file makes."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path

import gymnasium
import pytest

from deltabeast.agents import load_agent
from deltabeast.envs import make_vector_env
from deltabeast.launch.cli import main
from deltabeast.launch.comparison.runs import read_run
from deltabeast.launch.runs.describe import describe_run
from deltabeast.launch.training.env_options import read_env_options

OWN = """
import gymnasium
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit

class Short(gymnasium.Wrapper):
    def __init__(self, limit: int = 7, *, name: str = "x"):
        super().__init__(TimeLimit(gymnasium.make("FrozenLake-v1", is_slippery=False), limit))
        self.name = name

def make_it(limit: int = 5):
    return Short(limit)

def make_many(num_envs, limit: int = 3):
    makers = [lambda: make_it(limit)] * num_envs
    return SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP)

def make_nothing():
    return "a word"

def make_sized(limit=3, *, size):
    return make_it(size)

def make_vector():
    return make_many(2)

def make_three(num_envs=2):
    return make_many(3)

AN_INSTANCE = make_it()

gymnasium.register("Taken", make_it, kwargs={"limit": 2})
Taken = make_many
"""
TINY = ["--core", "lstm", "--steps", "40", "--num-envs", "2", "--batch-size", "2", "--unroll-length", "5"]
TINY += ["--num-workers", "1", "--core-options", "hidden_size", "4"]


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module in the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    name = f"envs_of_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(OWN)
    yield name
    gymnasium.registry.pop("Taken", None)


def first_length(env_id: str, **options: object) -> int:
    """Play in the corner until the first episode is cut."""
    env = make_vector_env(env_id=env_id, num_envs=2, options=options)
    env.reset(seed=0)
    while True:
        *_, infos = env.step([0, 0])
        if infos["_game_length"].all():
            env.close()
            return int(infos["game_length"][1])


def test_what_a_file_of_ones_own_makes_is_an_environment(own: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(".")
    found = [first_length(f"{own}:{name}") for name in ("make_it", "Short", "make_many", "Taken")]
    assert found == [5, 7, 3, 2], "an id that is registered wins"
    assert [first_length(f"{own}:{name}", limit=4) for name in ("make_it", "Short", "make_many")] == [4] * 3
    assert first_length(f"{own}:Short", max_episode_steps=6) == 6
    for name, said in {
        "make_i": f"did you mean {own}:make_it",
        "make_nothing": "does not start: TypeError: .*gymnasium.Env",
        "xyz": rf"'{own}' of .*{own}\.py has Short, make_it, .*, make_vector",
        "__doc__": "unknown environment",
        "make_sized": r"missing 1 required .*; give size as options \(--env-options size VALUE\)$",
        "make_three": "it made 3 environments; num_envs is 1, pass that on$",
        "AN_INSTANCE": rf"that is no class or function of {own}, which has Short, make_it,",
        "make_vector": "a function that makes a vector environment takes the parameter num_envs$",
    }.items():
        with pytest.raises(ValueError, match=said):
            make_vector_env(env_id=f"{own}:{name}", num_envs=1)


def test_options_have_the_types_of_the_constructor(own: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(".")
    lake = {"is_slippery": "false", "map_name": "8x8", "max_episode_steps": "9"}
    assert read_env_options(None, "FrozenLake-v1", lake) == {
        "is_slippery": False, "map_name": "8x8", "max_episode_steps": 9
    }  # fmt: skip
    assert read_env_options(None, f"{own}:Short", {"limit": "3", "name": "4"}) == {"limit": 3, "name": "4"}
    assert read_env_options(None, f"{own}:make_many", {"limit": 3}) == {"limit": 3}
    assert read_env_options(None, "deltabeast/EndlessTMaze-v0", {"length": "3"}) == {"length": 3}
    registered = read_env_options(None, "deltabeast/Swap-v0", {"size": "3"})  # with a name that it needs
    assert registered == {"size": 3}
    assert read_env_options("pong", None, {}) == {}


@pytest.mark.parametrize(
    ("env_id", "options", "said"),
    [
        ("FrozenLake-v1", {"slippery": "false"}, "did you mean is_slippery"),
        ("FrozenLake-v1", {"is_slippery": "perhaps"}, "is_slippery is 'perhaps'; it takes true or false"),
        ("CartPole-v1", {"max_episode_steps": "0.5"}, "max_episode_steps is '0.5'; it takes a whole number"),
        ("CartPol-v1", {"max_episode_steps": "5"}, "did you mean CartPole-v1"),
    ],
)
def test_options_that_an_environment_does_not_take(env_id: str, options: dict[str, str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read_env_options(None, env_id, options)


@pytest.mark.parametrize("name", ["num_envs", "vectorization_mode", "vector_kwargs", "wrappers"])
def test_options_of_gymnasiums_own_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"no option '{name}'"):
        make_vector_env(env_id="CartPole-v1", num_envs=2, options={name: "async"})


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    line = capsys.readouterr().err.strip()
    assert "\n" not in line
    return line


def test_a_run_has_its_options_wherever_it_is_used(own: str, capsys: pytest.CaptureFixture[str]) -> None:
    env = f"{own}:make_it"
    train = ["train", "--env", env, "--env-options", "limit", "4", *TINY]
    main(train)
    run = Path("runs/make_it/lstm/seed-1")
    spec = load_agent(run).spec
    assert spec.env_options == {"limit": 4}
    assert json.loads((run / "config.json").read_text())["config"]["env_options"] == {"limit": 4}
    described = dict(describe_run(run))
    assert "(limit 4)" in described["trains"]
    main([*train, "--steps", "60"])  # goes on
    assert "holds a run with options of the environment limit 4, not the default limit" in refused(
        ["train", "--env", env, *TINY], capsys
    )
    assert f"--trust-env {env}" in refused(["eval", str(run)], capsys)
    main(["eval", str(run), "--trust-env", env, "--episodes", "2", "--repeats", "1"])
    (result,) = (run / "eval").glob("*.json")
    lengths = json.loads(result.read_text())["results"]["trained"]["game"]["lengths"]
    assert lengths == [[4, 4]]
    read, _ = read_run(run)
    assert read is not None and read.settings["env_options"] == "limit 4"
    capsys.readouterr()
    main(["train", "--config", str(run), "--show-config"])
    assert json.loads(capsys.readouterr().out)["config"]["env_options"] == {"limit": 4}
    run = run.absolute()
    Path("other").mkdir()
    with contextlib.chdir("other"):  # whose module of that name may be another's
        assert "give --env" in refused(["train", "--config", str(run), "--show-config"], capsys)
    main(["train", "--config", str(run), "--env", "CartPole-v1", "--show-config"])
    shown = capsys.readouterr()
    assert json.loads(shown.out)["config"]["env_options"] == {} and "was for another env" in shown.err


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("{own}.py:make_it", "names a file: work in its folder, and say {own}:make_it"),
        ("./{own}:make_it", "names a file: work in its folder, and say {own}:make_it"),
        ("this:repeat", "(it hides this.py of this folder: rename that) has nothing"),
        ("{own}.Short", "did you mean {own}:Short?"),
        ("{own}", "did you mean {own}:NAME?"),
        ("{own}x:Short", "did you mean {own}:Short?"),
        ("random:Randm", "(it hides random.py of this folder: rename that) has"),
        ("this:make_it", r"(it hides this.py of this folder: rename that) has nothing that makes one"),
        (
            "imports_nothing:make_it",
            "No module named 'no_such_package'; install what it imports, no_such_package",
        ),
        ("nowhere:make_it", "No module named 'nowhere'; install the package that registers it, or work in"),
        (
            "{own}:make_it --env-options num_envs 3",
            "--env-options num_envs: how many are played at once is --num-envs",
        ),
    ],
)
def test_a_name_that_leads_nowhere_gets_the_remedy(
    name: str, said: str, own: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for hidden in ("this", "random"):
        Path(f"{hidden}.py").write_text(OWN)
    Path("imports_nothing.py").write_text("import no_such_package.of_this\n")
    assert said.format(own=own) in refused(["train", "--env", *name.format(own=own).split(), *TINY], capsys)
    assert not Path("runs").exists()


OLD = """
import gymnasium

class Old(gymnasium.Wrapper):
    def __init__(self):
        super().__init__(gymnasium.make("CartPole-v1"))
    def reset(self, **given):
        return super().reset(**given)[0]

class Raises(Old):
    def reset(self, **given):
        raise ValueError("no map\\nto load")

class Typo(Old):
    def __init__(self):
        raise KeyError("sise")

class NoneAtLast(Old):
    def reset(self, **given):
        return gymnasium.Wrapper.reset(self, **given)
    def step(self, action):
        return None, 0.0, False, True, {}
"""


@pytest.mark.parametrize(
    ("name", "line", "traced"),
    [
        ("Old", "old:Old: reset returned a ndarray instead of 2: observation, info", ""),
        ("Raises", "old:Raises: reset failed: ValueError: no map to load", 'raise ValueError("no map'),
        ("Typo", "old:Typo does not start: KeyError: 'sise'", 'raise KeyError("sise")'),
        ("NoneAtLast", "old:NoneAtLast: step returned an observation of shape (), but its space is", ""),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_fails_at_the_start_says_what_and_where(
    name: str, line: str, traced: str, own: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("old.py").write_text(OLD)
    with pytest.raises(SystemExit):
        main(["train", "--env", f"old:{name}", *TINY, "--run-dir", "run"])
    *trace, last = [each for each in capsys.readouterr().err.splitlines() if "Warning" not in each]
    assert last.startswith(f"deltabeast: error: {line}"), last
    assert any(traced in each for each in trace) if traced else not trace


CORE = """
from deltabeast.cores.feedforward import Feedforward

class Broken(Feedforward):
    def __init__(self, input_size, hidden_size=3):
        super().__init__(input_size)
        self.width = None + 1
"""


def test_a_core_of_ones_own_that_does_not_start_says_what_and_where(
    own: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("cores_here.py").write_text(CORE)
    core = ["--core", "cores_here:Broken", "--run-dir", "run"]
    with pytest.raises(SystemExit) as ended:
        main(["train", "--env", "CartPole-v1", *TINY[2:-3], *core])
    first, where, *_, last = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2
    assert last.startswith("deltabeast: error: core 'cores_here:Broken' does not start: TypeError: uns")
    assert first.startswith("Traceback") and "cores_here.py" in where


FAILING_CLOSE = """
import gymnasium

class Failing(gymnasium.Wrapper):
    def __init__(self):
        super().__init__(gymnasium.make("CartPole-v1"))
    def close(self):
        raise OSError("no window to close")

class Continuous(Failing):
    action_space = gymnasium.spaces.Box(-1, 1)

class Wrong(Failing):
    def step(self, action):
        return None
"""


def test_an_environment_that_cannot_be_closed_hides_nothing(
    own: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("failing.py").write_text(FAILING_CLOSE)
    main(["train", "--env", "failing:Failing", *TINY, "--run-dir", "run"])
    shown = capsys.readouterr()
    assert "finished at 40 of 40 steps" in shown.out
    closed = "deltabeast: warning: failing:Failing: close failed: OSError: no window to close"
    assert shown.err.splitlines() == [closed]
    main(["eval", "run", "--trust-env", "failing:Failing", "--episodes", "1", "--repeats", "1"])
    assert "saved as run/eval/" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["train", "--env", "failing:Wrong", *TINY, "--run-dir", "wrong"])
    *_, last = capsys.readouterr().err.splitlines()
    assert last.startswith("deltabeast: error: failing:Wrong: step ")
    with pytest.raises(ValueError, match="Discrete"), pytest.warns(UserWarning, match="close failed"):
        make_vector_env(env_id="failing:Continuous", num_envs=1)
