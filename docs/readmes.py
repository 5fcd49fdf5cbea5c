"""Makes the site of the repository's own Markdown and pictures, under their own paths.

So there is no second copy of them, and their links lead where they lead in the repository.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
KINDS = (".md", ".svg", ".png", ".csv", ".css", ".ipynb")
LISTING = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]


def on_files(files: Files, config: Any) -> Files:
    """Replace what MkDocs found in docs/ by every file of these kinds in the repository."""
    for file in [file for file in files if file.src_dir == config.docs_dir]:
        files.remove(file)
    listed = subprocess.run(LISTING, cwd=ROOT, capture_output=True, check=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        path = ROOT / name
        if path.suffix in KINDS and not name.startswith("tests/") and path.is_file():
            files.append(File.generated(config, name, abs_src_path=str(path)))
    return files
