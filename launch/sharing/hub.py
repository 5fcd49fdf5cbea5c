"""Agents on a hub of models: `deltabeast push`, and `hub:OWNER/NAME` in the place of a run."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from ...agents import files
from ...agents.manifest import checkpoint_paths, damaged_file, is_exported
from ..config import PushConfig
from ..errors import RunError, UsageError, one_line
from ..output import tell
from ..pages import read_page
from .card import CARD, GAME, links_game

PREFIX = "hub:"
FILES = (
    *(CARD, "config.json", "logs.csv", "*.png", "eval/*.json"),
    *(f"checkpoints/*/{name}" for name in ("agent.json", "weights.safetensors", "manifest.json")),
)
"""What is sent and fetched: nothing that could execute."""
MOST_FILES = 1_000
MOST_FETCHED = 4 << 30
"""Bytes: an agent with its checkpoints has some megabytes."""
HERE = Path("runs") / "hub"
_HASH = "[0-9a-f]{40}"
_REMEDY = "look at its name, at the network and HF_ENDPOINT, and at `hf auth login`"


def push(config: PushConfig) -> None:
    """Send an exported folder to a hub. Raises UsageError or RunError in one line."""
    folder = config.folder
    if not folder.is_dir():
        raise UsageError(f"no exported agent at {folder}; make one with `deltabeast export RUN {folder}`")
    if not all(map(is_exported, checkpoint_paths(folder) or [folder])):
        raise UsageError(f"{folder} is no exported agent; make one with `deltabeast export {folder} DIR`")
    owner_and_name, revision = _parts(config.repo)
    if revision:
        raise UsageError(f"{config.repo}: a push makes a revision; give OWNER/NAME")
    has_link = links_game(read_page(folder / CARD).decode(errors="replace"))
    library = _library()
    if library.get_token() is None:
        raise UsageError("a push needs to know who you are; say `hf auth login`, or set HF_TOKEN")
    try:
        api = _api(library)
        api.create_repo(owner_and_name, private=config.private, exist_ok=True)
        commit = api.upload_folder(
            repo_id=owner_and_name,
            folder_path=folder,
            # A recorded game has a script: it is sent, never fetched. So a folder that was fetched has none,
            # and its card a link to the one that is there.
            allow_patterns=[*FILES, GAME] if has_link else [*FILES],
            delete_patterns=[*FILES] if has_link else [*FILES, GAME],
            commit_message=f"{folder.name}, by deltabeast",
        )
    except Exception as error:  # of the library, of its HTTP client, of the network
        raise RunError(f"cannot push to {owner_and_name}: {one_line(error)}; {_REMEDY}") from error
    tell(f"pushed to {commit.commit_url}")
    if has_link and not (folder / GAME).is_file():
        tell(f"the card links {GAME}, which is not in {folder}: one that is at {owner_and_name} stays there")
    tell(f"next: deltabeast eval {PREFIX}{owner_and_name}@{commit.oid}")


def run_here(run: Path | str) -> Path:
    """Return `run`, or where it is now if it names an agent of a hub. Raises UsageError or RunError."""
    return fetch(str(run)) if str(run).startswith(PREFIX) else Path(run)


def fetch(name: str, into: Path = HERE) -> Path:
    """Return the folder of `hub:OWNER/NAME[@REVISION]`, fetched unless that commit is here already.

    A branch or tag is resolved to the commit that it names now. Raises UsageError or RunError in one line.
    """
    repo, revision = _parts(name.removeprefix(PREFIX))
    if revision and re.fullmatch(_HASH, revision) and (into / repo / revision).is_dir():
        return into / repo / revision
    library = _library()
    try:
        api = _api(library)
        about = api.model_info(repo, revision=revision, files_metadata=True)
        commit = _commit(about.sha)
        folder = into / repo / commit
        if not folder.is_dir():
            wanted = {"allow_patterns": list(FILES), "key": lambda file: file.rfilename}
            _check_size(repo, library.utils.filter_repo_objects(about.siblings, **wanted))
            folder.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".") as temporary:
                fetched = Path(temporary) / "agent"
                api.snapshot_download(repo, revision=commit, local_dir=fetched, allow_patterns=list(FILES))
                with suppress(FileNotFoundError):
                    files.rename(fetched / ".cache", Path(temporary) / "cache")
                _keep(fetched, folder, repo)
    except UsageError:
        raise
    except Exception as error:
        raise RunError(f"cannot fetch {repo}: {one_line(error)}; {_REMEDY}") from error
    tell(f"{PREFIX}{repo}@{commit} is in {folder}")
    return folder


def _check_size(repo: str, files: Iterable[Any]) -> None:
    """Raise UsageError unless the files that would be fetched, as a hub describes them, are as an agent's."""
    sizes = [file.size or 0 for file in files]
    if len(sizes) > MOST_FILES or sum(sizes) > MOST_FETCHED:
        raise UsageError(
            f"{repo} has {len(sizes):,} files of {sum(sizes):,} bytes, more than any agent; fetch it "
            "yourself, and give its folder"
        )


def _keep(fetched: Path, folder: Path, repo: str) -> None:
    checkpoints = checkpoint_paths(fetched)
    if not any(map(is_exported, checkpoints)):
        raise UsageError(f"{repo} holds no agent that `deltabeast export` made")
    if damaged := next(filter(None, map(damaged_file, checkpoints)), None):
        raise UsageError(f"{damaged} of {repo} is damaged: its checksum differs from the manifest's")
    with suppress(FileExistsError):  # another process has just fetched it
        files.rename(fetched, folder)


def _commit(named: object) -> str:
    """Return the commit that a hub named, which becomes a folder's name. Raises ValueError unless it is a
    hash."""
    if not re.fullmatch(_HASH, str(named)):
        raise ValueError(f"the hub names a commit {str(named)[:80]!r}, which is no hash")
    return str(named)


def _parts(name: str) -> tuple[str, str | None]:
    match = re.fullmatch(r"(\w[\w.-]*/\w[\w.-]*)(?:@([\w./-]+))?", name)
    if match is None or ".." in name:
        raise UsageError(f"{name!r} is no repository of a hub; give OWNER/NAME")
    return match[1], match[2]


def _library() -> ModuleType:
    try:
        import huggingface_hub
        from huggingface_hub.utils.tqdm import disable_progress_bars
    except ImportError:
        raise UsageError("a hub needs its package: pip install huggingface_hub") from None
    disable_progress_bars()  # an agent is some megabytes
    return huggingface_hub


def _api(library: Any) -> Any:
    return library.HfApi(endpoint=os.environ.get("HF_ENDPOINT"), library_name="deltabeast")
