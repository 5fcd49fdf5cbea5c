"""Prints docs/licences.md: `.venv/bin/python docs/licences.py > docs/licences.md`, from what is installed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, metadata, requires

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

HEAD = """# Licences

deltabeast is MIT. What it needs, and what its extras add, each with what that needs itself. All are installed
by you, under licences that allow use, change and sharing. One asks for more: ale-py, the Atari emulator, is
GPL-2.0, so whoever passes on a bundle that holds it, such as an image, does that under the GPL's terms."""
EXTRAS = ("", "ray", "video", "memory", "wandb", "mlflow", "hub", "yaml", "watch", "docs")
SHORT = {
    "OSI Approved": "",
    "The MIT License": "MIT",
    "MIT License": "MIT",
    "Apache Software License": "Apache-2.0",
    "Apache License, Version 2.0": "Apache-2.0",
    "Apache 2.0": "Apache-2.0",
    "BSD License": "BSD",
    "3-Clause BSD": "BSD-3-Clause",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF",
    "UNKNOWN": "",
}


def needed(package: str, extras: frozenset[str], seen: dict[str, set[str]]) -> Iterator[str]:
    """Yield what a package needs, directly or not, each once."""
    for text in requires(package) or ():
        requirement = Requirement(text)
        name = canonicalize_name(requirement.name)
        marker = requirement.marker
        wanted = not marker or any(marker.evaluate({"extra": extra}) for extra in extras or {""})
        if not wanted or (name in seen and requirement.extras <= seen[name]):
            continue
        try:
            metadata(name)
        except PackageNotFoundError:  # of another system
            continue
        if name not in seen:
            yield name
        seen.setdefault(name, set()).update(requirement.extras)
        yield from needed(name, frozenset(requirement.extras), seen)


def licence(package: str) -> str:
    about = metadata(package)
    classifiers = about.get_all("Classifier") or ()
    kinds = [line.split(" :: ")[-1] for line in classifiers if line.startswith("License ::")]
    free = (about.get("License") or "").strip()
    named = free if 0 < len(free) <= 40 else ", ".join(kinds)
    found = about.get("License-Expression") or named
    for long, short in SHORT.items():
        found = found.replace(long, short)
    return re.sub(r"\s+", " ", found) or "see the package"


def main() -> None:
    print(f"{HEAD}\n\n| | package | licence |\n|---|---|---|")
    seen: dict[str, set[str]] = {}
    for extra in EXTRAS:
        label = f"`{extra}`" if extra else "always"
        for name in sorted(set(needed("deltabeast", frozenset({extra}), seen))):
            print(f"| {label} | {name} | {licence(name)} |")
            label = ""


if __name__ == "__main__":
    main()
