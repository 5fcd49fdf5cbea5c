"""Run folders damaged at random: a line instead of a traceback; nothing is lost that could be read."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from session_seed import SEED
from training_in_process import FEEDFORWARD, run

from deltabeast.agents import CheckpointError, find_checkpoints, load_checkpoint
from deltabeast.agents.files import is_plain
from deltabeast.agents.manifest import is_milestone
from deltabeast.launch.cli import main
from deltabeast.launch.comparison.reading import read_runs
from deltabeast.launch.errors import RunError, UsageError
from deltabeast.launch.evaluation.loading import load
from deltabeast.launch.runs.log import read_log

ARGUMENTS = ("--env", "CartPole-v1", *FEEDFORWARD, "--log-seconds", "0", "--milestone-steps", "40")
MOST_BYTES = 2 << 30


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a milestone, two checkpoints, a log and an evaluation."""
    folder = tmp_path_factory.mktemp("damaged") / "run"
    run(folder, *ARGUMENTS, "--steps", "60", "--checkpoint-minutes", "0")
    main(["eval", str(folder), "--episodes", "1", "--repeats", "1"])
    return folder


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """What is not ours, to which links may point."""
    folder = tmp_path / "home"
    for name in (".ssh/id", "notes.txt", ".git/HEAD", "disk/.conda/python", "disk/000000000020/thesis"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"precious {name}\n")
    return folder


def flip(path: Path, home: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    for _ in range(rng.choice([1, 1, 20])):
        if content:
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def cut(path: Path, home: Path, rng: random.Random) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: rng.randrange(len(content) + 1)])


def blank(path: Path, home: Path, rng: random.Random) -> None:
    content = path.read_bytes()
    start = rng.randrange(len(content) + 1)
    size = min(4096, len(content) - start)
    path.write_bytes(content[:start] + bytes(size) + content[start + size :])


def insert(path: Path, home: Path, rng: random.Random) -> None:
    content = path.read_bytes()
    place = rng.randrange(len(content) + 1)
    words = [b'"', b"\n", b"\xff\xfe", b"[" * 5000, b"{}", b",", b"9" * 400, b"\xef\xbb\xbf", b"\0", b"NaN"]
    path.write_bytes(content[:place] + rng.choice(words) + content[place:])


def resave(path: Path, home: Path, rng: random.Random) -> None:
    """As a spreadsheet does."""
    content = b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n")
    path.write_bytes(rng.choice([content, content.replace(b",", b";"), content.replace(b",", b"\t")]))


def another_value(path: Path, home: Path, rng: random.Random) -> None:
    """A value of a JSON is of another kind, or gone."""
    try:
        value = json.loads(path.read_text())
    except ValueError:
        return flip(path, home, rng)
    inside = value
    while isinstance(inside, dict) and inside:
        name = rng.choice(list(inside))
        if isinstance(inside[name], dict) and inside[name] and rng.random() < 0.7:
            inside = inside[name]
            continue
        odd: list[Any] = [None, -1, 10**18, 1e300, "x", [], {}, True, [[[]]], "../..", "a:b", "\x1b[2J"]
        inside[name] = rng.choice(odd)
        if rng.random() < 0.3:
            del inside[name]
        break
    path.write_text(json.dumps(value))
    return None


def remove(path: Path, home: Path, rng: random.Random) -> None:
    path.unlink()


def to_folder(path: Path, home: Path, rng: random.Random) -> None:
    path.unlink()
    path.mkdir()


def to_pipe(path: Path, home: Path, rng: random.Random) -> None:
    path.unlink()
    os.mkfifo(path)


def to_link(path: Path, home: Path, rng: random.Random) -> None:
    path.unlink()
    targets = [home / "notes.txt", home / ".ssh" / "id", home, home / "none", path, Path("/dev/zero")]
    path.symlink_to(rng.choice(targets))


def to_hard_link(path: Path, home: Path, rng: random.Random) -> None:
    path.unlink()
    path.hardlink_to(home / "notes.txt")


def to_giant(path: Path, home: Path, rng: random.Random) -> None:
    os.truncate(path, 9 << 28)


HARMS: tuple[Callable[[Path, Path, random.Random], None], ...] = (
    *(flip, cut, blank, insert, resave, another_value, remove),
    *(to_folder, to_pipe, to_link, to_hard_link, to_giant),
)


def damage(run_dir: Path, home: Path, rng: random.Random) -> list[str]:
    """Do one to three harms to files of a run, and sometimes to its folders; return what was done."""
    done = []
    for _ in range(rng.choice([1, 1, 2, 3])):
        small = [
            path for path in sorted(run_dir.rglob("*")) if is_plain(path) and path.stat().st_size < 1 << 24
        ]
        path, harm = rng.choice(small), rng.choice(HARMS)
        harm(path, home, rng)
        done.append(f"{harm.__name__} {path.relative_to(run_dir)}")
    if rng.random() < 0.1:
        name = rng.choice(["checkpoints", "eval"])
        shutil.rmtree(run_dir / name, ignore_errors=True)
        (run_dir / name).symlink_to(rng.choice([home / "disk", home / "none", run_dir]))
        done.append(f"{name} is a link")
    for name in ("mine.txt", "checkpoints/best/mine.pt", "checkpoints/.git/HEAD"):
        if rng.random() < 0.3:
            with suppress(OSError):
                (run_dir / name).parent.mkdir(parents=True, exist_ok=True)
                (run_dir / name).write_text("mine")
    return done


def contents(folder: Path) -> dict[str, bytes | str]:
    return {
        str(path.relative_to(folder)): os.readlink(path) if path.is_symlink() else path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


def mine(run_dir: Path) -> dict[str, bytes | str]:
    names = ("mine.txt", "mine.pt", "HEAD")
    return {name: content for name, content in contents_of_files(run_dir).items() if name.endswith(names)}


def contents_of_files(folder: Path) -> dict[str, bytes | str]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink() and path.stat().st_size < 1 << 24
    }


def readable_rows(run_dir: Path) -> set[tuple[float, float]]:
    """Step and time of each row that can be read, whatever its file is called."""
    rows: set[tuple[float, float]] = set()
    for path in run_dir.glob("logs*.csv"):
        with suppress(OSError, ValueError):
            rows |= {(row["step"], row["time"]) for row in read_log(path)[0]}
    return rows


def whole_checkpoints(run_dir: Path) -> set[int]:
    whole = set()
    for found in find_checkpoints(run_dir):
        with suppress(CheckpointError, ValueError):
            load_checkpoint(found.path)
            whole.add(found.step)
    return whole


def ends_well(words: list[str], capsys: pytest.CaptureFixture[str]) -> bool:
    """Whether a command succeeds; if it does not, it says why in one line."""
    capsys.readouterr()
    code = 0
    try:
        main(words)
    except SystemExit as ended:
        code = int(ended.code or 0)
    said = capsys.readouterr().err
    assert code in (0, 1, 2) and said.count("\n") == said.count("deltabeast: error: ") == bool(code), said
    return not code


def check(run_dir: Path, home: Path, number: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Read a damaged run; go on with every other one, and export some."""
    theirs, before = contents(home), mine(run_dir)
    rows, whole = readable_rows(run_dir), whole_checkpoints(run_dir)
    kept = {found.step for found in find_checkpoints(run_dir) if is_milestone(found.path)} & whole
    ends_well(["info", str(run_dir)], capsys)
    read_runs([str(run_dir)])
    with suppress(UsageError, RunError):
        load(run_dir, "latest", None, lambda text: None)
    if number % 8 == 0:
        ends_well(["export", str(run_dir), f"{run_dir}-exported"], capsys)
    again = ["train", *ARGUMENTS, "--steps", "100", "--run-dir", str(run_dir)]
    went_on = number % 2 == 0 and ends_well(again, capsys)
    assert contents(home) == theirs, "something outside was touched"
    assert before.items() <= mine(run_dir).items(), "something of the user's is gone"
    still = whole_checkpoints(run_dir)
    assert kept <= still and (not whole or still), "a checkpoint is gone"
    from_step = max(whole, default=0) if went_on else 10**9
    lost = {row for row in rows if row[0] <= from_step} - readable_rows(run_dir)
    assert not lost, f"rows are gone: {lost}"


LONG = (pytest.mark.long, pytest.mark.timeout(3000))


@pytest.mark.parametrize("count", [3, pytest.param(500, marks=LONG)])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_damaged_runs_are_one_line_and_lose_nothing(
    count: int, trained: Path, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(count):
        rng = random.Random(f"{SEED} {count} {number}")
        run_dir = tmp_path / str(number)
        shutil.copytree(trained, run_dir)
        done = damage(run_dir, home, rng)
        try:
            check(run_dir, home, number, capsys)
        except BaseException as error:
            error.add_note(f"number {number}: {', '.join(done)}")
            raise
        shutil.rmtree(run_dir)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 < MOST_BYTES
