"""Checkpoints: whole or not there, refused when damaged, and never executed."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import pickle
import random
import shutil
import subprocess
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from deltabeast.agents import (
    Agent,
    AgentSpec,
    CheckpointError,
    checkpoint,
    find_checkpoints,
    load_agent,
    load_checkpoint,
    load_latest,
    resolve_checkpoint,
    save_checkpoint,
)
from deltabeast.agents.checkpoint import OtherVersion
from deltabeast.agents.manifest import checkpoint_paths, damaged_file
from deltabeast.launch.runs.describe import describe_run

OPTIONS = {"hidden_size": 8, "num_heads": 2, "ff_size": 8, "num_layers": 1}
SPEC = AgentSpec((3,), 4, core="rdn", stem="mlp", core_options=OPTIONS, env_id="X-v0")
FILES = ("agent.json", "weights.safetensors", "state.pt", "manifest.json")


def make_agent() -> Agent:
    return Agent(SPEC)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run with checkpoints at 100 and 200 steps; every weight is the step."""
    for step in (100, 200):
        save(tmp_path, step)
    return tmp_path


def save(run_dir: Path, step: int, milestone: bool = False, fill: int | None = None, **state: Any) -> Path:
    agent = make_agent()
    with torch.no_grad():
        for parameter in agent.parameters():
            parameter.fill_(step if fill is None else fill)
    return save_checkpoint(run_dir, step, agent, {"step": step, **state}, milestone)


def steps(run_dir: Path) -> list[int]:
    return [c.step for c in find_checkpoints(run_dir)]


def value(agent: Agent) -> float:
    values = {float(v) for p in agent.parameters() for v in p.detach().unique()}
    assert len(values) == 1
    return values.pop()


def test_round_trip(tmp_path: Path, seed: int) -> None:
    agent = make_agent()
    optimizer = torch.optim.RMSprop(agent.parameters())
    agent.unroll(torch.randn(2, 3, 3), torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.bool),
                 agent.initial_state(3))[0].baseline.sum().backward()  # fmt: skip
    optimizer.step()
    state = {"optimizer": optimizer.state_dict(), "list": [1, 2.5, None, "x"], "rng": torch.get_rng_state()}
    path = save_checkpoint(tmp_path, 1234, agent, state)
    assert path == tmp_path / "checkpoints" / "000000001234"
    again, state_again = load_checkpoint(path)
    assert again.spec == SPEC
    for name, tensor in agent.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name]), name
    assert state_again["list"] == state["list"] and torch.equal(state_again["rng"], state["rng"])
    saved, expected = state_again["optimizer"]["state"], optimizer.state_dict()["state"]
    assert all(torch.equal(saved[i]["square_avg"], expected[i]["square_avg"]) for i in expected)
    assert {p.name for p in path.iterdir()} == set(FILES)
    assert {p.stat().st_mode & 0o077 for p in path.iterdir()} == {0o666 & ~_umask() & 0o077}, (
        "as readable as others"
    )


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_latest_two_and_milestones_are_kept(tmp_path: Path) -> None:
    for step in range(100, 1000, 100):
        save(tmp_path, step, milestone=step in (200, 500))
    assert steps(tmp_path) == [200, 500, 800, 900]


def test_a_milestone_that_is_saved_again_stays_one(tmp_path: Path) -> None:
    """As when a run is resumed at a milestone with nothing left to learn: the next saves must keep it."""
    save(tmp_path, 100, milestone=True)
    save(tmp_path, 100)
    for step in (200, 300, 400):
        save(tmp_path, step)
    assert steps(tmp_path) == [100, 300, 400]


def test_checkpoints_are_found_by_step(run_dir: Path) -> None:
    directory = run_dir / "checkpoints"
    assert resolve_checkpoint(run_dir) == resolve_checkpoint(run_dir, 101) == directory / "000000000200"
    assert resolve_checkpoint(run_dir, 100) == resolve_checkpoint(run_dir, 1) == directory / "000000000100"
    assert resolve_checkpoint("nowhere", str(directory / "000000000100")) == directory / "000000000100"
    for which, said in ((201, "at step 201 or later"), ("best", "'best'")):
        with pytest.raises(FileNotFoundError, match=f"no checkpoint {said} in .*latest, 100, 200"):
            resolve_checkpoint(run_dir, which)
    assert value(load_agent(run_dir)) == 200 and value(load_agent(directory / "000000000100")) == 100
    for path in (run_dir / "nothing", directory):
        with pytest.raises(FileNotFoundError, match=r"no run or checkpoint|no checkpoint in"):
            load_agent(path)
    assert load_latest(run_dir / "nothing") is None


def truncate(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: random.randrange(len(content))])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[random.randrange(len(content))] ^= 1 << random.randrange(8)
    path.write_bytes(content)


DAMAGES = {
    "truncated": truncate,
    "flipped bit": flip,
    "missing": Path.unlink,
    "garbage": lambda path: path.write_bytes(b"{garbage\xff"),
    "empty": lambda path: path.write_bytes(b""),
    "another type": lambda path: path.write_bytes(b"[1, 2]"),
    "a directory": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_latest_falls_back_and_names_the_file(
    run_dir: Path, name: str, damage: str, seed: int
) -> None:
    path = run_dir / "checkpoints" / "000000000200" / name
    DAMAGES[damage](path)
    if name == "manifest.json" and damage == "flipped bit":
        # It may have hit the step or white space, which no checksum covers: then nothing was lost.
        with warnings.catch_warnings(record=True):
            warnings.simplefilter("always")
            found = load_latest(run_dir)
        assert found is not None and value(found[0]) == found[2].step
        return
    with pytest.warns(UserWarning, match=f"{name}.*; trying the previous checkpoint") as caught:
        found = load_latest(run_dir)
    assert len(caught) == 1 and str(path) in str(caught[0].message)
    assert found is not None and found[2].step == found[1]["step"] == value(found[0]) == 100
    with pytest.raises(CheckpointError, match=name):
        load_agent(path.parent) if name != "manifest.json" else load_checkpoint(path.parent)


def test_all_damaged_is_one_clear_error(run_dir: Path, seed: int) -> None:
    for found in find_checkpoints(run_dir):
        (found.path / "manifest.json").unlink()
    with (
        pytest.warns(UserWarning, match="manifest") as caught,
        pytest.raises(CheckpointError, match=r"every checkpoint in .* is damaged"),
    ):
        load_latest(run_dir)
    assert len(caught) == 2


def test_a_manifest_that_lists_nothing_vouches_for_nothing(run_dir: Path) -> None:
    path = run_dir / "checkpoints" / "000000000200"
    (path / "manifest.json").write_text(json.dumps({"step": 200, "milestone": False, "sha256": {}}))
    with pytest.raises(CheckpointError, match=r"agent\.json is damaged"):
        load_checkpoint(path)


def test_damaged_ones_ahead_do_not_count_as_good_ones(run_dir: Path, seed: int) -> None:
    """A run that fell back to step 100 keeps two whole checkpoints while it is behind the damaged one."""
    truncate(run_dir / "checkpoints" / "000000000200" / "weights.safetensors")
    save(run_dir, 120)
    save(run_dir, 140)
    assert steps(run_dir) == [120, 140, 200]
    with pytest.warns(UserWarning, match="weights"):
        found = load_latest(run_dir)
    assert found is not None and found[2].step == 140
    save(run_dir, 200)
    assert steps(run_dir) == [140, 200] and value(load_agent(run_dir)) == 200


def describe(path: Path, **changes: Any) -> None:
    """Change what a checkpoint says of its agent, or its manifest's format, with the checksums right."""
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["format"] = changes.pop("format", manifest["format"])
    fields = json.loads((path / "agent.json").read_text()) | changes
    content = json.dumps({name: value for name, value in fields.items() if value != "gone"}).encode()
    (path / "agent.json").write_bytes(content)
    manifest["sha256"]["agent.json"] = hashlib.sha256(content).hexdigest()
    (path / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"format": checkpoint.FORMAT + 1}, "has format 2, and this version reads those up to 1"),
        ({"attention": 1}, "holds an agent with attention, unknown here"),
        ({"num_actions": "gone"}, "lacks num_actions"),
        ({"core": "rdn_next"}, "has core rdn_next, which is unknown here"),
        ({"stem": "vit"}, "has stem vit, which is unknown here"),
    ],
)
def test_what_another_version_wrote_is_said_as_that_and_nothing_older_takes_its_place(
    run_dir: Path, changes: dict[str, Any], said: str
) -> None:
    describe(run_dir / "checkpoints" / "000000000200", **changes)
    with pytest.raises(
        OtherVersion, match=f"{said}: a newer version of deltabeast wrote it.*; update"
    ) as raised:
        load_latest(run_dir)
    assert "\n" not in str(raised.value)


def test_a_checkpoint_without_a_format_is_of_an_earlier_version(run_dir: Path) -> None:
    path = run_dir / "checkpoints" / "000000000200" / "manifest.json"
    manifest = json.loads(path.read_text())
    assert manifest.pop("format") == checkpoint.FORMAT
    path.write_text(json.dumps(manifest))
    assert value(load_agent(run_dir)) == 200


class Evil:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.target),))


def test_a_malicious_pickle_is_not_executed(run_dir: Path, tmp_path: Path) -> None:
    """With every checksum right: whoever wrote the file wrote the manifest too."""
    target = tmp_path / "executed"
    path = run_dir / "checkpoints" / "000000000200"
    for content in (_zipped({"x": Evil(target)}, tmp_path), pickle.dumps(Evil(target), protocol=2)):
        (path / "state.pt").write_bytes(content)
        manifest = json.loads((path / "manifest.json").read_text())
        manifest["sha256"]["state.pt"] = hashlib.sha256(content).hexdigest()
        (path / "manifest.json").write_text(json.dumps(manifest))
        with pytest.raises(CheckpointError, match="is damaged or not a checkpoint") as raised:
            load_checkpoint(path)
        assert "\n" not in str(raised.value)
        with pytest.warns(UserWarning, match="damaged"):
            assert value(load_agent(run_dir)) == 100
        assert not target.exists()


def _zipped(value: Any, tmp_path: Path) -> bytes:
    torch.save(value, tmp_path / "evil.pt")
    return (tmp_path / "evil.pt").read_bytes()


class Killed(BaseException):
    pass


@contextmanager
def ending_at(moment: int, end: BaseException) -> Iterator[None]:
    """Raise `end` instead of the call to the system of that number, and of all after it."""
    calls: list[tuple[Any, str]] = [(os, name) for name in ("fsync", "open", "rename", "mkdir", "sendfile")]
    calls += [(os, "unlink"), (os, "rmdir"), (Path, "open")]
    left = moment
    with pytest.MonkeyPatch.context() as patch:
        for module, name in calls:
            real = getattr(module, name)

            def ending(*args: Any, _real: Any = real, **kwargs: Any) -> Any:
                nonlocal left
                if left == 0:
                    raise end
                left -= 1
                return _real(*args, **kwargs)

            patch.setattr(module, name, ending)
        yield


def test_a_kill_at_any_moment_of_a_save_leaves_a_whole_latest(run_dir: Path) -> None:
    """Stops the save before each of its calls to the system in turn."""
    moments = 0
    while True:
        try:
            with ending_at(moments, Killed()):
                save(run_dir, 300)
            break
        except Killed:
            pass
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = load_latest(run_dir)
        assert found is not None and found[2].step == value(found[0]) == found[1]["step"] in (200, 300)
        moments += 1
    assert moments > 8
    assert steps(run_dir) == [200, 300]
    assert not list((run_dir / "checkpoints").glob(".*")), "leftovers of killed saves"


def is_milestone(path: Path) -> bool:
    return bool(json.loads((path / "manifest.json").read_text())["milestone"])


@pytest.mark.parametrize("end", [Killed(), OSError(errno.EIO, "broken")], ids=["kill", "error"])
def test_a_save_of_the_same_step_leaves_one_of_that_step_at_every_moment(
    tmp_path: Path, end: BaseException
) -> None:
    """The old one or the new one, whole and with its mark, for all who read; and the next save tidies up."""
    before = tmp_path / "before"
    for step in (100, 200):
        save(before, step, milestone=step == 200)
    (before / "logs.csv").write_text("step,time\n200,1\n")
    values, moments, ended = [], 0, True
    while ended:
        run_dir = tmp_path / str(moments)
        shutil.copytree(before, run_dir)
        ended = False
        try:
            with ending_at(moments, end):
                save(run_dir, 200, fill=201)
        except (Killed, CheckpointError):
            ended = True
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = load_latest(run_dir)
        assert found is not None and found[2].step == 200 and steps(run_dir) == [100, 200]
        assert is_milestone(found[2].path)
        values.append(value(found[0]))
        assert resolve_checkpoint(run_dir) == resolve_checkpoint(run_dir, 200) == found[2].path
        assert ("checkpoints", "100, 200 (kept)") in describe_run(run_dir)
        assert checkpoint_paths(run_dir)[-1] == found[2].path
        for following in (200, 300):
            again = tmp_path / f"{moments}-{following}"
            shutil.copytree(run_dir, again)
            save(again, following, fill=202)
            names = {path.name for path in (again / "checkpoints").iterdir()}
            assert names == {f"{step:012d}" for step in {100, 200, following}}
            assert is_milestone(again / "checkpoints" / f"{200:012d}")
            assert value(load_agent(again / "checkpoints" / f"{following:012d}")) == 202
            assert value(load_agent(again / "checkpoints" / f"{200:012d}")) in (values[-1], 202)
        moments += 1
    assert moments > 12
    assert values == sorted(values) and set(values) == {200, 201}, "from one moment on it is the new one"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    mount = tmp_path / "disk"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(mount)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("may not mount a file system here")
    yield mount
    subprocess.run(["umount", "-l", str(mount)], check=True)


def test_a_full_disk_is_told_in_one_line_and_spares_the_last_checkpoint(small_disk: Path) -> None:
    save(small_disk, 100)
    with pytest.raises(CheckpointError, match="No space left on device; free space") as raised:
        save(small_disk, 200, ballast=torch.zeros(1 << 18))
    assert "\n" not in str(raised.value)
    assert steps(small_disk) == [100] and value(load_agent(small_disk)) == 100
    assert len(list((small_disk / "checkpoints").iterdir())) == 1, "the half-written one is gone"
    save(small_disk, 200)
    assert value(load_agent(small_disk)) == 200


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EIO])
@pytest.mark.parametrize("call", ["fsync", "rename", "mkdir"])
def test_whatever_the_system_refuses_is_told_in_one_line(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, code: int, call: str
) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, refuse)
        with pytest.raises(CheckpointError, match=f"000000000300: {os.strerror(code)}; free space") as raised:
            save(run_dir, 300)
    assert "\n" not in str(raised.value)
    assert steps(run_dir) == [100, 200] and value(load_agent(run_dir)) == 200


@pytest.mark.parametrize("linked", [False, True])
def test_nothing_but_checkpoints_of_ours_is_removed(tmp_path: Path, linked: bool) -> None:
    """Also where `checkpoints` is a link to a larger disk, whose folder has those of others."""
    run_dir, disk = tmp_path / "run", tmp_path / "disk"
    run_dir.mkdir(), disk.mkdir()
    if linked:
        (run_dir / "checkpoints").symlink_to(disk)
    else:
        disk = run_dir / "checkpoints"
    others = [".git", ".conda", ".ssh", "best", "2024", "000000000050", ".000000000050.old", "0000000000050"]
    for name in others:
        (disk / name / "inner").mkdir(parents=True)
        (disk / name / "inner" / "file").write_text("mine")
    (disk / ".bashrc").write_text("mine")
    (disk / "000000000050" / "manifest.json").write_text("{}")
    save(run_dir, 10)
    (disk / "000000000010" / "notes.txt").write_text("mine")
    (disk / ".000000000060.3ab").mkdir()  # what a killed save left
    (disk / ".000000000060.3ab" / "agent.json").write_text("{")
    for step in (100, 200, 300, 400):
        save(run_dir, step)
    kept = ["000000000010", "000000000300", "000000000400"]
    assert sorted(path.name for path in disk.iterdir()) == sorted([*others, ".bashrc", *kept])
    assert all((disk / name / "inner" / "file").read_text() == "mine" for name in others)
    assert (disk / "000000000010" / "notes.txt").read_text() == "mine"
    assert value(load_agent(run_dir)) == 400


def test_other_files_among_the_checkpoints_do_no_harm(run_dir: Path) -> None:
    (run_dir / "checkpoints" / "notes.txt").write_text("x")
    (run_dir / "checkpoints" / "12").write_text("x")
    (run_dir / "checkpoints" / "best").mkdir()
    assert steps(run_dir) == [100, 200]
    save(run_dir, 300)
    assert steps(run_dir) == [200, 300]
    assert (run_dir / "checkpoints" / "best").is_dir()


# ---- sizes ----


def rewrite(path: Path, name: str, content: bytes) -> None:
    """Replace a file of a checkpoint, its checksum with it."""
    (path / name).write_bytes(content)
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["sha256"][name] = hashlib.sha256(content).hexdigest()
    (path / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        (
            {"num_actions": 10**12},
            "policy.bias: expected shape [1000000000000] from agent.json, found shape [4]",
        ),
        ({"num_actions": 3}, "policy.bias: expected shape [3] from agent.json, found shape [4]"),
        ({"observation_shape": [10**6]}, "stem."),
        ({"observation_shape": [10**6] * 3}, "stem 'mlp' does not fit"),
        ({"observation_shape": [10**6] * 3, "stem": "nature"}, "stem."),
        ({"core_options": {**OPTIONS, "hidden_size": 10**9}}, "overflow"),
        ({"core_options": {**OPTIONS, "hidden_size": 10**6}}, "from agent.json, found shape [1, 8]"),
        ({"core_options": {**OPTIONS, "num_layers": 10**12}}, "modules and tensors"),
        ({"core_options": {**OPTIONS, "num_layers": 2}}, "core."),
        ({"core_options": {**OPTIONS, "ff_size": 2**62}}, "overflow"),
    ],
    ids=range(10),
)
def test_sizes_are_compared_with_the_weights_before_an_agent_is_built(
    fields: dict[str, Any], says: str, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = find_checkpoints(run_dir)[-1].path
    spec = json.loads((path / "agent.json").read_text())
    rewrite(path, "agent.json", json.dumps(spec | fields).encode())

    def build(spec: AgentSpec) -> Agent:
        assert torch.get_default_device().type == "meta", "it was built"
        return Agent(spec)

    monkeypatch.setattr(checkpoint, "Agent", build)
    with pytest.raises(CheckpointError, match="is damaged or not a checkpoint") as raised:
        load_checkpoint(path)
    assert says in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["core", "stem", "game", "env_id", "protocol", "observations"])
def test_a_name_that_is_no_word_is_damage(name: str, run_dir: Path) -> None:
    path = find_checkpoints(run_dir)[-1].path
    spec = json.loads((path / "agent.json").read_text())
    rewrite(path, "agent.json", json.dumps(spec | {name: [1]}).encode())
    with pytest.raises(CheckpointError, match=r"agent\.json is damaged"):
        load_checkpoint(path)


def test_a_core_whose_state_would_take_all_memory_is_refused(tmp_path: Path) -> None:
    options = {"hidden_size": 8, "num_heads": 2, "num_layers": 1}
    spec = AgentSpec((3,), 4, "softmax_attention", "mlp", core_options={**options, "window": 4})
    path = save_checkpoint(tmp_path, 1, Agent(spec), {})
    assert load_checkpoint(path)[0].spec == spec
    saved = json.loads((path / "agent.json").read_text())
    saved["core_options"]["window"] = 10**10
    rewrite(path, "agent.json", json.dumps(saved).encode())
    with pytest.raises(CheckpointError, match="its core has a state of 180,000,000,000 numbers"):
        load_checkpoint(path)


def test_a_file_of_no_reasonable_size_is_neither_read_nor_added_up(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = find_checkpoints(run_dir)[-1].path
    with (path / "state.pt").open("ab") as file:
        file.truncate(3 << 30)  # which takes no room on the disk
    monkeypatch.setattr("hashlib.file_digest", None)
    with pytest.raises(CheckpointError, match=r"state\.pt cannot be read: it is larger than 2,147,483,648"):
        checkpoint._read(path / "state.pt", None)
    monkeypatch.undo()
    assert damaged_file(path) == "state.pt"


def test_comparing_sizes_draws_no_random_numbers(run_dir: Path) -> None:
    agent = make_agent()
    before = torch.get_rng_state()
    checkpoint._check_sizes(SPEC, agent.state_dict())
    assert torch.equal(torch.get_rng_state(), before)


def state_file(pickled: bytes, compression: int = zipfile.ZIP_STORED) -> bytes:
    """A file as torch writes it, with another pickle in it."""
    buffer, changed = io.BytesIO(), io.BytesIO()
    torch.save({}, buffer)
    with zipfile.ZipFile(buffer) as old, zipfile.ZipFile(changed, "w", compression) as new:
        for entry in old.infolist():
            is_pickle = entry.filename.endswith("/data.pkl")
            new.writestr(entry.filename, pickled if is_pickle else old.read(entry))
    return changed.getvalue()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (state_file(b"\x80\x02c__builtin__\nbytearray\nK\x0a\x85R."), "names __builtin__ bytearray"),
        (state_file(b"\x80\x02ctorch\nFloatTensor\nK\x0a\x85R."), "names torch FloatTensor"),
        (state_file(b"\x80\x02}." + bytes(10**5), zipfile.ZIP_DEFLATED), "entries exceed its size"),
        (b"\x80\x02}.", "not a zip file"),
    ],
    ids=["bytearray", "tensor", "compressed", "legacy"],
)
def test_a_state_of_training_takes_no_more_memory_than_its_file(
    content: bytes, says: str, run_dir: Path
) -> None:
    path = find_checkpoints(run_dir)[-1].path
    rewrite(path, "state.pt", content)
    with pytest.raises(CheckpointError, match=says):
        load_checkpoint(path)
    rewrite(path, "state.pt", state_file(b"\x80\x02}."))
    assert load_checkpoint(path)[1] == {}
