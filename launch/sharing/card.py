"""The card of an exported agent: README.md, with what hubs read at its head."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..comparison.tables import Table
from ..config import TrainConfig
from ..evaluation.answers import lines
from ..foreign import markdown, terminal
from ..runs.consent import consent, needs_consent
from ..runs.directory import option_words
from ..units import format_score

if TYPE_CHECKING:  # torch takes a while, and a card's name is asked for without it
    from ...agents import Agent, AgentSpec

TAGS = ("reinforcement-learning", "deltabeast", "fast-weight-programmers")
CARD, CURVE, STILL, GAME = "README.md", "curve.png", "still.png", "game.html"
CERTIFICATE = "`deltabeast eval --certificate`: each answer is independent of the others."


@dataclass(frozen=True)
class Exported:
    """What a card says."""

    agent: Agent
    step: int
    options: Mapping[str, Any]
    """of `train`; empty if they are not known"""
    versions: Mapping[str, Any]
    """that it was trained with"""
    evaluations: Sequence[Mapping[str, Any]]
    """of this step, as `eval` wrote them"""
    pictures: Sequence[str]
    half: bool
    note: str | None
    has_game: bool = False
    """whether a recorded game lies beside the card"""
    reads_writes: bool = False
    """whether what the memory reads is a sum of what it wrote, which such a game then shows"""


def write_card(exported: Exported) -> str:
    """Return the card as Markdown."""
    spec = exported.agent.spec
    subject = spec.game or spec.env_id or "unknown environment"
    parts = [
        _head(exported, subject),
        f"# {markdown(f'{spec.core} on {subject}')}",
        "An agent of deltabeast: IMPALA with V-trace, and a recurrent core as its memory.",
        _about(exported, subject),
        *([exported.note] if exported.note else []),
        "## Scores\n" + _scores(exported),
        *_memory(exported),
        *(f"![{name.removesuffix('.png')}]({name})" for name in exported.pictures),
        *([_game(exported)] if exported.has_game else []),
        "## How to load it\n" + _loading(exported),
        "## How it was trained\n" + _training(exported),
    ]
    return "\n\n".join(parts) + "\n"


def _head(exported: Exported, subject: str) -> str:
    """The metadata that hubs read, as YAML, of which JSON is a part."""
    metadata: dict[str, Any] = {
        "library_name": "deltabeast",
        "tags": [*TAGS, subject, exported.agent.spec.core],
    }
    results = [
        {
            "task": {"type": "reinforcement-learning", "name": "reinforcement-learning"},
            "dataset": {"name": subject, "type": subject},
            "metrics": [{"type": "mean_reward", "name": name, "value": round(mean, 3)}],
        }
        for name, mean in dict.fromkeys(mean for each in exported.evaluations for mean in _mean(each))
    ]
    if results:
        metadata["model-index"] = [{"name": f"{exported.agent.spec.core}-{subject}", "results": results}]
    lines = [f"{name}: {json.dumps(value)}" for name, value in metadata.items()]
    return "\n".join(["---", *lines, "---"])


def can_be_shown(evaluation: Mapping[str, Any]) -> bool:
    """Return whether an evaluation has what a card shows, and each of it is of the right kind."""
    try:
        _mean(evaluation), _rows(evaluation)
        if evaluation.get("certificate"):
            lines(evaluation["certificate"]), str(evaluation["time"])
    except (LookupError, TypeError, ValueError, AttributeError):
        return False
    return True


def _mean(evaluation: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Return the mean return of a game and what it is of; nothing if no game ended."""
    summary = evaluation["results"]["trained"]["summary"]["game"]
    return [(f"mean return of a game, {_how(evaluation)}", float(summary["mean"]))] if summary else []


def _about(exported: Exported, subject: str) -> str:
    agent, spec = exported.agent, exported.agent.spec
    options = ", ".join(f"{name} {value}" for name, value in spec.core_options.items())
    size = sum(parameter.numel() for parameter in agent.parameters())
    rows = [
        ("environment", subject),
        ("protocol", spec.protocol or "the environment's own"),
        ("core", f"`{spec.core}`" + (f" with {options}" if options else "")),
        ("stem", f"`{spec.stem}`"),
        ("parameters", f"{size:,}" + (", stored in 16 bits" if exported.half else "")),
        ("agent steps", f"{exported.step:,}"),
        ("training seed", str(exported.options.get("seed", "unknown"))),
    ]
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {markdown(value)} |" for name, value in rows)])


def _scores(exported: Exported) -> str:
    rows = list(dict.fromkeys(cells for each in exported.evaluations for cells in _rows(each)))
    if not rows:
        return "Not evaluated."
    half = " Measured before the numbers were rounded to 16 bits." if exported.half else ""
    columns = ("evaluation", "return of", "mean", "95% interval over episodes", "episodes")
    note = f"The interval says nothing of other training seeds.{half}"
    return Table(None, columns, rows, 2, note).to_markdown()


def _rows(evaluation: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return the cells of an evaluation's returns: of games, and of lives where those are two things."""
    rows: list[tuple[str, ...]] = []
    normalized = (evaluation.get("human_normalized") or {}).get("trained")
    for kind, result in evaluation["results"]["trained"]["summary"].items():
        if not result or (kind == "life" and not _has_lives(evaluation)):
            continue
        mean, (low, high) = result["mean"], result["interval"]
        shown = format_score(mean)
        if kind == "game" and normalized is not None:
            shown += f" ({normalized:.0%} of human)"
        interval = f"{format_score(low, mean)} to {format_score(high, mean)}"
        rows.append((_how(evaluation), f"a {kind}", shown, interval, str(result["count"])))
    return rows


def _memory(exported: Exported) -> list[str]:
    """Return the answers of a certificate (`eval --certificate`) as a section, if there is one: that of most
    episodes, of equal ones the newest."""
    found = [each for each in exported.evaluations if each.get("certificate")]
    if not found:
        return []
    best = max(found, key=lambda each: (each["certificate"]["pairs"], str(each["time"])))
    half = " Examined before the numbers were rounded to 16 bits." if exported.half else ""
    table = Table(None, ("", _how(best)), lines(best["certificate"]), 2, CERTIFICATE + half)
    return ["## Memory\n" + table.to_markdown()]


def _game(exported: Exported) -> str:
    half = " Played before the numbers were rounded to 16 bits." if exported.half else ""
    memory = " with what the memory reads and writes" if exported.reads_writes else ""
    return (
        f"[A recorded game]({GAME}), step by step{memory}: a page to open in a browser, without a "
        f"server.{half}"
    )


def links_game(card: str) -> bool:
    """Return whether a card, maybe changed since it was written, has a link to the recorded game."""
    return re.search(rf"\]\((\./)?{re.escape(GAME)}\)|[\"'](\./)?{re.escape(GAME)}[\"']", card) is not None


def _has_lives(evaluation: Mapping[str, Any]) -> bool:
    """Whether lives and games are two things in it."""
    result = evaluation["results"]["trained"]
    return bool(result["life"]["returns"] != result["game"]["returns"])


def _how(evaluation: Mapping[str, Any]) -> str:
    protocol = evaluation["protocol"]
    actions = "greedy" if evaluation["greedy"] else "sampled actions"
    return ", ".join([*([protocol] if protocol else []), actions, f"evaluation seed {evaluation['seed']}"])


def _loading(exported: Exported) -> str:
    spec = exported.agent.spec
    words = consent(spec.core, spec.env_id)
    trust = f", trust_core={json.dumps(spec.core)}" if ":" in spec.core else ""
    return "\n".join(
        [
            "With deltabeast installed (`pip install .` in a copy of its source), in the folder that holds "
            "this file (`deltabeast eval hub:OWNER/NAME` fetches it from a hub):",
            "```sh",
            terminal(shlex.join(["deltabeast", "eval", ".", *words])),
            "```",
            "```python",
            "from deltabeast.agents import load_agent",
            "",
            f'agent = load_agent("."{trust})  # a torch.nn.Module to step',
            "```",
            "Weights are safetensors; loading them executes nothing." + _code_of_others(spec),
        ]
    )


def _code_of_others(spec: AgentSpec) -> str:
    """Say which code the agent needs that is neither here nor in deltabeast."""
    needed = [
        f" The {what} is code of its author's: `{name}` must be importable, as the file "
        f"{name.partition(':')[0].partition('.')[0]}.py is in the folder where a command runs."
        for what, option, name in (("core", "core", spec.core), ("environment", "env", spec.env_id))
        if name and needs_consent(option, name)
    ]
    return markdown("".join(needed))


def _training(exported: Exported) -> str:
    made = exported.versions
    with_what = [f"{name} {made[name]}" for name in ("deltabeast", "commit", "torch") if made.get(name)]
    usual = {**vars(TrainConfig()), "cores": []}  # a tuple is a list in JSON
    named = ("game", "env", "core", "config", "resume", "run_dir")
    options = {
        name: value for name, value in exported.options.items()
        if name not in named and value != usual.get(name)
    }  # fmt: skip
    sentence = f"With {', '.join(with_what)}." if with_what else "It is not known with which versions."
    lines = [markdown(sentence)]
    if options:
        listed = ", ".join(f"`{name}` {_plain(value)}" for name, value in options.items())
        again = f"Again: `{_again(exported)}`"
        lines.append(markdown(f"{again}. Options that are not the defaults: {listed}."))
    return "\n\n".join(lines)


def _again(exported: Exported) -> str:
    """Return the command that trains with the same options; it names what it would import."""
    words = ["deltabeast", "train", "--config", "config.json"]
    for option, name in (("core", exported.agent.spec.core), ("env", exported.agent.spec.env_id)):
        if name and needs_consent(option, name):
            words += option_words(option, name)
    return shlex.join(words)


def _plain(value: object) -> str:
    if isinstance(value, dict):
        return " ".join(f"{name} {each}" for name, each in value.items())
    return str(value)
