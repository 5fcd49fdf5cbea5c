"""Files are replaced whole and never through a link; nothing of a user's is removed."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from deltabeast.agents import files


def tree(folder: Path) -> dict[str, bytes | str]:
    """What a folder holds: the content of files, where links point, by path."""
    return {
        str(path.relative_to(folder)): os.readlink(path) if path.is_symlink() else path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


def test_a_file_is_written_and_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file.txt"
    files.write(path, "é\n")
    assert path.read_bytes() == "é\n".encode()
    with pytest.raises(FileNotFoundError), files.atomic_path(path):
        pass  # nothing was written
    assert tree(tmp_path) == {"new/file.txt": "é\n".encode()}
    files.write(path, b"2")
    assert tree(tmp_path) == {"new/file.txt": b"2"}
    assert path.stat().st_mode & 0o777 == 0o666 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_links_give_way_and_what_they_point_to_stays(tmp_path: Path) -> None:
    home, run = tmp_path / "home", tmp_path / "run"
    home.mkdir(), run.mkdir()
    (home / "precious").write_text("mine")
    for target in (home / "precious", home / "absent", home):
        (run / "link").symlink_to(target)
        for opening in (files.open_to_append, files.open_to_lock):
            with pytest.raises(files.NotRegularFileError, match=rf"run/link is a link to {target}"):
                opening(run / "link")
        files.write(run / "link", "new")
        assert not (run / "link").is_symlink() and (run / "link").read_text() == "new"
        (run / "link").unlink()
    assert tree(home) == {"precious": b"mine"}


def test_what_is_no_file_is_named_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for opening in (files.open_to_append, files.open_to_lock):
        with pytest.raises(files.NotRegularFileError, match="pipe is not a regular file"):
            opening(tmp_path / "pipe")
        with pytest.raises(files.NotRegularFileError, match="folder is a folder"):
            opening(tmp_path / "folder")


def test_a_lock_file_keeps_its_content_and_an_appended_one_grows(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("mine\n")
    files.open_to_lock(path).close()
    with files.open_to_append(path) as file:
        file.write("ours\n")
    assert path.read_text() == "mine\nours\n"


@pytest.mark.parametrize("other", ["notes.txt", "b/", "a link"])
def test_a_folder_is_removed_only_with_what_we_wrote(tmp_path: Path, other: str) -> None:
    ours, mixed = tmp_path / "ours", tmp_path / "mixed"
    for folder in (ours, mixed):
        folder.mkdir()
        (folder / "a").write_text("1")
    (tmp_path / "elsewhere").write_text("mine")
    if other == "a link":
        (mixed / "b").symlink_to(tmp_path / "elsewhere")
    elif other.endswith("/"):
        (mixed / other).mkdir()
    else:
        (mixed / other).write_text("mine")
    before = tree(mixed)
    assert not files.remove_folder(mixed, {"a", "b"}) and tree(mixed) == before
    (tmp_path / "link").symlink_to(ours)
    assert not files.remove_folder(tmp_path / "link", {"a", "b"}) and tree(ours) == {"a": b"1"}
    assert files.remove_folder(ours, {"a", "b"}) and not ours.exists()
    assert not files.remove_folder(ours, {"a", "b"})


def test_a_name_that_is_free_is_found(tmp_path: Path) -> None:
    for content in "123":
        (tmp_path / "logs.csv").write_text(content)
        files.set_aside(tmp_path / "logs.csv", "previous")
    assert tree(tmp_path) == {
        "logs.previous.csv": b"1",
        "logs.previous-2.csv": b"2",
        "logs.previous-3.csv": b"3",
    }


def test_only_a_file_with_one_name_is_plain(tmp_path: Path) -> None:
    (tmp_path / "one").write_text("1")
    assert files.is_plain(tmp_path / "one")
    (tmp_path / "link").symlink_to("one")
    assert not files.is_plain(tmp_path / "link") and not files.is_plain(tmp_path)
    (tmp_path / "two").hardlink_to(tmp_path / "one")
    assert not files.is_plain(tmp_path / "one") and not files.is_plain(tmp_path / "none")


def _write_two(folder: Path) -> None:
    files.write(folder / "a", "1")
    files.write(folder / "b", "2")


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_fsync_is_written_to_and_said_once(
    tmp_path: Path, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", refuse)
    files.say_once.cache_clear()
    with pytest.warns(UserWarning, match=f"fsync: {os.strerror(code)}") as caught:
        _write_two(tmp_path)
    assert len(caught) == 1 and tree(tmp_path) == {"a": b"1", "b": b"2"}


def test_a_disk_that_breaks_is_no_file_system_without_fsync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    (tmp_path / "a").write_text("old")
    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="Input/output error"):
        files.write(tmp_path / "a", "new")
    assert tree(tmp_path) == {"a": b"old"}


def test_a_path_that_is_no_text_can_be_written_about(tmp_path: Path) -> None:
    files.write(tmp_path / "page", f"é {os.fsdecode(b'by' + bytes([255]))}")
    assert (tmp_path / "page").read_bytes() == "é by\\udcff".encode()


def test_a_name_of_any_length_can_be_written(tmp_path: Path) -> None:
    files.write(tmp_path / ("x" * 255), "1")
    assert (tmp_path / ("x" * 255)).read_text() == "1"
