"""Which runs this user began here: a record outside their folders, which nothing from elsewhere brings along.

It is asked where a run's own config.json names a Ray cluster or a tracker: a run that goes on unattended must
not be asked about what its user typed once.
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


def remember(run_dir: Path, config: TrainConfig | ProbeConfig, say: Callable[[str], None]) -> None:
    """Record that this user wrote the run's config.json here, as it is now, if it will be asked about.

    Where that cannot be written, `say` gets a line.
    """
    reaches = [name for name in ("ray_address", "track") if getattr(config, name, None)]
    if not reaches:
        return
    record = _record(run_dir / "config.json")
    try:
        record.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write(record, _digest(run_dir / "config.json"))
    except OSError as error:
        options = " and ".join(f"--{name.replace('_', '-')}" for name in reaches)
        say(f"cannot write {record}: {one_line(error)}; --config {run_dir} will want {options} besides")


def is_mine(config_file: Path) -> bool:
    """Return whether this user wrote this config.json here, and nobody has changed it since."""
    try:
        return read_bytes(_record(config_file)).decode() == _digest(config_file)
    except (OSError, ValueError):
        return False


def _record(config_file: Path) -> Path:
    """Return where the record is: by the file's place, so that a copy elsewhere has none."""
    home = os.environ.get("XDG_STATE_HOME", "")
    state = Path(home) if os.path.isabs(home) else Path.home() / ".local" / "state"
    return state / "deltabeast" / "runs" / hashlib.sha256(bytes(config_file.resolve())).hexdigest()


def _digest(config_file: Path) -> str:
    return hashlib.sha256(read_bytes(config_file)).hexdigest()
