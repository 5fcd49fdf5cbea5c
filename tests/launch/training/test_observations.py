"""How observations are read is the agent's: told, saved, and the same when a run goes on or is evaluated."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from training_in_process import (
    EXACT,
    FEEDFORWARD,
    assert_a_kill_changes_nothing,
    listen,
    run,
)
from training_process import CARTPOLE, newest

from deltabeast.agents import AgentSpec, load_agent
from deltabeast.envs.gymnasium_env import GymnasiumEnvs
from deltabeast.launch.cli import main
from deltabeast.launch.errors import UsageError
from deltabeast.launch.evaluation.environments import env_maker
from deltabeast.launch.parsing import parse
from deltabeast.launch.runs.describe import describe_run
from deltabeast.launch.runs.observations import reading
from deltabeast.launch.training.plan import agent_spec, make_env, per_process

pytestmark = pytest.mark.usefixtures("leaves_nothing_behind")

STRAYS = ("--env", "training_envs:Strays-v0", *FEEDFORWARD)


def test_what_observations_are_taken_for_is_told_and_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = listen(monkeypatch, "never", lambda: None)
    run(tmp_path, *STRAYS, "--steps", "200")
    told = "read as a vector of 2 numbers, scaled by their bounds where these are at most 10,000 apart"
    assert said[0] == f"observations are {told}"
    assert dict(describe_run(tmp_path))["observations"] == told
    beyond = "training_envs:Strays-v0: an observation holds -3.0, outside Box(-1.0, 1.0, (2,), float32)"
    assert [line for line in said if "outside" in line] == [f"note: {beyond}; it is read as it is"]
    assert load_agent(tmp_path).spec.observations == "vector"
    main(
        ["eval", str(tmp_path), "--episodes", "2", "--repeats", "2", "--trust-env", "training_envs:Strays-v0"]
    )
    evaluated = " ".join("".join(capsys.readouterr()).split())
    assert evaluated.count(f"observations are {told}") == evaluated.count(f"note: {beyond[:40]}") == 1


def test_a_share_of_the_environments_is_read_as_all_are() -> None:
    config = parse(["train", *STRAYS])
    env = make_env(per_process(config, 2), 1, (np.array([0, 2]), 4))
    assert agent_spec(config, env).observations == "vector"


@pytest.mark.parametrize("how", ["vector", "plain"])
def test_an_agent_is_evaluated_with_observations_as_it_learned_from_them(how: str) -> None:
    spec = AgentSpec((4,), 2, "feedforward", "mlp", env_id="CartPole-v1", observations=how)
    env = env_maker(spec, None, None)(2)
    assert isinstance(env, GymnasiumEnvs) and env.reading == how
    raw, _ = env._env.reset(seed=[3, 4])
    seen, _ = env.reset(seed=[3, 4])
    unit = [4.8, 1, 0.41887903, 1] if how == "vector" else [1, 1, 1, 1]
    assert seen == pytest.approx(raw[0] / unit, rel=1e-6)


def test_a_run_does_not_go_on_with_observations_read_otherwise(tmp_path: Path) -> None:
    run(tmp_path, *STRAYS, "--steps", "100")
    run(tmp_path, *STRAYS, "--steps", "200", "--observations", "vector")  # what auto came to
    with pytest.raises(UsageError, match="observations vector, not plain"):
        run(tmp_path, *STRAYS, "--steps", "300", "--observations", "plain")
    with pytest.raises(UsageError, match=r"normalised observations \(\), not \(0, 1\)"):
        run(tmp_path, *STRAYS, "--steps", "300", "--normalise-observations", "on")
    assert newest(tmp_path)[0] == 200


def test_pictures_and_vectors_differ_by_how_they_are_read(tmp_path: Path) -> None:
    codes = ("--env", "training_envs:WhichCode-v0", *FEEDFORWARD)
    run(tmp_path, *codes, "--steps", "20")
    with pytest.raises(UsageError, match="with observations picture, not vector"):  # stem and shape follow
        run(tmp_path, *codes, "--steps", "40", "--observations", "vector")


def test_a_reading_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"Strays-v0: observations of Box.* make no picture"):
        run(tmp_path, *STRAYS, "--observations", "picture")
    with pytest.raises(UsageError, match="--observations vector: games show pictures anyway"):
        run(tmp_path, "--game", "pong", *FEEDFORWARD, "--observations", "vector")
    assert not list(tmp_path.iterdir())


def test_a_reading_in_words() -> None:
    picture = {"observation_shape": [12, 64, 48], "observations": "picture"}
    assert reading(picture) == "a picture of 12 channels of 64 x 48"
    assert reading({"observation_shape": [1, 7, 7]}) == "a picture of 1 channel of 7 x 7"
    assert reading({"observation_shape": [1]}) == "a vector of 1 number, as they come"


STATISTICS = "normaliser.statistics"


def test_a_run_goes_on_with_its_statistics_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = (*CARTPOLE, *EXACT, "--steps", "160", "--checkpoint-minutes", "0")
    assert_a_kill_changes_nothing(tmp_path, monkeypatch, arguments, 5)
    assert (newest(tmp_path / "other")[1][STATISTICS][0] == 160).all()


@pytest.mark.parametrize(
    ("given", "entries"),
    [
        ((), (1, 3)),  # CartPole's velocities have no bounds
        (("--normalise-observations", "on"), (0, 1, 2, 3)),
        (("--normalise-observations", "off"), ()),
        (("--observations", "plain"), ()),
        (("--observations", "plain", "--normalise-observations", "on"), (0, 1, 2, 3)),
    ],
)
def test_what_is_normalised(given: tuple[str, ...], entries: tuple[int, ...]) -> None:
    config = parse(["train", *CARTPOLE, *given])
    spec = agent_spec(config, make_env(config, 1))
    assert spec.normalised == entries
    normalised = f"{len(entries)} normalised by their running mean and standard deviation"
    assert (normalised in reading(vars(spec))) == bool(entries)


def test_pictures_are_normalised_where_asked_and_codes_never(tmp_path: Path) -> None:
    codes, pong = ("--env", "training_envs:WhichCode-v0", *FEEDFORWARD), ("--game", "pong", *FEEDFORWARD)
    for given, entries in (((), ()), (("--normalise-observations", "on"), (0, 1, 2, 3))):
        config = parse(["train", *pong, *given])
        spec = agent_spec(config, make_env(config, 1))
        assert spec.normalised == entries
        assert ("each pixel normalised" in reading(vars(spec))) == bool(entries)
    config = parse(["train", *codes])
    assert agent_spec(config, make_env(config, 1)).normalised == ()
    with pytest.raises(UsageError, match="stem 'small' reads pixels as categories"):
        run(tmp_path, *codes, "--normalise-observations", "on")
    assert not list(tmp_path.iterdir())


def test_a_game_goes_on_with_its_pixels_statistics_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("--game", "pong", *FEEDFORWARD, "--stem", "shallow", "--normalise-observations", "on")
    arguments = (*arguments, *EXACT, "--steps", "160", "--checkpoint-minutes", "0")
    assert_a_kill_changes_nothing(tmp_path, monkeypatch, arguments, 5)
    statistics = newest(tmp_path / "other")[1][STATISTICS]
    assert (statistics[0] == 8 * 4).all() and (statistics[2] > 0).any(), "the first step of each unroll"
