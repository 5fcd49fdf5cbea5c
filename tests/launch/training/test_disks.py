"""Disks that are full, too small, or read-only."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from training_in_process import EXACT, on_update, run
from training_process import (
    CARTPOLE,
    rows,
)

from deltabeast.agents import Learner, load_latest
from deltabeast.launch.errors import RunError, UsageError

pytestmark = pytest.mark.usefixtures("leaves_nothing_behind")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mounts a file system of the given size."""
    mounts = []

    def mount(options: str) -> Path:
        path = tmp_path / "disk"
        path.mkdir(exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)]
        if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
            pytest.skip("may not mount a file system here")
        mounts.append(path)
        return path

    yield mount
    for path in mounts:
        subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # of tensorboard's writer
def test_a_disk_that_fills_up_between_checkpoints(
    small_disk: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log notices first: the run stops in one line, and goes on when there is room again."""
    disk = small_disk("size=4m")
    arguments = (*CARTPOLE, *EXACT, "--steps", "400")

    def fill(learner: Learner) -> None:
        if learner.version == 3:
            with suppress(OSError), (disk / "ballast").open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(4096))

    with monkeypatch.context() as patch:
        on_update(patch, fill)
        with pytest.raises(RunError, match="No space left on device") as raised:
            run(disk / "run", *arguments)
    assert "\n" not in str(raised.value) and str(disk / "run") in str(raised.value)
    assert load_latest(disk / "run") is not None
    (disk / "ballast").unlink()
    run(disk / "run", *arguments)
    assert [int(row["step"]) for row in rows(disk / "run")] == list(range(20, 401, 20))


def test_a_disk_too_small_for_the_checkpoints(small_disk: Callable[[str], Path]) -> None:
    disk = small_disk("size=1400k")
    with pytest.raises(
        RunError, match=r"cannot save .*: No space left on device; free space or fix"
    ) as raised:
        run(disk / "run", *CARTPOLE, "--checkpoint-minutes", "0", "--steps", "400")
    assert "\n" not in str(raised.value)
    found = load_latest(disk / "run")
    assert found is not None and found[2].step > 0


@pytest.mark.parametrize("size", ["4k", "12k", "100k"])
def test_a_disk_that_is_full_before_training(size: str, small_disk: Callable[[str], Path]) -> None:
    disk = small_disk(f"size={size}")
    with pytest.raises((RunError, UsageError), match="No space left on device") as raised:
        run(disk / "run", *CARTPOLE)
    assert "\n" not in str(raised.value) and str(disk / "run") in str(raised.value)


def test_a_disk_that_may_not_be_written(small_disk: Callable[[str], Path]) -> None:
    disk = small_disk("size=1m,ro")
    with pytest.raises(UsageError, match=r"cannot write to .*: Read-only file system; give another"):
        run(disk / "run", *CARTPOLE)
