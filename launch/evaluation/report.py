"""The results of an evaluation: a table and notes on the console, a JSON file in the run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from ...agents import AgentSpec, files
from ...envs import find_protocol, human_normalized
from ..config import EvalConfig
from ..errors import RunError
from ..output import say
from ..runs import published
from ..runs.directory import versions
from .answers import lines
from .certificate import Certificate
from .loading import Loaded
from .returns import Evaluation, paired_difference
from .tables import UNALTERED, evaluation_notes, evaluation_table, memory_table

Scores = Mapping[int, published.PublishedScore]


def comparable_scores(spec: AgentSpec, protocol: str | None, sample: bool) -> Scores:
    """Look up published scores of the same kind; none where the evaluation is of another."""
    comparable = protocol == published.PROTOCOL and spec.game is not None and not (sample or spec.env_options)
    return published.published_scores(spec.game or "", spec.core) if comparable else {}


def print_results(
    results: Mapping[str, Evaluation], spec: AgentSpec, protocol: str | None, scores: Scores, console: Console
) -> None:
    """Print the table, and what a reader has to know beside it."""
    lives = protocol is not None and find_protocol(protocol).life_ends_episode
    normalized = _normalized(spec, results)
    altered = {name: result for name, result in results.items() if name not in UNALTERED}
    side_by_side = {name: result for name, result in results.items() if name in UNALTERED}
    console.print(evaluation_table(side_by_side, scores, lives, normalized))
    if altered:
        console.print()
        console.print(memory_table(altered, results["trained"], lives, normalized))
    for note in (*evaluation_notes(results, lives), *_notes_on_published(spec, scores)):
        say(console, note)


def print_certificate(certificate: Certificate, console: Console) -> None:
    say(console, "certificate of the memory")
    for name, answer in lines(certificate.as_json()):
        say(console, f"{name:8}  {answer}")


def _notes_on_published(spec: AgentSpec, scores: Scores) -> list[str]:
    notes = []
    if scores and spec.core_options:
        notes.append(f"published scores are of the default {spec.core}; this agent's has {spec.core_options}")
    if scores and spec.game in published.FEWER_ACTIONS and spec.num_actions != published.DEFAULT_ACTIONS:
        notes.append(
            f"published agents of {spec.game} chose among its first {published.DEFAULT_ACTIONS} actions, "
            f"this one among {spec.num_actions}"
        )
    return notes


def write_results(
    config: EvalConfig,
    results: Mapping[str, Evaluation],
    loaded: Loaded,
    protocol: str | None,
    scores: Scores,
    certificate: Certificate | None = None,
) -> Path:
    """Write RUN/eval/*.json; return its path. Raises RunError."""
    now, spec = datetime.now(UTC), loaded.agent.spec
    content = {
        "game": spec.game,
        "env_id": spec.env_id,
        "core": spec.core,
        "agent": asdict(spec),
        "protocol": protocol,
        "trained_protocol": spec.protocol,
        "checkpoint": str(loaded.checkpoint),
        "step": loaded.step,
        "seed": config.seed,
        "greedy": not config.sample,
        "episodes": config.episodes,
        "repeats": config.repeats,
        "time": now.isoformat(timespec="seconds"),
        "versions": versions(),
        "human_normalized": _normalized(spec, results),
        "published": {f"{millions}M": score._asdict() for millions, score in scores.items()},
        "results": {name: _as_json(name, result, results["trained"]) for name, result in results.items()},
    }
    if certificate is not None:
        content["certificate"] = certificate.as_json()
    name = f"{protocol or 'env'}-{loaded.step}-{now:%Y%m%dT%H%M%S.%fZ}.json"
    target = loaded.run_dir / "eval" / name
    try:
        files.write(target, json.dumps(content, indent=2) + "\n")
    except OSError as error:
        raise RunError(f"cannot write {target}: {files.why(error)}; the result is above") from error
    return target


def _normalized(spec: AgentSpec, results: Mapping[str, Evaluation]) -> dict[str, float | None]:
    """Human-normalised mean game scores by player, None where there is none."""
    normalized: dict[str, float | None] = dict.fromkeys(results)
    for name, result in results.items():
        summary = result.game.summary()
        if spec.game and summary:
            normalized[name] = human_normalized(spec.game, summary.mean)
    return normalized


def _as_json(name: str, result: Evaluation, trained: Evaluation) -> dict[str, Any]:
    kinds = ("life", "game")
    content = {
        **asdict(result),
        "summary": _as_dicts({kind: getattr(result, kind).summary() for kind in kinds}),
    }
    if name not in UNALTERED:
        pairs = {kind: paired_difference(result, trained, kind) for kind in kinds}
        content["difference"] = _as_dicts(pairs)
    return content


def _as_dicts(parts: Mapping[str, Any]) -> dict[str, Any]:
    return {kind: asdict(part) if part else None for kind, part in parts.items()}
