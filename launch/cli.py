"""The command line. Only what a command needs is imported, when it runs: `--help` does not wait for torch."""

from __future__ import annotations

import contextlib
import io
import os
import re
import resource
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import is_dataclass, replace
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import tyro
from tyro.conf import OmitArgPrefixes, OmitSubcommandPrefixes, subcommand

from .completion import complete_names, shell_of
from .config import (
    BenchConfig,
    CardConfig,
    CompareConfig,
    CoresConfig,
    EvalConfig,
    ExportConfig,
    GamesConfig,
    ImportConfig,
    InfoConfig,
    ProbeConfig,
    PushConfig,
    TrainConfig,
    WatchConfig,
)
from .config_file import begin_with, show_config, taken_from_file, typed_values
from .errors import RunError, StoppedBySignal, UsageError
from .output import accept_any_text, complain, discard, outlived, tell, warnings_in_lines
from .processes.supervision import ended_by_exception
from .runs.consent import look_here_for
from .runs.directory import chosen_preset, versions

DESCRIPTION = """Train, evaluate and compare Atari agents whose memory is a fast weight programmer.

To train, or to go on where a run stopped: deltabeast train --game gopher --core rdn --steps 200M

To score a saved agent: deltabeast eval runs/gopher/rdn/seed-1

To compare games, cores and seeds: deltabeast compare runs, and tensorboard --logdir runs

Steps are agent steps: one action chosen, 4 emulator frames with the usual frame skip.

deltabeast --version says which version and commit this is, --print-completion bash (or zsh, fish) prints what
completes commands and options in a shell."""


def games(config: GamesConfig) -> None:
    from ..envs import PAPER_GAMES, game_info, game_names
    from .tables import games_table, show

    show(games_table([game_info(name) for name in game_names()], PAPER_GAMES))


def cores(config: CoresConfig) -> None:
    if config.core is not None:
        _core_options(config.core)
        return
    from .core_list import ADVICE, list_cores, make_default, measure_cores
    from .tables import cores_table, leave_out_last_columns, output_width, show, show_lines

    listed = list_cores()
    measured = (
        measure_cores({each.name: make_default(each.name) for each in listed}) if config.measure else None
    )
    table = cores_table(listed, measured)
    width = output_width()
    narrow = leave_out_last_columns(table, width) if width else []
    show(table)
    tell("")
    if narrow:
        show_lines(f"A wider terminal also shows: {', '.join(narrow)}.")
    show_lines(
        "Parameters of the core and floats of its state for each environment, at the default size; the "
        "stem and the heads have 1.09 M more with 18 actions.",
        "probe --task retrieval also has fast_weight_memory, a rule alone.",
    )
    if "fast net" not in narrow:
        show_lines(
            "Slow net, rule and fast net are what names a fast weight programmer; other cores have - there."
        )
    if config.measure:
        show_lines("Medians on this machine: a step of 32 rows, and 50 steps of them with their gradients.")
    width_of_need = max(map(len, ADVICE))
    tell("")
    show_lines("What a task asks for, and which to try first (scores: results/suite/README.md):")
    tell(*(f"  {need:<{width_of_need}}  {which}" for need, which in ADVICE.items()), "")
    show_lines("Options of one: deltabeast cores CORE. Your own: --core package.module:Class.")


def _core_options(name: str) -> None:
    """Print what a core is and which options it has."""
    from ..cores.options import options_of
    from ..cores.registry import core_name, find_core
    from .probe.key_value_model import FAST_WEIGHT_MEMORY
    from .tables import core_options_table, show

    if core_name(name) == FAST_WEIGHT_MEMORY:
        _rule_options(FAST_WEIGHT_MEMORY)
        return
    try:
        factory = find_core(name)
    except ValueError as error:
        raise UsageError(str(error)) from error
    tell(f"{name}: {_first_line(factory.__doc__)}")
    if equation := getattr(factory, "equation", ""):
        tell(f"A step: {equation}. Source: {getattr(factory, 'source', '')}")
    tell("")
    if options := options_of(factory):
        show(core_options_table(options.values()))
        tell("", f"Give them as: deltabeast train --core {name} --core-options OPTION VALUE ...")
    else:
        tell("It has no options.")


def _rule_options(name: str) -> None:
    """Print where a rule that no core has can be tried, and which options it has there."""
    from ..cores.options import options_of
    from ..cores.registry import find_core
    from .probe.key_value_model import KeyValueModel
    from .tables import core_options_table, show

    tell(f"{name}: a rule alone, which no core has. Source: Schlag, Munkhdalai & Schmidhuber 2021", "")
    same = options_of(find_core("delta_net"))
    show(core_options_table(same[option] for option in KeyValueModel.OPTIONS))
    given = f"--core {name} --core-options OPTION VALUE ..."
    tell("", f"Give them as: deltabeast probe --task retrieval {given}", "Nothing else takes it as a core.")


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


COMMANDS: dict[str, tuple[type, Callable[[Any], None]]] = {
    "train": (TrainConfig, _lazily("training.command", "train")),
    "probe": (ProbeConfig, _lazily("probe.command", "probe")),
    "card": (CardConfig, _lazily("probe.card", "make_card")),
    "eval": (EvalConfig, _lazily("evaluation.command", "evaluate_run")),
    "watch": (WatchConfig, _lazily("watching.command", "watch")),
    "compare": (CompareConfig, _lazily("comparison.command", "compare_runs")),
    "games": (GamesConfig, games),
    "cores": (CoresConfig, cores),
    "info": (InfoConfig, info),
    "export": (ExportConfig, _lazily("sharing.export", "export")),
    "push": (PushConfig, _lazily("sharing.hub", "push")),
    "import-torchbeast": (ImportConfig, import_torchbeast),
    "bench": (BenchConfig, _lazily("bench.command", "run_benchmark")),
}
"""Every command: its options, and the function that runs it."""

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
            print(_completion(given))
            return
        config = parse(given)
        look_here_for(_named(config))
        name, run = next((name, run) for name, (kind, run) in COMMANDS.items() if type(config) is kind)
        lasting = outlived() if name in LONG else contextlib.nullcontext()
        with ended_by_exception(), lasting, warnings_in_lines():
            run(config)
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


def parse(arguments: Sequence[str]) -> Any:
    """Return the configuration of the command that the arguments name. Raises UsageError in one line."""
    _check_pairs(arguments)
    options = taken_from_file(arguments)
    begun = begin_with(arguments[0], options) if options else None
    try:
        config = _tyro(arguments, begun)
        _check_several(arguments, config)
        if isinstance(config, TrainConfig) and (preset := chosen_preset(config)):
            return _tyro(arguments, begin_with("train", {**options, "preset": preset}))
        return config
    except SystemExit as exit_:
        if exit_.code in (0, None):  # --help
            raise
        raise UsageError(_parse_error(arguments, begun)) from None


def _check_pairs(arguments: Sequence[str]) -> None:
    """Raise UsageError for a name without a value, or given twice, in an option of names and values."""
    command = COMMANDS.get(arguments[0]) if arguments else None
    given = [word.partition("=")[0].replace("_", "-") for word in arguments]
    for option, kind in get_type_hints(command[0]).items() if command else ():
        flag = f"--{option.replace('_', '-')}"
        if get_origin(kind) is not dict or flag not in given:
            continue
        last = len(given) - 1 - given[::-1].index(flag)  # `_check_several` refuses others
        words = typed_values(arguments[last:], option)
        if "layers" in words[::2] and (layers := _divided_by_spaces(words)):
            raise UsageError(f"{flag}: layers are one word, with commas between: layers {','.join(layers)}")
        if len(words) % 2:
            raise UsageError(f"{flag}: {words[-1]} has no value; give pairs of a name and a value")
        if twice := _repeated(words[::2]):
            raise UsageError(f"{flag}: {twice} is given twice; give one value for it")


def _divided_by_spaces(words: Sequence[str]) -> list[str]:
    """Return the cores in the words after `layers`, if they are in more than one: no option is named so."""
    from ..cores import core_name, core_names

    divided = [word.split(",") for word in words[words.index("layers") + 1 :]]
    of_cores = takewhile(lambda parts: all(core_name(part) in (*core_names(), "") for part in parts), divided)
    layers = [[part for part in parts if part] for parts in of_cores]
    return [name for names in layers for name in names] if len(layers) > 1 else []


def _check_several(arguments: Sequence[str], config: Any) -> None:
    """Raise UsageError for an option of several values that is given twice, has none, or one of them twice.

    Of options of the same name the last one would count, and one without values would count for nothing.
    """
    given = [word.partition("=")[0].replace("_", "-") for word in arguments]
    what = getattr(config, "what", config)
    for option, kind in get_type_hints(type(what)).items():
        flag = f"--{option.replace('_', '-')}"
        if get_origin(kind) not in (dict, tuple) or flag not in given:
            continue
        if given.count(flag) > 1:
            raise UsageError(f"{flag} is given twice; give all its values after one {flag}")
        if not typed_values(arguments, option):
            raise UsageError(f"{flag} has no value; `deltabeast {arguments[0]} --help` shows what to give")
        if get_origin(kind) is tuple and (twice := _repeated(getattr(what, option))) is not None:
            raise UsageError(f"{flag}: {twice} is given twice; give it once")


def _repeated(values: Sequence[Any]) -> Any:
    """Return the first value that occurs twice; None if each occurs once."""
    return next((value for value in values if values.count(value) > 1), None)


def _tyro(arguments: Sequence[str], begun: Any = None, stderr: io.StringIO | None = None) -> Any:
    """Parse with tyro; `begun` has the defaults of its command, if not those that the class declares."""
    # Of a mapping that is not empty tyro would make an option for every name in it.
    mappings = {} if begun is None else {k: v for k, v in vars(begun).items() if isinstance(v, dict)}
    plain = begun and replace(begun, **{name: {} for name in mappings})
    defaults = {type(plain): {"default": plain}} if plain else {}
    kinds = tuple(
        Annotated[kind, subcommand(name, **defaults.get(kind, {}))] for name, (kind, _) in COMMANDS.items()
    )
    command: Any = Union[kinds]  # noqa: UP007
    with contextlib.redirect_stderr(stderr or io.StringIO()):
        config = tyro.cli(
            command,
            prog="deltabeast",
            description=DESCRIPTION,
            args=list(arguments),
            config=(OmitArgPrefixes, OmitSubcommandPrefixes),
        )
    for name, value in vars(config).items():
        if isinstance(value, Path) and str(value).startswith("~"):  # which a shell leaves in --run-dir=~/x
            setattr(config, name, value.expanduser())
    for name, value in mappings.items():
        if not getattr(config, name):
            setattr(config, name, value)
    return config


def _parse_error(arguments: Sequence[str], begun: Any = None) -> str:
    """Return what tyro says of the arguments, as one line."""
    columns = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "1000"  # its box breaks no line, so no word
    stderr = io.StringIO()
    try:
        with contextlib.suppress(SystemExit):
            _tyro(arguments, begun, stderr)
    finally:
        if columns is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = columns
    return condense(stderr.getvalue(), arguments)


def condense(box: str, arguments: Sequence[str]) -> str:
    """Reduce tyro's boxed message to what was wrong and what would be right."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", box)
    # Its frame is drawn with - | + where the output is not UTF-8.
    lines = [re.sub(r"^[│|] ?| *[│|]$|^[╭╰+][─-]* ?| ?[─-]*[╮╯+]$", "", line) for line in text.splitlines()]
    lines = [line.strip() for line in lines if line.strip(" ─-")]
    title, body = (lines[0].lower(), lines[1:]) if lines else ("wrong arguments", [])
    command = next((word for word in arguments if word in COMMANDS), None)
    help_of = f"`deltabeast {command} --help`" if command else "`deltabeast --help`"
    wrong = body[0].rstrip(".:") if body else title
    options = [line for line in body if re.match(r"-{1,2}\w", line)]
    if unknown := _unknown_option(arguments, command, help_of):
        return unknown
    if title == "unrecognized options":
        return _unexpected(body, command, help_of)
    if title == "missing subcommand" and command == "bench":
        return "nothing to measure given; say deltabeast bench kernels, bench env or bench throughput"
    if title == "missing subcommand":
        return f"no command given; say one of {', '.join(COMMANDS)}"
    if title == "required options":
        missing = next((line for line in body[1:] if not line.startswith("(")), "an argument")
        return f"{missing.split('  ')[0]} is missing; {help_of} shows what to give"
    if match := re.match(r"invalid choice (.+) for argument '(.+)'\. Expected one of \((.*)\)", wrong):
        value, name, choices = match.groups()
        names = re.findall(r"[\w-]+", choices)
        if "None" in names:  # an option that need not be given: tyro lists its choices in no order
            names = sorted(set(names) - {"None"})
        return f"{name} {value}; choose one of {', '.join(names)}"
    if match := re.match(r"Missing value for argument '(.+)'", wrong):
        return f"{match[1]} has no value; {help_of} shows what to give"
    if match := re.match(r"Error parsing (\S+): (.*)", wrong):
        expected = f"it takes {_takes(options[0])}" if options else f"see {help_of}"
        value = re.search(r"(?:literal for int\(\) with base 10|string to float): ('.*')", match[2])
        return f"{match[1]} {value[1]}; {expected}" if value else f"{match[1]}: cannot be read; {expected}"
    return f"{wrong[:1].lower()}{wrong[1:]}; see {help_of}"


def _unknown_option(arguments: Sequence[str], command: str | None, help_of: str) -> str | None:
    """Say which option the command does not have, and which was meant; None if it has all."""
    import difflib

    known = {"--help", "--version", *(_flags(COMMANDS[command][0]) if command else ())}
    given = (word.partition("=")[0] for word in arguments)
    flag = next(
        (word for word in given if word.startswith("--") and word.replace("_", "-") not in known), None
    )
    if flag is None:
        return None
    near = difflib.get_close_matches(flag, known, n=1, cutoff=0.65)
    near = near or [option for option in sorted(known) if flag == _initials(option)]
    hint = f"did you mean {near[0]}?" if near else f"{help_of} lists the options"
    option = flag.lstrip("-").replace("-", "_")
    if command in ("train", "probe") and option in _options_of_cores():
        hint = f"cores have it: --core-options {option} ..."
    return f"unknown option {flag}; {hint}"


def _initials(flag: str) -> str:
    """Shorten a flag as other trainers do: --lr."""
    return "--" + "".join(word[0] for word in flag.removeprefix("--").split("-"))


def _flags(config: Any) -> set[str]:
    """List the options of a command, those of its subcommands with them."""
    flags = set()
    for name, kind in get_type_hints(config).items():
        option = name.replace("_", "-")
        inner = [flag for each in get_args(kind) if is_dataclass(each) for flag in _flags(each)]
        flags |= set(inner) or {f"--{option}", *([f"--no-{option}"] if kind is bool else [])}
    return flags


def _unexpected(body: Sequence[str], command: str | None, help_of: str) -> str:
    import difflib

    misplaced = [line.partition(" (applied to")[0] for line in body if " (applied to" in line]
    given = misplaced or body[0].removeprefix("Unrecognized options:").strip().split(", ")
    if command is None:
        names = difflib.get_close_matches(given[0], COMMANDS, n=2, cutoff=0.6)
        hint = f"did you mean {' or '.join(names)}?" if names else f"say one of {', '.join(COMMANDS)}"
        return f"unknown command {given[0]}; {hint}"
    return f"unexpected {' '.join(given)}; {help_of} shows what to give"


def _options_of_cores() -> set[str]:
    from ..cores import core_names
    from ..cores.options import options_of
    from ..cores.registry import find_core

    return {option for name in core_names() for option in options_of(find_core(name))}


def _takes(option: str) -> str:
    """Describe what stands after an option's name in its help: `--episodes INT` takes a whole number."""
    names = {"INT": "a whole number", "FLOAT": "a number", "STR": "a word", "PATH": "a path"}
    kind = option.partition(" ")[2].strip()
    if kind.startswith("["):  # [STR INT [STR INT ...]], [INT [INT ...]]
        return "whole numbers" if kind.startswith("[INT") else "pairs of a name and a value"
    return names.get(kind.split("}|")[-1], kind or "no value")


def _completion(given: Sequence[str]) -> str:
    script = io.StringIO()
    shell = shell_of(list(given))
    with contextlib.redirect_stdout(script), contextlib.suppress(SystemExit):
        _tyro(["--tyro-print-completion", shell])
    explained = {name: _first_line(kind.__doc__) for name, (kind, _) in COMMANDS.items()}
    return complete_names(script.getvalue(), shell, explained)


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


def _first_line(doc: str | None) -> str:
    """Return the first sentence of a docstring."""
    paragraph = " ".join((doc or "").strip().split("\n\n")[0].split())
    return re.split(r"(?<=\.) ", paragraph)[0].rstrip(".")
