"""The documentation site is built without a warning: no link leads nowhere, no page is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_site_has_every_page_and_no_link_that_leads_nowhere(tmp_path: Path) -> None:
    subprocess.run(["make", "--quiet", "links"], cwd=ROOT, check=True)
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(build, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    tops = ("agents", "cores", "envs", "kernels", "launch", "results")
    for readme in (each for top in tops for each in (ROOT / top).rglob("README.md")):
        assert (tmp_path / readme.parent.relative_to(ROOT) / "index.html").is_file(), readme
    reference = (tmp_path / "docs" / "api" / "cores" / "index.html").read_text()
    assert "make_core" in reference and "Build a core." in reference
    assert "hidden_size" in (tmp_path / "docs" / "api" / "built-in-cores" / "index.html").read_text()
    assert not list(tmp_path.rglob("readmes.py"))
