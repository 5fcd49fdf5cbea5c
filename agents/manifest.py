"""Facts about a run's checkpoints, read without importing torch.

`checkpoint.py` writes checkpoints, describes their format, and loads what is in them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from types import NoneType
from typing import Any

from .reading import read_object, sha256_of, size_limit

DIRECTORY = "checkpoints"
NAME = r"[0-9]{12,}"

FILES = ("agent.json", "weights.safetensors", "state.pt")
"""Every file of a checkpoint but the manifest itself, which lists their SHA-256."""
EXPORTED = FILES[:2]
"""Files of an exported checkpoint, from which no training can resume."""


def checkpoint_paths(run_dir: Path) -> list[Path]:
    """Find the checkpoints of a run, oldest first; none in a folder that cannot be read."""
    return checkpoints_among((run_dir / DIRECTORY).glob("*"))


def checkpoints_among(content: Iterable[Path]) -> list[Path]:
    """Choose the checkpoints among the contents of a folder, oldest first."""
    paths = [path for path in content if re.fullmatch(NAME, path.name) and path.is_dir()]
    paths.sort(key=lambda path: -len(path.name))  # prefer the 12-digit name over the 13-digit backup
    newest = {int(path.name): path for path in paths}
    return [newest[step] for step in sorted(newest)]


def saved_step(checkpoint: Path) -> int:
    """Read the agent steps learned from, by the manifest, not the folder's name. Raises ValueError."""
    step = read_object(checkpoint / "manifest.json").get("step")
    if not isinstance(step, int):
        raise ValueError(f"{checkpoint / 'manifest.json'} does not say after which step it was saved")
    return step


def weights_digest(checkpoint: Path) -> str | None:
    """Read the SHA-256 of the file of an agent's weights; None if the manifest cannot be read."""
    digests = read_object(checkpoint / "manifest.json").get("sha256")
    digest = digests.get("weights.safetensors") if isinstance(digests, dict) else None
    return digest if isinstance(digest, str) else None


def is_milestone(checkpoint: Path) -> bool:
    """Return whether the checkpoint is kept for good."""
    return bool(read_object(checkpoint / "manifest.json").get("milestone"))


def is_exported(checkpoint: Path) -> bool:
    """Return whether the checkpoint holds an agent without the state of its training."""
    return bool(read_object(checkpoint / "manifest.json").get("exported"))


def read_spec(checkpoint: Path | None) -> dict[str, Any]:
    """Read the fields of the `AgentSpec`; empty without a checkpoint, or if they cannot be read."""
    spec = read_object(checkpoint / "agent.json") if checkpoint else {}
    texts = (spec.get(name) for name in ("core", "stem", "game", "env_id", "protocol", "observations"))
    shape = spec.get("observation_shape", [])
    are_texts = all(isinstance(text, str | NoneType) for text in texts)
    are_sizes = isinstance(shape, list) and all(isinstance(size, int) for size in shape)
    have_names = all(isinstance(spec.get(name, {}), dict) for name in ("core_options", "env_options"))
    return spec if are_texts and are_sizes and have_names else {}


def damaged_file(checkpoint: Path) -> str | None:
    """Name the first file that `load_checkpoint` would call damaged; None if there is none."""
    manifest = read_object(checkpoint / "manifest.json")
    digests = manifest.get("sha256")
    if not isinstance(digests, dict):
        return "manifest.json"
    for name in EXPORTED if manifest.get("exported") else FILES:
        try:
            if sha256_of(checkpoint / name, size_limit(name)) != digests.get(name):
                return name
        except OSError:
            return name
    return None
