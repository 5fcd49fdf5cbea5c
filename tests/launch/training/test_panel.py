"""What a person sees of a run, on a terminal and in a log file."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from deltabeast.launch.training.panel import Panel, TrainingShown, bottleneck

ROW = {
    "sps": 1000.0, "sps_10s": 1203.4, "game_return": 1234.5, "life_return": 411.5, "best_game_return": 3400.0,
    "episodes": 412, "total_loss": 123.456, "policy_loss": -3.21, "baseline_loss": 18.2, "entropy": 1.723,
    "policy_lag": 1.25, "policy_lag_max": 4, "share_emulation": 0.41, "share_inference": 0.22,
    "share_learning": 0.3, "share_waiting": 0.07,
}  # fmt: skip


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def plain(width: int = 80) -> Console:
    return Console(file=io.StringIO(), width=width, force_terminal=False)


def text_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def frame(width: int, row: dict[str, float]) -> str:
    """What the live panel draws, as text."""
    clock = Clock()
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    panel = Panel("gopher · rdn · seed 1", 50_000_000, 0, console, clock)
    clock.now += 10
    panel.update(12_000, row)
    drawing = plain(width)
    drawing.print(panel._render(row))
    return text_of(drawing)


@pytest.mark.parametrize("part", ["emulation", "inference", "learning", "waiting"])
def test_the_verdict_names_the_largest_part(part: str) -> None:
    shares = dict.fromkeys(["emulation", "inference", "learning", "waiting"], 0.1) | {part: 0.7}
    sentence = bottleneck(shares)
    assert sentence.lower().startswith(part) and sentence.endswith(".")
    others = {"emulation", "inference", "learning", "waiting"} - {part}
    assert not any(f"{other} bound" in sentence.lower() for other in others)


@pytest.mark.parametrize(
    ("total", "said"),
    [(121_000, "about 5 minutes"), (30_000, "about 2 minutes "), (200_000_000, "about 5 d 19 h")],
)
def test_it_says_once_and_early_how_long_a_run_takes(total: int, said: str) -> None:
    clock, console = Clock(), plain(200)
    panel = Panel("pong", total, 0, console, clock)
    clock.now += 100  # the first update compiles
    for step in (1_000, 1_400, 1_800, 3_000, 3_400, 20_000):
        panel.print_eta(step)
        assert bool(text_of(console)) == (step >= 3_000)
        clock.now += 1.67
    (line,) = text_of(console).splitlines()
    assert said in line and line.endswith("to go at 399 steps/s")


def test_of_a_minute_it_says_nothing() -> None:
    clock, console = Clock(), plain(200)
    panel = Panel("pong", 20_000, 0, console, clock)
    for step in range(1_000, 20_000, 1_000):
        panel.print_eta(step)
        clock.now += 2.5
    assert text_of(console) == ""


def test_the_bottleneck_does_not_overstate() -> None:
    shares = {"emulation": 0.4, "learning": 0.38, "inference": 0.2}
    assert bottleneck(shares).endswith("bound this run alike.")
    assert bottleneck({"emulation": 0.1, "learning": 0.9}, 4).startswith(
        "Learning, each step 4 times, bounds"
    )
    assert bottleneck({"emulation": 0.9, "learning": 0.1}, 4) == bottleneck(
        {"emulation": 0.9, "learning": 0.1}
    )
    assert bottleneck({}) == bottleneck({"emulation": float("nan")}) == "Not measured yet."


def test_every_update_is_one_line_without_control_characters() -> None:
    clock, console = Clock(), plain(width=40)
    with Panel("gopher", 1_000_000, 0, console, clock) as panel:
        clock.now += 10
        panel.update(10_000, ROW)
        panel.message("[red]checkpoint[/red] :smile:")
        clock.now += 10
        panel.update(30_000, {})
    lines = text_of(console).splitlines()
    assert len(lines) == 3
    assert all(character.isprintable() for line in lines for character in line)
    assert lines[1] == "[red]checkpoint[/red] :smile:"
    expected = ("10,000 of 1,000,000", "1.0%", "1,203 SPS", "60 s: 1,000", "ETA 16 m 30 s", "game 1,234.5",
                "life 411.5", "best 3,400.0", "entropy 1.72", "lag 1.25", "emulation 41%")  # fmt: skip
    assert [part for part in expected if part not in lines[0]] == []
    assert "game none" in lines[2]


def test_there_is_one_return_where_there_are_no_lives() -> None:
    console, wide = plain(), Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    for each in (console, wide):
        with Panel("CartPole-v1", 1_000_000, 0, each, Clock(), TrainingShown(lives=False)) as panel:
            panel.update(10_000, ROW)
    line = text_of(console)
    assert "return 1,234.5 | best 3,400.0" in line and "life" not in line and "game" not in line
    drawn = text_of(wide)
    assert "best return" in drawn and "entropy" in drawn and "life" not in drawn and "game" not in drawn


def test_a_resumed_run_has_the_rest_to_do() -> None:
    console = plain()
    panel = Panel("gopher", 100_000, 50_000, console)
    panel.update(51_000, {"sps": 100.0})
    line = text_of(console)
    assert "51.0%" in line and "60 s: 100)" in line and "ETA 8 m 10 s" in line


@pytest.mark.parametrize("width", [80, 100, 160])
def test_the_panel_fits_and_says_everything(width: int) -> None:
    drawing = frame(width, ROW)
    lines = drawing.splitlines()
    assert max(map(len, lines)) <= min(width, 100)
    expected = ("12,000 of 50,000,000", "0.0%", "ETA 13 h 53 m", "1,203 steps/s", "1,000 over 60 s",
                "1,234.5", "411.5", "3,400.0", "123", "-3.21, 18.2", "1.72", "1.25 (max 4)", "emulation 41%",
                "inference 22%", "learning 30%", "waiting 7%", "Emulation bounds this run")  # fmt: skip
    assert [part for part in expected if part not in drawing] == []
    bar = next(line for line in lines if line.count("▓") > 1).strip("│ \n")
    assert len(bar) == min(width, 100) - 4
    assert bar.count("█") / len(bar) == pytest.approx(0.41, abs=0.02)
    assert bar.count("░") / len(bar) == pytest.approx(0.07, abs=0.02)


def test_a_panel_before_the_first_episode_says_none() -> None:
    drawing = frame(80, {})
    assert drawing.count("none") == 3 and "nan" not in drawing and "Not measured yet." in drawing


def test_on_a_terminal_the_panel_is_redrawn_in_place() -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=True)
    with Panel("gopher", 1000, 0, console) as panel:
        panel.update(500, ROW)
        panel.message("checkpoint written")
        panel.update(900, {"total_loss": float("nan")})
    drawn = text_of(console)
    assert "\x1b[" in drawn and "checkpoint written" in drawn and "90.0%" in drawn
    assert drawn.endswith(("\x1b[?25h", "\n")), "the cursor is shown again"
