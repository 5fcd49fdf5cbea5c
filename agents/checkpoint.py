"""Checkpoints: written whole or not at all, checked when read, loaded without executing anything unasked.

`manifest.py` reads what needs no torch of this format.

A checkpoint is a directory `checkpoints/<agent steps, 12 digits>/`:
`agent.json` (the AgentSpec), `weights.safetensors`, `state.pt` (plain types and tensors only) and
`manifest.json` (SHA-256 of the others, written last). It is prepared under a temporary name, synced and
renamed, so a checkpoint that has its name is complete. One that is about to be replaced is first renamed
with an extra leading zero, so that a complete copy always exists. An exported one has no `state.pt`, as its
manifest says: it contains an agent, but no training can resume from it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
import json
import re
import secrets
import shlex
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, asdict, dataclass
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from safetensors.torch import load, save
from torch import Tensor

from ..cores.registry import core_name, core_names, find_core
from . import files
from .manifest import DIRECTORY, EXPORTED, FILES, NAME, checkpoints_among, is_exported, is_milestone
from .network import LEGACY_DEFAULTS, Agent, AgentSpec
from .reading import parse_json, read_bytes, read_json, read_object, sha256_of, size_limit
from .shapes import WrongShapes, check_shapes, count_numbers
from .state_file import load_state
from .stems import STEMS

FORMAT = 1
"""Version of the format, written to the manifest; a manifest without one is older, read as version 0."""
_DIGITS = 12
_LEFTOVER = r"\.[0-9]{12,}\.[0-9a-z]+"
_KEEP = 2
_ALL = frozenset({*FILES, "manifest.json"})
_MAX_STATE = 1 << 26
"""Largest state of a core for one environment, in numbers: 256 MB of float32."""


Loaded = TypeVar("Loaded")


class Model(Protocol):
    """A module that a checkpoint holds: an `Agent`, or another one that a dataclass, `spec`, describes."""

    @property
    def spec(self) -> Any: ...

    def state_dict(self) -> Mapping[str, Tensor]: ...


class Contents(NamedTuple):
    """The contents of a checkpoint whose checksums are right."""

    fields: dict[str, Any]
    """Fields of the spec, by name."""
    weights: dict[str, Tensor]
    """The model's `state_dict`."""
    state: dict[str, Any]
    """State of the training; empty for an exported agent."""


class CheckpointError(RuntimeError):
    """A checkpoint cannot be written or read; the message names the file and the remedy."""


class OtherVersion(ValueError):
    """A checkpoint is whole, but not for this version; load_latest does not fall back to an older one."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(
            f"{path} {what}: a newer version of deltabeast wrote it, or another program; update deltabeast"
        )


class UntrustedCore(ValueError):
    """A checkpoint names a core to be imported from elsewhere, and `trust_core` does not name it."""

    def __init__(self, path: Path, core: str) -> None:
        super().__init__(
            f"{path} has a core that would be imported, {core}, and importing runs code; if you trust it, "
            f"give --trust-core {shlex.quote(core)}, or trust_core={core!r} in Python"
        )
        self.core = core


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint on disk."""

    step: int
    """Number of agent steps learned from."""
    path: Path


def find_checkpoints(run_dir: Path | str) -> list[Checkpoint]:
    """Find the checkpoints of a run, oldest first; a damaged one is among them until it is read."""
    directory = Path(run_dir) / DIRECTORY
    paths = checkpoints_among(directory.iterdir() if directory.is_dir() else ())
    return [Checkpoint(int(path.name), path) for path in paths]


def resolve_checkpoint(run_dir: Path | str, which: str | int = "latest") -> Path:
    """Find the checkpoint that `which` names: "latest", a number of agent steps, or a checkpoint's path.

    Agent steps pick the first checkpoint at or after them. Raises FileNotFoundError in one line.
    """
    if isinstance(which, str) and (Path(which) / "manifest.json").is_file():
        return Path(which)
    checkpoints = find_checkpoints(run_dir)
    if not checkpoints:
        raise _nothing_saved(run_dir)
    if which == "latest":
        return checkpoints[-1].path
    if isinstance(which, int):
        for checkpoint in checkpoints:
            if checkpoint.step >= which:
                return checkpoint.path
    steps = ", ".join(str(c.step) for c in checkpoints)
    request = f"at step {which} or later" if isinstance(which, int) else f"'{which}'"
    raise FileNotFoundError(f"no checkpoint {request} in {run_dir}; there are: latest, {steps}")


def save_checkpoint(
    run_dir: Path, step: int, agent: Model, state: Mapping[str, Any], milestone: bool = False
) -> Path:
    """Write a checkpoint and remove those older than the previous one, milestones excepted.

    One of the same step is replaced, and if it was a milestone, so is the new one. Raises CheckpointError if
    the disk is full or not writable; older checkpoints are then untouched.
    """
    directory = run_dir / DIRECTORY
    final = directory / f"{step:0{_DIGITS}d}"
    buffer = io.BytesIO()
    torch.save(dict(state), buffer)
    contents = {**_model_files(agent), "state.pt": buffer.getvalue()}
    try:
        _restore_set_aside(directory)
        _put(final, _sealed(contents, step=step, milestone=milestone or is_milestone(final)))
    except OSError as error:
        raise CheckpointError(
            f"cannot save {final}: {files.why(error)}; free space or fix its permissions and resume, "
            "the last good checkpoint is untouched"
        ) from error
    with contextlib.suppress(OSError):
        _restore_set_aside(directory)
    _prune(directory, step)
    return final


def export_agent(folder: Path, step: int, agent: Model, half: bool = False) -> Path:
    """Write what acting needs of a checkpoint, without the state of training, into `folder`.

    half: weights of 16 bits (float16), which are loaded as 32 again. An earlier export there gives way; what
    else is beside it stays. Raises OSError.
    """
    final = folder / DIRECTORY / f"{step:0{_DIGITS}d}"
    _put(final, _sealed(_model_files(agent, half), step=step, milestone=True, exported=True))
    for other in set(final.parent.iterdir()) - {final}:
        if is_leftover(other):
            files.remove_folder(other, _ALL)
        elif re.fullmatch(NAME, other.name) and is_exported(other):
            _remove(other)
    return final


def _model_files(agent: Model, half: bool = False) -> dict[str, bytes]:
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in agent.state_dict().items()}
    if half:
        weights = {name: w.half() if w.dtype == torch.float32 else w for name, w in weights.items()}
    spec = json.dumps(asdict(agent.spec), indent=2) + "\n"
    return {"agent.json": spec.encode(), "weights.safetensors": save(weights)}


def _sealed(contents: Mapping[str, bytes], **about: int) -> dict[str, bytes]:
    """Add the manifest, with the files' checksums, to the contents of files by name."""
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    manifest = json.dumps({"format": FORMAT, **about, "sha256": digests}, indent=2) + "\n"
    return {**contents, "manifest.json": manifest.encode()}


def _put(final: Path, contents: Mapping[str, bytes]) -> None:
    """Write a checkpoint; one that is there already is set aside, where readers find it too."""
    directory = final.parent
    temporary = directory / f".{final.name}.{secrets.token_hex(4)}"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        temporary.mkdir()
        for name, content in contents.items():
            files.create(temporary / name, content)
        files.sync_folder(temporary)
        if final.exists():  # the same step again, after a resume
            files.rename(final, directory / f"0{final.name}")
        files.rename(temporary, final)
        files.sync_folder(directory)
    except OSError:
        with contextlib.suppress(OSError):
            files.remove_folder(temporary, _ALL)
        with contextlib.suppress(OSError):
            _restore_set_aside(directory)
        raise


def _restore_set_aside(directory: Path) -> None:
    """Remove checkpoints set aside whose step was saved again, and give the others their names back."""
    for aside in list(directory.glob("0" + "[0-9]" * _DIGITS)):
        final = directory / aside.name[1:]
        if final.exists():
            _remove(aside)
        elif is_ours(aside):
            files.rename(aside, final)


def set_aside_newer(run_dir: Path, step: int) -> list[str]:
    """Rename the damaged checkpoints beyond `step`, the one a run resumes from; return their new names.

    Under its own name a damaged one would count as the run's newest.
    """
    names = []
    for checkpoint in find_checkpoints(run_dir):
        if checkpoint.step > step:
            with contextlib.suppress(OSError):
                names.append(files.set_aside(checkpoint.path, "damaged").name)
    return names


def _prune(directory: Path, step: int) -> None:
    """Remove leftovers of killed saves, and checkpoints older than the last two that are no milestones.

    Those beyond `step` were damaged when the run was resumed: they do not count as one of the two.
    """
    with contextlib.suppress(OSError):
        for path in filter(is_leftover, directory.iterdir()):
            files.remove_folder(path, _ALL)
    behind = [c for c in find_checkpoints(directory.parent) if c.step <= step]
    ordinary = [c for c in behind if is_ours(c.path) and not is_milestone(c.path)]
    for checkpoint in ordinary[:-_KEEP]:
        with contextlib.suppress(OSError):
            _remove(checkpoint.path)


def is_leftover(path: Path) -> bool:
    """Return whether it is what a killed save left."""
    return bool(re.fullmatch(_LEFTOVER, path.name)) and files.holds_only(path, _ALL)


def is_ours(checkpoint: Path) -> bool:
    """Return whether a folder holds what a checkpoint does, its manifest with it, and nothing else."""
    digests = read_object(checkpoint / "manifest.json").get("sha256")
    return files.holds_only(checkpoint, _ALL) and isinstance(digests, dict) and _ALL.issuperset(digests)


def _remove(checkpoint: Path) -> None:
    """Remove a checkpoint, unless there is anything in it that we did not write."""
    if is_ours(checkpoint):
        leftover = checkpoint.with_name(f".{checkpoint.name}.{secrets.token_hex(4)}")
        files.rename(checkpoint, leftover)  # a kill must not leave half of it under its name
        files.remove_folder(leftover, _ALL)


def load_checkpoint(path: Path, trust_core: str | None = None) -> tuple[Agent, dict[str, Any]]:
    """Load the agent and the training state of one checkpoint.

    Raises CheckpointError if it is damaged, OtherVersion if it is not one for this version, UntrustedCore if
    its core is imported by a name other than `trust_core`, and ValueError if it cannot be imported.
    """
    fields, weights, state = read_checkpoint(path)
    _check_fields(path, fields)
    with _reading(path / "agent.json"):
        fields["observation_shape"] = tuple(fields["observation_shape"])
        spec = AgentSpec(**{**LEGACY_DEFAULTS, **fields})
        for name in ("core", "stem", "game", "env_id", "protocol", "observations"):
            if not isinstance(getattr(spec, name), str | NoneType):
                raise TypeError(f"{name}: expected text, got {getattr(spec, name)!r}")
        is_trusted = ":" not in spec.core or spec.core == trust_core
    if not is_trusted:
        raise UntrustedCore(path, spec.core)
    if ":" not in spec.core and core_name(spec.core) not in core_names():
        raise OtherVersion(path, f"has core {spec.core}, which is unknown here")
    find_core(spec.core)  # a core of the user's own that cannot be imported is no damage
    with _reading(path, "is damaged or not a checkpoint"):
        _check_sizes(spec, weights)
        agent = Agent(spec)
        agent.load_state_dict(weights)
    return agent, state


def _check_fields(path: Path, fields: Mapping[str, Any]) -> None:
    """Raise OtherVersion for a description of an agent that is not made as those of this version."""
    ours = dataclasses.fields(AgentSpec)
    unknown = fields.keys() - {field.name for field in ours}
    needed = {field.name for field in ours if field.default is MISSING and field.default_factory is MISSING}
    for names, what in (
        (unknown, "holds an agent with {}, unknown here"),
        (needed - fields.keys(), "lacks {}"),
    ):
        if names:
            raise OtherVersion(path, what.format(", ".join(sorted(names))))
    if isinstance(fields.get("stem"), str) and fields["stem"] not in STEMS:
        raise OtherVersion(path, f"has stem {fields['stem']}, which is unknown here")


def _check_sizes(spec: AgentSpec, weights: Mapping[str, Tensor]) -> None:
    """Raise ValueError for sizes other than those of the weights, or a state that would take all memory."""
    shapes = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    try:
        size = count_numbers(check_shapes(lambda: Agent(spec), shapes).initial_state(1))
    except WrongShapes:
        raise
    except Exception:
        if ":" in spec.core:  # somebody's own core may be one that cannot be made without memory
            return
        raise
    if size > _MAX_STATE:
        raise ValueError(f"its core has a state of {size:,} numbers for each environment")


def read_checkpoint(path: Path) -> Contents:
    """Read what one checkpoint holds, of whatever model.

    Raises CheckpointError if it is damaged, OtherVersion if it is not one for this version.
    """
    manifest = _manifest(path)
    number = manifest.get("format", 0)
    if not isinstance(number, int) or number > FORMAT:
        raise OtherVersion(path, f"has format {number}, and this version reads those up to {FORMAT}")
    digests = manifest.get("sha256")
    if not isinstance(digests, dict):
        raise CheckpointError(f"{path / 'manifest.json'} is damaged: it lists no checksums")
    contents: dict[str, bytes] = {}
    for name in EXPORTED if manifest.get("exported") else FILES:
        contents[name] = _read(path / name, digests.get(name))
    with _reading(path / "agent.json"):
        fields = dict(parse_json(contents["agent.json"]))
    with _reading(path, "is damaged or not a checkpoint"):
        state = contents.get("state.pt")
        weights = load(contents["weights.safetensors"])
        return Contents(fields, weights, load_state(state) if state else {})


def load_latest(
    run_dir: Path, trust_core: str | None = None
) -> tuple[Agent, dict[str, Any], Checkpoint] | None:
    """Load the newest readable checkpoint of a run; None if it has none at all.

    A damaged one is skipped with a warning that names it. Raises CheckpointError if all are damaged, and
    ValueError as `load_checkpoint` does.
    """
    newest = load_newest(run_dir, lambda path: load_checkpoint(path, trust_core))
    return None if newest is None else (*newest[0], newest[1])


def load_newest(run_dir: Path, load: Callable[[Path], Loaded]) -> tuple[Loaded, Checkpoint] | None:
    """Load the newest checkpoint that `load` does not find damaged, as `load_latest` does with agents."""
    checkpoints = find_checkpoints(run_dir)
    for checkpoint in reversed(checkpoints):
        try:
            return load(checkpoint.path), checkpoint
        except CheckpointError as error:
            warnings.warn(f"{error}; trying the previous checkpoint", stacklevel=2)
    if checkpoints:
        raise CheckpointError(
            f"every checkpoint in {run_dir} is damaged; restore one, or start anew in another --run-dir"
        )
    return None


def load_agent(path: Path | str, device: torch.device | str = "cpu", trust_core: str | None = None) -> Agent:
    """Load the agent saved in a run directory (its newest checkpoint) or in one checkpoint directory.

    Never executes code from the files. A core of your own is imported only with `trust_core`:
    `trust_core="package.module:Class"`. Raises FileNotFoundError, CheckpointError or ValueError in one line.
    """
    path = Path(path)
    if not path.is_dir():
        raise FileNotFoundError(f"no run or checkpoint at {path}")
    if (path / "manifest.json").is_file():
        return load_checkpoint(path, trust_core)[0].to(device)
    latest = load_latest(path, trust_core)
    if latest is None:
        raise _nothing_saved(path)
    return latest[0].to(device)


def _nothing_saved(run_dir: Path | str) -> FileNotFoundError:
    return FileNotFoundError(f"no checkpoint in {run_dir}; a run saves its first one when training starts")


def _manifest(path: Path) -> dict[str, Any]:
    """Read manifest.json; anything but an object counts as empty. Raises CheckpointError in one line."""
    with _reading(path / "manifest.json"):
        manifest = read_json(path / "manifest.json")
    return manifest if isinstance(manifest, dict) else {}


def _read(path: Path, digest: str | None) -> bytes:
    """Read a file of a checkpoint, into memory only with the right digest. Raises CheckpointError."""
    limit = size_limit(path.name)
    with _reading(path):
        if sha256_of(path, limit) == digest:
            return read_bytes(path, limit)
    raise CheckpointError(f"{path} is damaged: its checksum differs from the manifest's")


@contextlib.contextmanager
def _reading(path: Path, fault: str = "is damaged") -> Iterator[None]:
    """Raise CheckpointError, in one line, for whatever keeps `path` from being read."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {files.why(error)}") from error
    except Exception as error:
        reason = str(error).strip().split("\n")[0]
        raise CheckpointError(f"{path} {fault}: {reason}") from error
