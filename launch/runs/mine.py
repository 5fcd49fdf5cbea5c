"""Which runs this user began here: a record outside their folders, which nothing from elsewhere brings along.

It is asked where a run's own config.json names a Ray cluster, a tracker, or code to import: a run that goes
on unattended must not be asked about what its user typed once.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from ...agents.files import write
from ...agents.reading import read_bytes
from ..config import ProbeConfig, TrainConfig
from ..errors import one_line
from .consent import may_name_code, needs_consent


def remember(run_dir: Path, config: TrainConfig | ProbeConfig, say: Callable[[str], None]) -> None:
    """Record that this user wrote the run's config.json here, as it is now, if it will be asked about.

    Where that cannot be written, `say` gets a line.
    """
    asked = [name for name in ("ray_address", "track") if getattr(config, name, None)]
    asked += [
        option for option in ("core", "env")
        if (name := getattr(config, option, None)) and needs_consent(option, name)
    ]  # fmt: skip
    if "env" not in asked and may_name_code(getattr(config, "env_options", {})):
        asked.append("env")
    if not asked:
        return
    record = _record(run_dir / "config.json")
    try:
        record.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write(record, f"{_digest(run_dir / 'config.json')}\n{Path.cwd()}")
    except OSError as error:
        options = " and ".join(f"--{name.replace('_', '-')}" for name in asked)
        say(f"cannot write {record}: {one_line(error)}; --config {run_dir} will need {options} as well")


def is_mine(config_file: Path, from_here: bool = False) -> bool:
    """Return whether this user wrote this config.json here, and nobody has changed it since.

    from_here: whether it must have been in a command given in the current folder, whose modules it imports.
    """
    try:
        digest, *folder = read_bytes(_record(config_file)).decode().split("\n", 1)
        return digest == _digest(config_file) and (not from_here or folder == [str(Path.cwd())])
    except (OSError, ValueError):
        return False


def _record(config_file: Path) -> Path:
    """Return where the record is: by the file's place, so that a copy elsewhere has none."""
    home = os.environ.get("XDG_STATE_HOME", "")
    state = Path(home) if os.path.isabs(home) else Path.home() / ".local" / "state"
    return state / "deltabeast" / "runs" / hashlib.sha256(bytes(config_file.resolve())).hexdigest()


def _digest(config_file: Path) -> str:
    return hashlib.sha256(read_bytes(config_file)).hexdigest()
