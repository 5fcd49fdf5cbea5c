"""Videos: the same game in colour, pictures that show what happened, files whole or not at all."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from deltabeast.agents import Agent, AgentSpec, save_checkpoint
from deltabeast.cores.observe import MemoryStep
from deltabeast.envs.atari import AtariGames
from deltabeast.launch.config import EvalConfig
from deltabeast.launch.errors import RunError, UsageError
from deltabeast.launch.evaluation import recording
from deltabeast.launch.evaluation.command import evaluate_run
from deltabeast.launch.evaluation.video import Trace, play_game, replay, strips, write_video
from deltabeast.launch.evaluation.video_frame import HEIGHT, WIDTH, Heads, Lines, Pictures, axis

OPTIONS = {"hidden_size": 8, "num_heads": 2, "num_layers": 2, "ff_size": 8}


def make_agent(core: str = "rdn") -> Agent:
    options = OPTIONS if core == "rdn" else {"hidden_size": 8}
    spec = AgentSpec((4, 84, 84), 6, core, "nature", options, game="space_invaders", protocol="paper-code")
    return Agent(spec).eval()


def game(colour: bool = False) -> AtariGames:
    return AtariGames("space_invaders", 1, num_threads=1, colour=colour)


@pytest.fixture(scope="module")
def trace() -> Trace:
    return play_game(make_agent(), game(), seed=3, greedy=False, max_steps=5000)


def test_the_game_is_played_once_to_its_end_and_again_in_colour(trace: Trace) -> None:
    assert trace.begins[0] and 2 <= sum(trace.begins) <= 3, "three lives; the last one ends the game"
    screens = 0
    shades = set()
    for screen in replay(trace, game(colour=True)):
        screens += 1
        assert screen.shape == (210, 160, 3)
        shades |= {tuple(pixel) for pixel in screen[::9, ::9].reshape(-1, 3).tolist()}
    assert screens == len(trace.actions) and len(shades) > 5
    assert trace.score == sorted(trace.score) and trace.score[-1] > 0


def test_another_game_is_noticed(trace: Trace) -> None:
    other = Trace(trace.seed + 1, *list(vars(trace).values())[1:])
    with pytest.raises(RunError, match="did not repeat the game"):
        list(replay(other, game(colour=True)))


def test_an_endless_game_ends_with_a_message() -> None:
    with pytest.raises(RunError, match="past 30 agent steps"):
        play_game(make_agent(), game(), seed=1, greedy=True, max_steps=30)


def test_the_strips_of_each_kind_of_core(trace: Trace) -> None:
    strength, change, norm, value = strips(trace)
    T = len(trace.actions)
    assert isinstance(strength, Heads) and strength.values.shape == (T, 2, 2)
    assert isinstance(change, Lines) and change.values[0] == pytest.approx(100.0)
    assert change.highest is not None and change.highest < 100.0
    assert norm.values.shape == (T, 2) and value.values[:, 0].tolist() == trace.value
    without = Trace(1, [0], [0.0], [0.5], [True], [[]])
    assert [strip.title for strip in strips(without)] == ["value estimate"]
    for strength in (None, torch.ones(1, 2)):
        attends = MemoryStep(strength, torch.zeros(1, 2), torch.zeros(1, 2))
        titles = [strip.title for strip in strips(Trace(1, [0], [0.0], [0.5], [True], [[attends]]))]
        assert titles == ["write strength", "value estimate"][strength is None :]


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [(0.0, 1.0, [0.0, 0.5, 1.0]), (-1.2, 1.1, [-1.0, 0.0, 1.0]), (3.0, 55.0, [0.0, 20.0, 40.0]),
     (0.0, 0.03, [0.0, 0.01, 0.02, 0.03]), (-7.0, -2.0, [-5.0, 0.0])],
)  # fmt: skip
def test_axes_hold_the_values_and_have_round_ticks(low: float, high: float, ticks: list[float]) -> None:
    scale = axis(low, high)
    assert scale.ticks() == pytest.approx(ticks)
    assert scale.low < min(low, 0.0) and scale.high > max(high, 0.0)


def test_a_constant_has_an_axis_too() -> None:
    for value in (0.0, 1e-9, 1e12, -3.0):
        assert 1 <= len(axis(value, value).ticks()) <= 5


def test_a_picture_shows_screen_and_strips_of_its_own_step() -> None:
    T = 300
    heads = np.zeros((T, 1, 1))
    heads[200:] = 1.0
    shown = [Heads("h", "u", heads), Lines("l", "u", np.linspace(0, 1, T)[:, None])]
    pictures = Pictures("T", "s", (210, 160), [1.0] * T, [True] + [False] * (T - 1), shown, 15.0)
    screen = np.full((210, 160, 3), 7, np.uint8)
    screen[100, 80] = 200
    early, late = pictures.draw(100, screen), pictures.draw(249, screen)
    assert early.shape == (HEIGHT, WIDTH, 3)
    assert (early[:, :560] == 200).all(-1).sum() == 9, "one pixel is nine, sharp"
    blue = [(picture[250, 630:1230, 0] < 60).mean() for picture in (early, late)]
    assert blue[0] == 0.0 and blue[1] == pytest.approx(50 / 150, abs=0.02), "dark since step 200"
    assert (pictures.draw(3, screen)[250, 630:1200] == 255).all(), "nothing before the game began"


def test_a_video_is_written_from_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def play_its_start(*arguments: Any) -> Trace:
        whole = play_game(*arguments)
        return Trace(whole.seed, *(part[:20] for part in list(vars(whole).values())[1:]))

    monkeypatch.setattr(recording, "play_game", play_its_start)
    imageio = pytest.importorskip("imageio.v2")
    pytest.importorskip("imageio_ffmpeg")
    save_checkpoint(tmp_path, 1600, make_agent("lstm"), {})
    console = Console(width=100, force_terminal=False, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    config = EvalConfig(tmp_path, episodes=1, repeats=1, sample=True, device="cpu", video=1)
    evaluate_run(config, console)
    (path,) = (tmp_path / "videos").iterdir()
    assert path.name == "paper-code-1600-sampled-seed-1-game-1.mp4" and str(path) in console.export_text()
    with imageio.get_reader(path) as reader:
        meta, first = reader.get_meta_data(), reader.get_data(0)
    assert meta["fps"] == 15.0 and meta["size"] == (WIDTH, HEIGHT) and first.std() > 10


def test_what_fails_leaves_no_half_video(tmp_path: Path, trace: Trace) -> None:
    pytest.importorskip("imageio_ffmpeg")
    other = Trace(trace.seed + 1, *list(vars(trace).values())[1:])
    with pytest.raises(RunError, match="did not repeat"):
        write_video(tmp_path / "v.mp4", other, game(colour=True), "t", "s", 4)
    assert list(tmp_path.iterdir()) == []


def test_without_the_library_nothing_is_evaluated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_checkpoint(tmp_path, 1600, make_agent(), {})
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(UsageError, match=r"--video needs .*pip install"):
        evaluate_run(EvalConfig(tmp_path, video=1), Console(quiet=True))
    assert not (tmp_path / "eval").exists()
