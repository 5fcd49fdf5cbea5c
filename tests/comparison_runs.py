"""Run directories as training and evaluation leave them, without any training: for tests of comparisons."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

METRICS = ("game_return", "life_return", "sps", "write_strength", "fast_weight_norm")


def make_run(
    root: Path,
    game: str = "gopher",
    core: str = "rdn",
    seed: int = 1,
    protocol: str | None = "paper-code",
    steps: str = "300k",
    scores: Sequence[float] = (),
    curve: Sequence[tuple[int, float, float]] = (
        (100_000, 100.0, 1.0),
        (200_000, 200.0, 2.0),
        (300_000, 300.0, 3.0),
    ),
    env: bool = False,
    checkpoint: bool = True,
    format: int = 2,
    **settings: Any,
) -> Path:
    """A run whose log has `curve` (step, unix seconds, return) and whose evaluations have `scores`.

    The return of a whole game is three times that of a life.
    """
    run = root / game.split(":")[-1] / core / f"seed-{seed}"
    run.mkdir(parents=True)
    subject = {"env": game, "game": None} if env else {"game": game, "env": None}
    config = {**subject, "core": core, "seed": seed, "protocol": protocol, "steps": steps, **settings}
    (run / "config.json").write_text(
        json.dumps({"format": format, "config": config, "versions": {"commit": "abc", "torch": "2"}})
    )
    rows = [",".join(("step", "time", *METRICS))]
    rows += [f"{step},{time},{value * 3},{value},1000,0.5,2.0" for step, time, value in curve]
    (run / "logs.csv").write_text("\n".join(rows) + "\n")
    if checkpoint:
        add_checkpoint(run, config)
    for number, score in enumerate(scores):
        add_evaluation(run, score, protocol=protocol, time=f"2026-01-0{number + 1}")
    return run


def add_checkpoint(run: Path, config: dict[str, Any], step: int = 300_000) -> Path:
    folder = run / "checkpoints" / f"{step:012d}"
    folder.mkdir(parents=True)
    spec = {"game": config["game"], "env_id": config["env"], "core": config["core"], "stem": "nature",
            "protocol": config["protocol"], "core_options": {}, "num_actions": 8}  # fmt: skip
    (folder / "agent.json").write_text(json.dumps(spec))
    for name in ("weights.safetensors", "state.pt"):
        (folder / name).write_bytes(b"tensors")
    digests = {
        name: hashlib.sha256((folder / name).read_bytes()).hexdigest()
        for name in ("agent.json", "weights.safetensors", "state.pt")
    }
    (folder / "manifest.json").write_text(json.dumps({"step": step, "milestone": False, "sha256": digests}))
    return folder


def add_evaluation(
    run: Path, score: float, protocol: str | None = "paper-code", step: int = 300_000, greedy: bool = True,
    time: str = "2026-01-01", count: int = 150,
) -> Path:  # fmt: skip
    (run / "eval").mkdir(exist_ok=True)
    summary = {"life": {"mean": score, "count": count}, "game": {"mean": 3 * score, "count": count // 3}}
    content = {"protocol": protocol, "greedy": greedy, "step": step, "time": time,
               "results": {"trained": {"summary": summary}}}  # fmt: skip
    path = run / "eval" / f"{protocol or 'env'}-{step}-{greedy}-{time}.json"
    path.write_text(json.dumps(content))
    return path
