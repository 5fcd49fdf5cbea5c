"""Text: what is read, what follows it, what is unknown."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from deltabeast.envs.sequences.text import END_OF_LINE, Text, columns, span

LINES = "the cat sat\non the mat\n" * 50


def folder(path: Path, **parts: str) -> str:
    for name, content in parts.items():
        (path / f"wiki.{name}.tokens").write_text(content)
    return str(path)


def test_bytes_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "text"
    file.write_bytes(bytes(range(200)) * 5)
    text = Text(str(file))
    whole = np.concatenate([text.part(name) for name in ("train", "valid", "test")])
    assert bytes(whole.astype(np.uint8)) == file.read_bytes() and text.symbols == (text.classes,) == (256,)
    assert [len(text.part(name)) for name in ("train", "valid", "test")] == [900, 50, 50]


def test_words_of_a_folder(tmp_path: Path) -> None:
    text = Text(
        folder(tmp_path, train=LINES + "<unk> on <unk>\n", valid="the dog sat\n", test="mat <unk>\n"), "word"
    )
    numbers = {word: number for word, number in text._numbers.items()}
    assert set(numbers) == {"<unk>", "the", "cat", "sat", "on", "mat", END_OF_LINE} and text.symbols == (7,)
    assert [numbers["the"], 0, numbers["sat"], numbers[END_OF_LINE]] == text.part("valid").tolist()
    assert text.part("test").tolist() == [numbers["mat"], 0, numbers[END_OF_LINE]]
    few = Text(str(tmp_path), "word", words=2)
    assert few.symbols == (3,) and set(few._numbers) == {"<unk>", "the", END_OF_LINE}


def test_columns_are_contiguous_and_lose_nothing_but_the_end() -> None:
    tokens = np.arange(24)
    read, following = columns(tokens, 4)
    assert read.shape == (5, 4) and np.array_equal(following, read + 1)
    assert np.array_equal(read.T.flatten(), tokens[:20])
    parts = [span(read, following, start, 2) for start in (0, 2, 4)]
    assert np.array_equal(np.concatenate([part.tokens for part in parts]), read)
    assert [part.reset.any() for part in parts] == [True, False, False] and parts[0].reset[0].all()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda path: Text(str(path / "none")), "cannot read"),
        (lambda path: Text(folder(path, train="a", valid="a")), "no file with test in the name"),
        (lambda path: (path / "x").touch() or Text(str(path / "x")), "is empty"),
        (lambda path: (path / "x").write_text("ab") and Text(str(path / "x")), "too short"),
        (lambda path: Text("x", words=-1), "words is -1"),
        (
            lambda path: Text(
                folder(path, train=" ".join(map(str, range(100_001))), valid="a", test="a"), "word"
            ),
            "keep the most frequent",
        ),
    ],
)
def test_what_cannot_be_read(make: object, says: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=says):
        make(tmp_path)  # type: ignore[operator]
