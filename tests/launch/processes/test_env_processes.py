"""Environments in processes: the same games as in one, failures named, and nothing hangs or is left."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import training_envs
from processes import alive

from deltabeast.agents.action_log import ActionLog
from deltabeast.envs import EnvironmentFailed, make_vector_env
from deltabeast.envs.checks import environment_seeds
from deltabeast.envs.conformance import check_vector_env
from deltabeast.envs.rescue import DoesNotStart
from deltabeast.launch.processes import env_servers
from deltabeast.launch.processes.child import ChildDied
from deltabeast.launch.processes.env_processes import ProcessEnvs, process_envs
from deltabeast.launch.processes.env_servers import EnvServers

pytestmark = pytest.mark.usefixtures("quick_children", "nothing_is_left")


@pytest.fixture
def nothing_is_left() -> Iterator[None]:
    """Neither processes nor descriptors, nor a file that all see."""
    folder = Path("/dev/shm")
    before = set(folder.glob("*"))
    made: list[ProcessEnvs] = []
    original = ProcessEnvs.__init__
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            ProcessEnvs, "__init__", lambda env, *a, **k: made.append(env) or original(env, *a, **k)
        )
        yield
    for env in made:
        env.close()
        assert not any(child._process.is_alive() for child in env._children)
        assert env._answers.fileno() == -1 and all(waker.closed for waker in env._wakers)
        assert all(pipe.connection.closed for pipe in env._messages)
    assert set(folder.glob("*")) <= before


def maker(name: str, **options: Any) -> Any:
    return partial(make_vector_env, env_id=name, num_threads=1, options=options)


GAME = partial(make_vector_env, "breakout", num_threads=1)
CUT = maker("training_envs:Odd-v0")
FLICKERING = partial(GAME, protocol="ale-standard+flicker0.5")


def in_processes(make: Any, num_envs: int, processes: int, copy: bool = True) -> ProcessEnvs:
    return process_envs(EnvServers(make, num_envs, processes), copy)[0]


def assert_equal(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_equal(one[key], other[key])
    elif isinstance(one, np.ndarray):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)
    else:
        assert one == other


def step_for_ever(env: Any) -> None:
    env.reset(seed=1)
    while True:
        env.step(np.zeros(env.num_envs, int))


def played(env: Any, steps: int, seed: int) -> Iterator[tuple[Any, ...]]:
    """Everything that resets, of all and of some, and steps return."""
    rng = np.random.default_rng(seed)
    rows = np.arange(env.num_envs)
    for step in range(steps):
        if step == 0:
            yield env.reset(seed=seed)
        if step % 12 == 11:  # none of some processes
            yield env.reset(seed=(rows + 7).tolist(), options={"reset_mask": rows == env.num_envs - 1})
        if step == 3 * steps // 4:
            yield env.reset(seed=(rows + 3).tolist())
        if step == 4 * steps // 5 and env.num_envs > 1:
            yield env.reset(options={"reset_mask": rows != 1})
        yield env.step(rng.integers(0, env.single_action_space.n, env.num_envs))


@pytest.mark.parametrize(
    ("make", "num_envs", "processes", "steps"),
    [(GAME, 5, 3, 100), (FLICKERING, 2, 2, 40), (GAME, 1, 1, 20), (CUT, 5, 3, 100)],
    ids=["5 games in 3", "flickering", "one game", "cut and masked"],
)
def test_the_games_are_those_of_one_process(
    make: Any, num_envs: int, processes: int, steps: int, seed: int
) -> None:
    env, one = in_processes(make, num_envs, processes, copy=False), make(num_envs=num_envs)
    assert [rows.stop - rows.start for rows in env._rows] == {3: [2, 1, 2], 2: [1, 1], 1: [1]}[processes]
    for name in ("single_observation_space", "observation_space", "action_space", "metadata"):
        assert getattr(env, name) == getattr(one, name)
    for name in ("action_meanings", "reading", "left_out", "protocol"):
        assert hasattr(env, name) == hasattr(one, name) and getattr(env, name, 0) == getattr(one, name, 0)
    keys: set[str] = set()
    for here, there in zip(played(env, steps, seed), played(one, steps, seed), strict=True):
        assert env.working() == []
        for mine, theirs in zip(here, there, strict=True):
            if isinstance(mine, dict):
                keys |= mine.keys()
            assert_equal(mine, theirs)
    if make.keywords.get("env_id"):
        assert {"final_obs", "_final_obs", "action_mask", "notes"} < keys


def test_groups_play_their_own_games_at_the_same_time(seed: int) -> None:
    """Their orders come in any order, and the processes of a group are not equally fast."""
    groups = process_envs(EnvServers(training_envs.uneven, 5, 3, groups=3))
    assert [str(child)[:27] for child in groups[0]._children][::2] == [
        "environments 0 to 1 of each",
        "environments 3 to 4 of each",
    ]
    assert len(groups) == 3 and len({child._process.pid for env in groups for child in env._children}) == 3
    failed: list[BaseException] = []

    def play(index: int) -> None:
        try:
            there = played(CUT(num_envs=5), 150, seed + index)
            for mine, theirs in zip(played(groups[index], 150, seed + index), there, strict=True):
                for one, other in zip(mine, theirs, strict=True):
                    assert_equal(one, other)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=play, args=(index,)) for index in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failed and not any(thread.is_alive() for thread in threads)


def test_a_group_that_is_closed_or_fails_ends_all() -> None:
    one, other = process_envs(EnvServers(CUT, 2, 2, groups=2))
    other.reset(seed=1)
    one.close()
    with pytest.raises(RuntimeError, match=r"^this environment is closed$"):
        other.step(np.zeros(2, int))
    one, other = process_envs(EnvServers(maker("training_envs:Raises-v0"), 2, 2, groups=2))
    other.reset(seed=1)
    with pytest.raises(EnvironmentFailed):
        step_for_ever(one)
    other.step(np.zeros(2, int))  # what one group's raised, the other's did not


def test_they_keep_the_contract(seed: int) -> None:
    check_vector_env(in_processes(CUT, 3, 2), steps=60, seed=seed)


def test_an_action_log_repeats_them(seed: int) -> None:
    """As `--deterministic` restores them, in any number of processes."""
    log = ActionLog(in_processes(maker("CartPole-v1"), 3, 2))
    log.reset(seed=seed)
    for step in range(120):
        observation = log.step(np.arange(3) + step & 1)[0]
    again = ActionLog(in_processes(maker("CartPole-v1"), 3, 3))
    np.testing.assert_array_equal(again.replay(log.state_dict()), observation)
    assert log._games.sum() > 0


def test_after_wrong_calls_they_go_on(seed: int) -> None:
    env = in_processes(CUT, 3, 2)
    env.reset(seed=seed)
    for mask in (np.zeros(3, bool), np.ones(2, bool)):
        with pytest.raises(ValueError, match="reset_mask must be 3 booleans"):
            env.reset(options={"reset_mask": mask})
    with pytest.raises(ValueError, match="got 2 seeds for 3"):
        env.reset(seed=[1, 2])
    with pytest.raises(ValueError, match=r"actions must lie in 0\.\.1"):
        env.step(np.full(3, 9))
    (one := CUT(num_envs=3)).reset(seed=seed)
    for mine, theirs in zip(env.step(np.zeros(3, int)), one.step(np.zeros(3, int)), strict=True):
        assert_equal(mine, theirs)


def test_an_environment_that_raises_is_named_as_in_one_process() -> None:
    def message(env: Any) -> tuple[str, str]:
        with pytest.raises(EnvironmentFailed) as failed:
            step_for_ever(env)
        return str(failed.value), failed.value.trace

    make = maker("training_envs:Raises-v0")
    here, there = message(make(num_envs=3)), message(in_processes(make, 3, 2))
    assert here == there and 'raise KeyError("the emulator broke")' in there[1]


def test_one_that_does_not_start_is_named() -> None:
    with pytest.raises(DoesNotStart, match=r"CartPole-v1 does not start: TypeError: .*'colour'"):
        in_processes(maker("CartPole-v1", colour=1), 4, 2)
    with pytest.raises(ValueError, match="unknown environment 'Bogus-v0'"):
        in_processes(maker("Bogus-v0"), 4, 2)


def test_an_error_that_cannot_be_sent_is_told_with_its_traceback() -> None:
    with pytest.raises(RuntimeError, match=r"^Unpicklable\('neither'\)$") as failed:
        in_processes(training_envs.raises_unpicklable, 2, 2)
    assert "in raises_unpicklable" in str(failed.value.__cause__)


def test_an_error_at_length_is_cut() -> None:
    """Sending more than a pipe holds would wait for a thread that may itself wait for this process."""
    with pytest.raises(RuntimeError, match=r"^ValueError\('xxx") as failed:
        in_processes(training_envs.raises_at_length, 2, 2)
    assert len(str(failed.value)) == len(str(failed.value.__cause__)) == env_servers._MOST_BYTES


@pytest.mark.parametrize("when", ["before a step", "during one"])
def test_a_process_that_dies_is_named(when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    env = in_processes(maker("training_envs:Stalls-v0"), 5, 3)
    env.reset(seed=1)
    for _ in range(93 if when == "during one" else 3):
        env.step(np.zeros(5, int))
    pid = env._children[1]._process.pid
    assert pid is not None
    kill = threading.Timer(0.3 if when == "during one" else 0, os.kill, (pid, signal.SIGKILL))
    kill.start()
    if when == "before a step":
        kill.join()
    began = time.monotonic()
    with pytest.raises(ChildDied, match=rf"^environment 2 \(process {pid}\) died: killed by"):
        env.step(np.zeros(5, int))
    assert time.monotonic() - began < 5
    monkeypatch.setattr(env_servers, "_PATIENCE", 0.1)


def test_a_process_that_hangs_is_named() -> None:
    """For as long as it does."""
    env = in_processes(CUT, 5, 3)
    env.reset(seed=1)
    pid = env._children[1]._process.pid
    assert pid is not None and env.working() == []
    os.kill(pid, signal.SIGSTOP)
    thread = threading.Thread(target=env.step, args=(np.zeros(5, int),))
    thread.start()
    end = time.monotonic() + 10
    while env.working() != [f"environment 2 (process {pid})"]:
        assert time.monotonic() < end and thread.is_alive()
        time.sleep(0.01)
    os.kill(pid, signal.SIGCONT)
    thread.join(10)
    assert not thread.is_alive() and env.working() == []


def test_one_that_has_no_memory_for_its_arrays_did_not_end_well() -> None:
    """It shows a traceback of its own."""
    env = in_processes(training_envs.maps_nothing, 2, 2)
    with pytest.raises(ChildDied, match=r"^environment [01] \(process \d+\) died: exit code 1$"):
        env.reset(seed=1)


def test_all_processes_that_die_are_named_too() -> None:
    """Nobody reads the pipe that wakes them."""
    env = in_processes(CUT, 2, 2)
    env.reset(seed=1)
    for child in env._children:
        child.end()
    with pytest.raises(ChildDied, match=r"^environment 0 \(process"):
        env.step(np.zeros(2, int))


def test_nothing_follows_a_call_that_was_not_carried_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that comes late would pass for one to the next order."""
    env = in_processes(CUT, 2, 2)
    env.reset(seed=1)

    def interrupt(*_: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(env, "_wait", interrupt)
        with pytest.raises(KeyboardInterrupt):
            env.step(np.zeros(2, int))
    with pytest.raises(RuntimeError, match="make the environments anew"):
        env.step(np.zeros(2, int))


def test_seeds_of_any_number_reach_a_process() -> None:
    """More bytes than a pipe holds."""
    shown, _ = in_processes(training_envs.ShowsSeeds, 200_000, 2).reset(seed=1)
    np.testing.assert_array_equal(shown[:, 0], environment_seeds(1, 200_000).astype(np.float32))


@pytest.mark.parametrize("groups", [1, 2])
def test_it_is_closed_while_a_step_waits(groups: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own, or that of another group."""
    monkeypatch.setattr(env_servers, "_PATIENCE", 0.1)
    first, *others = process_envs(EnvServers(maker("training_envs:Stalls-v0"), 2, 2, groups=groups))
    env = others[-1] if others else first
    said: list[str] = []

    def step() -> None:
        with pytest.raises(RuntimeError, match=r"^this environment is closed$") as failed:
            step_for_ever(env)
        said.append(str(failed.value))

    thread = threading.Thread(target=step)
    thread.start()
    time.sleep(0.5)
    first.close()
    thread.join(5)
    assert said == ["this environment is closed"]
    for call in (partial(env.step, np.zeros(2, int)), env.reset):
        with pytest.raises(RuntimeError, match="closed"):
            call()
    env.close()


def test_it_may_be_closed_at_any_moment_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    for moment in ("_wake", "_wait"):
        env = in_processes(CUT, 2, 2)
        carry_out = getattr(env, moment)
        monkeypatch.setattr(env, moment, lambda *given, go=carry_out, env=env: env.close() or go(*given))
        with pytest.raises(RuntimeError, match=r"^this environment is closed$"):
            env.reset()


_ORPHANED = """
import os, signal, sys, threading
from functools import partial
import numpy as np
from deltabeast.envs import make_vector_env
from deltabeast.launch.processes.env_processes import process_envs
from deltabeast.launch.processes.env_servers import EnvServers
if __name__ == "__main__":
    (env,) = process_envs(EnvServers(partial(make_vector_env, env_id="CartPole-v1"), 2, 2))
    env.reset(seed=1)
    print(*(child._process.pid for child in env._children), flush=True)
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGKILL)).start()
    while True:
        env.step(np.zeros(2, int))
"""


def test_no_process_outlives_the_one_that_began_it() -> None:
    """Spawned as everywhere; one that hangs in a step ends as any child does (test_child.py)."""
    done = subprocess.run([sys.executable, "-c", _ORPHANED], stdout=subprocess.PIPE, text=True, check=False)
    pids = {int(pid) for pid in done.stdout.split()}
    assert len(pids) == 2 and done.returncode == -signal.SIGKILL
    end = time.monotonic() + 10
    while alive(pids):
        assert time.monotonic() < end
        time.sleep(0.02)


_LEFT = """
import os, sys
from functools import partial
from pathlib import Path
from deltabeast.envs import make_vector_env
from deltabeast.launch.processes.env_processes import process_envs
from deltabeast.launch.processes.env_servers import EnvServers
if __name__ == "__main__":
    (env,) = process_envs(EnvServers(partial(make_vector_env, env_id="old_envs:CartPoleEnv"), 2, 2))
    env.reset(seed=1)
    for child in env._children:
        given = Path(f"/proc/{child._process.pid}/environ").read_text().split("\\0")
        print(*(each for each in given if each.startswith("OMP_NUM_THREADS")))
    print(os.environ.get("OMP_NUM_THREADS"))
"""


_OLD = """
import warnings
from gymnasium.envs.classic_control import CartPoleEnv
warnings.warn("it is old")
"""


def test_they_have_one_thread_warn_once_and_end_with_a_program_that_does_not_close_them(
    tmp_path: Path,
) -> None:
    (tmp_path / "old_envs.py").write_text(_OLD)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("OMP_NUM_THREADS", None)
    done = subprocess.run(
        [sys.executable, "-c", _LEFT],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env=environment,
        cwd=tmp_path,
    )
    # where it is set before NumPy is imported
    assert done.stdout.split() == ["OMP_NUM_THREADS=1", "OMP_NUM_THREADS=1", "None"]
    assert re.fullmatch(r".*/old_envs.py:\d+: UserWarning: it is old\n", done.stderr)


def test_the_threads_of_this_process_are_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    in_processes(maker("CartPole-v1"), 1, 1)
    assert os.environ["OMP_NUM_THREADS"] == "3"


def test_they_import_no_torch() -> None:
    """Games and NumPy: each of many processes would take seconds, and hundreds of megabytes."""
    code = (
        "import sys, deltabeast.launch.cli, deltabeast.launch.processes.env_processes;"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
