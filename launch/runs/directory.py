"""The run directory: where it is, which process holds it, how the run was configured."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import platform
import shlex
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ...agents import files
from ...agents.reading import read_object
from ..config import ProbeConfig, TrainConfig
from ..errors import UsageError
from ..output import tell
from ..values import have_shape, read_options
from .options import REPEATED
from .presets import FORMER_PRESETS, begun_with, preset_config

_WITHOUT_LOCKS = frozenset({errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL})
"""what a file system answers that has none"""


def default_run_dir(config: TrainConfig) -> Path:
    """Return runs/<game or environment>/<core>/seed-<n>: TensorBoard compares games, cores, seeds by path."""
    game = config.game or (config.env or "").split(":")[-1].replace("/", "-")
    core = core_name(config.core)
    names = [name.replace(":", ".") for name in (core, core if ":" in core else core.replace("_", "-"))]
    paths = [Path("runs") / game / name / f"seed-{config.seed}" for name in names]
    return next((path for path in paths if path.exists()), paths[0])  # earlier versions wrote rdn-large


def chosen_preset(config: TrainConfig) -> str | None:
    """Return the preset that a run begins from: the one given, but for a run that began with what its name
    stood for then, that; for --env, if none is, `gymnasium`, but `none` to go on with a run that began
    otherwise."""
    if config.preset is None and config.env is None:
        return None
    saved = read_config(config.run_dir or default_run_dir(config))
    if config.preset is not None:
        former, _ = FORMER_PRESETS.get(config.preset, (config.preset, ""))
        return former if saved.get("preset") == former else config.preset
    return "gymnasium" if not saved or saved.get("preset") == "gymnasium" else "none"


def default_probe_dir(config: ProbeConfig) -> Path:
    """Return runs/probe/<task and its options>/<core and its options>/seed-<n>; a variant is an option."""
    variant = {"variant": config.variant} if config.variant != "code" else {}
    task, core = (
        "-".join([name, *(f"{key}-{value}" for key, value in sorted(options.items()))])
        .replace("/", "-")
        .replace(":", ".")
        for name, options in (
            (config.task, {**config.task_options, **variant}),
            (core_name(config.core), config.core_options),
        )
    )
    return Path("runs") / "probe" / task / core / f"seed-{config.seed}"


def core_name(name: str) -> str:
    """Repeat `cores.core_name`, whose import would import torch; a test ties the two."""
    return name if ":" in name else name.replace("-", "_")


class Claim:
    """A run directory that this process alone trains in."""

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / ".lock"
        self._take()

    def _take(self) -> None:
        run_dir = self._path.parent
        if run_dir.is_symlink() and not run_dir.exists():
            raise UsageError(f"{run_dir} is a link to {os.readlink(run_dir)}, which is not there")
        try:
            run_dir.mkdir(parents=True, exist_ok=True)
            self._lock = files.open_to_lock(self._path)
        except OSError as error:
            why = "it is a file" if run_dir.is_file() else files.why(error)
            raise UsageError(f"cannot write to {run_dir}: {why}; give another --run-dir") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise UsageError(
                f"another process trains in {run_dir}; stop it or give another --run-dir"
            ) from None
        except OSError as error:
            if error.errno not in _WITHOUT_LOCKS:
                self.close()
                raise UsageError(
                    f"cannot lock {run_dir}: {files.why(error)}; give another --run-dir"
                ) from error
            files.say_once(
                f"this file system has no locks ({files.why(error)}): let no other process train in {run_dir}"
            )

    def renew(self) -> bool:
        """Claim the directory again if it, or its lock, was removed or replaced; return whether it was.

        Raises UsageError if another process trains there by now.
        """
        with suppress(OSError):
            if os.path.samestat(os.fstat(self._lock.fileno()), os.lstat(self._path)):
                return False
        self.close()
        self._take()
        return True

    def close(self) -> None:
        self._lock.close()


@contextmanager
def claim(run_dir: Path) -> Iterator[Claim]:
    """Hold the run directory for this process alone; a claim ends with its process, however it ends.

    Raises UsageError if the directory cannot be written or another process trains in it.
    """
    with closing(Claim(run_dir)) as claimed:
        yield claimed


def is_claimed(run_dir: Path) -> bool:
    """Return whether a process trains in the run directory now."""
    try:
        lock = os.open(run_dir / ".lock", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # never trained in here
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # not to be asked
        return False
    finally:
        os.close(lock)
    return False


def no_run(path: Path) -> str:
    """Say that there is no run at a path, and name the runs below it."""
    below = _runs_below(path)
    if not below:
        return f"no run at {path}; give a directory such as runs/gopher/rdn/seed-1"
    return f"no run at {path}; give one below it: {_some(below)}"


def check_free(run_dir: Path) -> None:
    """Raise UsageError if a run would begin in a directory that holds runs, or a config.json of something
    else."""
    config = run_dir / "config.json"
    if os.path.lexists(config):
        if not _is_configuration(config):
            raise UsageError(f"{config} is no configuration of a run; give another --run-dir")
        return
    if below := _runs_below(run_dir):
        raise UsageError(f"{run_dir} holds runs, {_some(below)}; give one of them, or another --run-dir")
    for folder in run_dir.absolute().parents:
        if _is_configuration(folder / "config.json"):
            raise UsageError(f"{run_dir} is inside the run {folder}; give another --run-dir")


def _runs_below(path: Path) -> list[Path]:
    """Find the runs down to runs/game/core/seed-1 of a working directory."""
    depths = ("*", "*/*", "*/*/*", "*/*/*/*")
    found = (file for depth in depths for file in sorted(path.glob(f"{depth}/config.json")))
    return [
        file.parent for file in found if _is_configuration(file) or (file.parent / "checkpoints").is_dir()
    ]


def _some(paths: Sequence[Path]) -> str:
    more = f" and {len(paths) - 3} more" if len(paths) > 3 else ""
    return f"{', '.join(map(str, paths[:3]))}{more}"


def _is_configuration(path: Path) -> bool:
    """Return whether a run wrote it: others, too, call an object of theirs config."""
    content = read_object(path)
    return isinstance(content.get("config"), dict) and isinstance(content.get("versions"), dict)


def resume_command(saved: Mapping[str, Any], run_dir: Path) -> str:
    """Return the command that resumes a run, from the options in its config.json; newer options
    keep their legacy behaviour.

    Raises ValueError for values that no command line could have given.
    """
    words = ["deltabeast", "train"]
    said = read_options(TrainConfig, {name: saved[name] for name in REPEATED if name in saved})
    begun_with = vars(preset_config(said.get("preset")))
    options = {**begun_with, **said}
    for name in REPEATED:
        value = options[name]
        named = name in ("core", "preset") and value is not None
        if name != "run_dir" and (value != begun_with[name] or named):
            words += option_words(name, value)
    return shlex.join([*words, *option_words("run_dir", run_dir)])


def option_words(name: str, value: object) -> list[str]:
    """Spell an option as it is typed: `--learning-rate 0.001`, `--deterministic`, `--no-deterministic`.

    A value that would be read as another option is tied to this one: `--env=--core`.
    """
    flag = f"--{name.replace('_', '-')}"
    if isinstance(value, bool):
        return [flag if value else flag.replace("--", "--no-", 1)]
    if isinstance(value, dict):
        value = [word for pair in value.items() for word in pair]
    words = list(map(str, value if isinstance(value, list | tuple) else [value]))
    return [f"{flag}={words[0]}"] if len(words) == 1 and words[0].startswith("-") else [flag, *words]


def changed_words(config: Any) -> list[str]:
    """Spell the options of a command that are not the default; the first field is its argument, and none."""
    options = ((option.name, getattr(config, option.name), option.default) for option in fields(config)[1:])
    return [
        word for name, value, default in options if value != default for word in option_words(name, value)
    ]


def path_word(path: Path) -> str:
    """Spell a path as it is typed where a command takes one: `./-x`, which would be read as an option."""
    return f"./{path}" if str(path).startswith("-") else str(path)


def eval_command(run_dir: Path, *options: str) -> str:
    """Return the command that evaluates a run."""
    return shlex.join(["deltabeast", "eval", path_word(run_dir), *options])


_FORMAT = 2
"""Format of config.json. Before it had a number, `--bptt per_step` cut the gradients of every core, with or
without fast weights."""


def was_truncated(run_dir: Path) -> bool:
    """Return whether the run is so old that `per_step` cut its gradients whatever its core."""
    old = read_object(run_dir / "config.json").get("format", 1) < _FORMAT
    return old and read_config(run_dir).get("bptt") == "per_step"


def check_command(run_dir: Path, command: str) -> None:
    """Raise UsageError if the directory holds a run of another command, or of a newer version."""
    about = read_object(run_dir / "config.json")
    if isinstance(number := about.get("format"), int) and number > _FORMAT:
        raise UsageError(
            f"{run_dir} is of a newer version of deltabeast (format {number}, and this one reads up to "
            f"{_FORMAT}); update deltabeast"
        )
    other = about.get("command", command)
    if other != command:
        raise UsageError(f"{run_dir} holds a run of {other}, not of {command}; give another directory")


def write_config(
    run_dir: Path,
    config: TrainConfig | ProbeConfig,
    command: str = "train",
    say: Callable[[str], None] = tell,
    **about: str | int | Mapping[str, str],
) -> None:
    """Write config.json: the command, what else there is to say of it, its configuration and the versions it
    ran with. One that is damaged is set aside, and `say` hears of it."""
    settings = {
        key: str(value) if isinstance(value, Path) else value for key, value in asdict(config).items()
    }
    content = {"format": _FORMAT, "command": command, **about, "config": settings, "versions": versions()}
    path = run_dir / "config.json"
    if os.path.lexists(path) and not _is_configuration(path):
        aside = files.set_aside(path, "damaged")
        say(f"warning: {path} cannot be read; the original is {aside.name} now")
    files.write(path, json.dumps(content, indent=2) + "\n")


def read_config(run_dir: Path) -> dict[str, Any]:
    """Read the options in config.json; empty if there are none that can be read.

    Where a preset's name has come to stand for other settings, the run's preset has its former ones' name.
    """
    about = read_object(run_dir / "config.json")
    config, declared = about.get("config"), ProbeConfig if about.get("command") == "probe" else TrainConfig
    if not isinstance(config, dict) or not have_shape(declared, config):
        return {}
    return {**config, "preset": begun_with(config)} if config.get("preset") else config


def read_words(run_dir: Path, name: str) -> dict[str, str]:
    """Read what config.json has in addition to its options, in words by name, such as versions."""
    found = read_object(run_dir / "config.json").get(name)
    words = found.items() if isinstance(found, dict) else ()
    return {key: word for key, word in words if isinstance(word, str)}


def versions() -> dict[str, Any]:
    """Versions that a result depends on: packages, Python, platform, and the commit if this is a checkout."""
    packages = ("deltabeast", "torch", "numpy", "gymnasium", "ale-py")
    return {
        **{name: version(name) for name in packages},
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "commit": _commit(),
    }


_PACKAGE = ("agents", "cores", "envs", "kernels", "launch")


def _commit() -> str | None:
    """Name the commit of a checkout, with `-dirty` and a digest of the package's edited files if it has any.

    Files that git does not track are not looked at.
    """
    root = Path(__file__).resolve().parents[2]
    try:  # an installed package may lie in somebody else's checkout, which does not track it
        _git(root, "ls-files", "--error-unmatch", "launch/runs/directory.py")
        commit = _git(root, "describe", "--always", "--abbrev=12").strip()
        edited = _git(
            root, "diff", "HEAD", "--name-only", "--no-renames", "--relative", "-z", "--", *_PACKAGE
        )
    except (OSError, subprocess.SubprocessError):
        return None
    digest = hashlib.sha256()
    for name in filter(None, edited.split("\0")):
        digest.update(name.encode() + b"\0")
        with suppress(OSError):  # a file that was removed
            digest.update((root / name).read_bytes())
    return f"{commit}-dirty-{digest.hexdigest()[:6]}" if edited else commit


def _git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, check=True, timeout=10)
    return os.fsdecode(done.stdout)
