"""Every call that writes, renames or removes a file is in `agents/files.py`, or listed here with a reason."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

import deltabeast.agents

ROOT = Path(next(iter(deltabeast.agents.__path__))).resolve().parent
PACKAGES = ("agents", "cores", "envs", "kernels", "launch")

WRITING = {
    *("write_text", "write_bytes", "touch", "truncate", "tofile", "extractall"),
    *("rename", "renames", "replace", "move", "link", "symlink", "hardlink_to", "symlink_to", "chmod"),
    *("unlink", "remove", "rmdir", "removedirs", "rmtree"),
    *(
        "copy2",
        "copyfile",
        "copytree",
        "save",
        "savez",
        "savetxt",
        "savefig",
        "save_file",
    ),
    *("imsave", "imwrite", "get_writer", "SummaryWriter", "export_chrome_trace"),
    *("mkstemp", "mkdtemp", "NamedTemporaryFile", "TemporaryDirectory"),
}
"""names of functions and methods that do"""

PRIVATE = "its own folder, which nobody else may write to, of files with a digest in their names"
MADE = "a folder of a name that nobody has, made a moment before"
MEMORY = "into memory"
LISTED = {
    ("agents/checkpoint.py", "save"): MEMORY,
    ("kernels/native/compiling.py", "TemporaryDirectory"): MADE,
    ("kernels/native/compiling.py", "chmod"): PRIVATE,
    ("kernels/native/compiling.py", "replace"): PRIVATE,
    ("kernels/native/compiling.py", "unlink"): PRIVATE,
    ("kernels/private_cache.py", "chmod"): PRIVATE,
    ("kernels/operator.py", "save"): "tensors for the backward pass",
    ("launch/bench/throughput.py", "TemporaryDirectory"): MADE,
    ("launch/comparison/plots.py", "savefig"): MEMORY,
    ("launch/evaluation/video.py", "get_writer"): "a name of files.atomic_path",
    ("launch/evaluation/why_page.py", "save"): MEMORY,
    ("launch/sharing/hub.py", "TemporaryDirectory"): MADE,
    ("launch/sharing/still.py", "save"): MEMORY,
    ("launch/watching/pictures.py", "save"): MEMORY,
    ("launch/training/profiling.py", "export_chrome_trace"): "a name of files.atomic_path",
    ("launch/training/ray/local_ray.py", "TemporaryDirectory"): MADE,
}
"""calls elsewhere: (file, function) -> why they can do no harm"""


@functools.cache
def calls() -> tuple[tuple[str, str, int], ...]:
    """Return each writing call of the product: file, function, line."""
    return tuple(_calls())


def _calls() -> Iterator[tuple[str, str, int]]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            file = str(path.relative_to(ROOT))
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and (name := writes(node)):
                    yield file, name, node.lineno


def writes(call: ast.Call) -> str | None:
    """The name of a function that writes, if it is called here."""
    name = getattr(call.func, "attr", None) or getattr(call.func, "id", None)
    owner = getattr(getattr(call.func, "value", None), "id", None)
    if name in ("open", "fdopen"):
        return name if (flags_to_write(call) if owner == "os" else opens_to_write(call)) else None
    if owner in ("files", "pages"):
        return None
    if name in ("replace", "remove") and owner != "os":  # which words, dataclasses and lists have, too
        of_path = name == "replace" and isinstance(call.func, ast.Attribute)
        return name if of_path and len(call.args) == 1 and not call.keywords else None
    return name if name in WRITING else None


def opens_to_write(call: ast.Call) -> bool:
    is_method = isinstance(call.func, ast.Attribute)
    modes = [*call.args[not is_method :][:1], *(word.value for word in call.keywords if word.arg == "mode")]
    to_write = any(not isinstance(mode, ast.Constant) or set(str(mode.value)) & set("wax+") for mode in modes)
    return to_write and "devnull" not in ast.dump(call)


def flags_to_write(call: ast.Call) -> bool:
    flags = {node.attr for node in ast.walk(call) if isinstance(node, ast.Attribute)}
    return bool(flags & {"O_WRONLY", "O_RDWR", "O_CREAT", "O_TRUNC", "O_APPEND"}) and "devnull" not in flags


def test_what_writes_is_in_one_module_or_listed_with_its_reason() -> None:
    found = {(file, name): line for file, name, line in calls() if file != "agents/files.py"}
    unlisted = {f"{file}:{line} {name}" for (file, name), line in found.items() if (file, name) not in LISTED}
    assert not unlisted, "use agents/files.py, or list them with a reason"
    assert not LISTED.keys() - found.keys(), "listed, but gone"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("path.open('w')", "open"),
        ("open(path, mode='ab')", "open"),
        ("open(path, kind)", "open"),
        ("os.open(path, os.O_RDWR)", "open"),
        ("path.replace(other)", "replace"),
        ("os.replace(a, b)", "replace"),
        ("os.remove(a)", "remove"),
        ("shutil.rmtree(a)", "rmtree"),
        ("rmtree(a)", "rmtree"),
        ("path.write_text('x')", "write_text"),
        ("Path(a).unlink(missing_ok=True)", "unlink"),
        ("path.open()", None),
        ("open(path, 'rb')", None),
        ("os.open(path, os.O_RDONLY)", None),
        ("os.open(os.devnull, os.O_WRONLY)", None),
        ("open(os.devnull, 'w')", None),
        ("text.replace('a', 'b')", None),
        ("replace(config, a=1)", None),
        ("items.remove(1)", None),
        ("files.remove(path)", None),
    ],
)
def test_the_walk_sees_what_writes(text: str, name: str | None) -> None:
    call = ast.parse(text, mode="eval").body
    assert isinstance(call, ast.Call) and writes(call) == name


def test_the_walk_sees_every_package() -> None:
    assert ("agents/files.py", "rename") in {(file, name) for file, name, _ in calls()}
    assert {file.split("/")[0] for file, _, _ in calls()} == {"agents", "kernels", "launch"}
