"""The command line. Only what a command needs is imported, when it runs: `--help` does not wait for torch."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, Final

from .config import COMMANDS, GamesConfig, ImportConfig, InfoConfig
from .config_file import show_config
from .errors import RunError, StoppedBySignal, UsageError
from .output import accept_any_text, complain, discard, outlived, tell, warnings_in_lines
from .parsing import completion, parse
from .processes.supervision import ended_by_exception
from .runs.consent import look_here_for
from .runs.directory import versions


def games(config: GamesConfig) -> None:
    from ..envs import PAPER_GAMES, game_info, game_names
    from .tables import games_table, show

    show(games_table([game_info(name) for name in game_names()], PAPER_GAMES))


def info(config: InfoConfig) -> None:
    from .runs.describe import describe_run
    from .sharing.hub import run_here

    lines = describe_run(run_here(config.run))
    width = max(len(label) for label, _ in lines)
    tell(*(f"{label:<{width}}  {text}" for label, text in lines))


def import_torchbeast(config: ImportConfig) -> None:
    from .training.import_torchbeast import import_model

    tell(*import_model(config))


def _lazily(module: str, function: str) -> Callable[[Any], None]:
    """Return a function that imports `module` and calls its `function`, or shows what would run."""

    def run(config: Any) -> None:
        commands = import_module(f".{module}", __package__)
        if getattr(config, "show_config", False):
            print(show_config(function, commands.resolved(config)))
        else:
            getattr(commands, function)(config)

    return run


RUN: Final[Mapping[str, Callable[[Any], None]]] = {
    "train": _lazily("training.command", "train"),
    "probe": _lazily("probe.command", "probe"),
    "card": _lazily("probe.card", "make_card"),
    "eval": _lazily("evaluation.command", "evaluate_run"),
    "watch": _lazily("watching.command", "watch"),
    "compare": _lazily("comparison.command", "compare_runs"),
    "games": games,
    "cores": _lazily("cores_command", "cores"),
    "info": info,
    "export": _lazily("sharing.export", "export"),
    "push": _lazily("sharing.hub", "push"),
    "import-torchbeast": import_torchbeast,
    "bench": _lazily("bench.command", "run_benchmark"),
}
"""What each command does."""

LONG = ("train", "probe", "card", "eval", "bench")
"""Commands that work for minutes or days, and write what comes of it to files: they outlive their output."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; exits with 2 after wrong input and with 1 if a run had to stop;
    one that was asked to stop ends by the signal."""
    given = sys.argv[1:] if arguments is None else arguments
    accept_any_text()
    if list(given) == ["--version"]:
        tell(_version())
        return
    try:
        if "--print-completion" in given:
            print(completion(given))
            return
        config = parse(given)
        look_here_for(_named(config))
        name = next(name for name, kind in COMMANDS.items() if type(config) is kind)
        lasting = outlived() if name in LONG else contextlib.nullcontext()
        with ended_by_exception(), lasting, warnings_in_lines():
            RUN[name](config)
    except UsageError as error:
        _fail(error, 2, getattr(error.__cause__, "trace", ""))  # of an environment that does not start
    except RunError as error:
        _fail(error, 1, getattr(error.__cause__, "trace", ""))  # another process's, not shown yet
    except StoppedBySignal as stopped:
        _end_by(stopped.number)
    except KeyboardInterrupt:
        complain("deltabeast: interrupted")
        _end_by(signal.SIGINT)
    except BrokenPipeError:  # `deltabeast games | head`
        discard(sys.stdout)
        sys.exit(141)
    except Exception as error:
        from .failures import explain

        trace, line, code = explain(error)
        _fail(line, code, trace)


def _named(config: Any) -> list[str]:
    """List the cores and environments that the command line names."""
    given = vars(getattr(config, "what", config))
    names = [given.get(option) for option in ("core", "env", "trust_core", "trust_env")]
    return [*(name for name in names if name), *given.get("cores", ())]


def _version() -> str:
    of = versions()
    commit = f" (commit {of['commit']})" if of["commit"] else ""
    return f"deltabeast {of['deltabeast']}{commit}, torch {of['torch']}, Python {of['python']}"


def _fail(error: Exception | str, code: int, trace: str = "") -> None:
    for line in trace.splitlines():
        complain(line)
    line = " ".join(str(error).split())
    complain(f"deltabeast: error: {line}")
    sys.exit(code)


def _end_by(number: int) -> None:
    """Die of the signal, so that a shell loop, `make` or a scheduler stops too instead of going on."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # gone, closed, or never there
            stream.flush()
    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, most))  # SIGXCPU would leave a dump of the memory
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
