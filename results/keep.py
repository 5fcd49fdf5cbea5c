"""Keep what finished runs wrote, but for weights: python results/keep.py RUNS ARCHIVE

ARCHIVE (.tar.xz) gets configuration, log and evaluations of every run below RUNS that reached its steps; the
same runs make the same bytes. `tar -xf ARCHIVE -C RUNS` takes them out again: `deltabeast compare RUNS` reads
them, and a run.sh leaves those runs out. What names the folder of a run names it as in the archive.
"""

from __future__ import annotations

import io
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

from deltabeast.launch.runs.directory import read_config
from deltabeast.launch.runs.log import read_rows
from deltabeast.launch.units import parse_steps


def main(runs: Path, archive: Path) -> None:
    kept = list(finished(runs))
    if not kept:
        raise SystemExit(f"no run below {runs} has reached its steps; {archive} is as it was")
    part = archive.with_name(f"{archive.name}.part")
    with tarfile.open(part, "w:xz", preset=9) as tar:
        for run in kept:
            folder = str(read_config(run)["run_dir"]).encode()
            for path in (run / "config.json", run / "logs.csv", *sorted(run.glob("eval/*.json"))):
                content = path.read_bytes().replace(folder, str(run.relative_to(runs)).encode())
                entry = tarfile.TarInfo(str(path.relative_to(runs)))
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
    part.replace(archive)
    print(f"{len(kept)} runs, {archive.stat().st_size / 1e3:,.0f} kB")


def finished(runs: Path) -> Iterator[Path]:
    """Find the runs that came to the end of their budget, in the order of their names."""
    for config in sorted(runs.rglob("config.json")):
        log = config.parent / "logs.csv"
        rows = read_rows(log) if log.exists() else []
        steps = read_config(config.parent).get("steps")  # which a probe has not
        if rows and steps and rows[-1]["step"] >= parse_steps(str(steps)):
            yield config.parent


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
