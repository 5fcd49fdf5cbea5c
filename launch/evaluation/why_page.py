"""`deltabeast eval --why N`: a page of the moments at which the memory mattered most, and its pictures."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files as resources
from pathlib import Path

import torch
from PIL import Image
from rich.console import Console

from ...agents import files
from ..comparison.html import document
from ..config import EvalConfig
from ..errors import RunError, writing
from ..foreign import html
from ..output import say
from ..runs.directory import changed_words, eval_command, versions
from ..units import count
from .examination import Behaviour
from .loading import Loaded
from .recording import game, title_of
from .stretch import Play, Stretch
from .why import Moment, Source, explain
from .why_play import MOST_NUMBERS, pictures, screens

SHARE, EFFECT = "share taken out", "without its writes, rerun"
_MOST_ACTIONS = 6
"""Actions with bars of their own."""

NUMBERS = (
    (
        "KL",
        "How much the policy changes when the memory is wiped: KL(with the memory ‖ wiped), in nats. The "
        "moments are the steps, counted from 0, where it is largest; not an episode's first, with nothing to "
        "wipe.",
    ),
    (
        "with the memory",
        "Policy and value V, computed again from the recorded observations and rewards: what was played, up "
        "to rounding.",
    ),
    (
        "wiped",
        "The same observation and reward, but the core's whole state as an episode begins, any time features "
        "included.",
    ),
    (
        "% of the reading",
        "What a memory reads is a sum over past writes, with decays and erasures since, and with keys, "
        "strengths and queries as they came out. Of a step's share s in the reading y, (s·y) / (y·y) is "
        "given: signed, and 100% in all over the steps of the episode. The readings of all heads and layers "
        "count as one vector, so that a layer weighs as its y·y does; beside that are the percentages of "
        "each layer alone. Shown are the three past steps with the largest percentages, whatever their sign.",
    ),
    (
        SHARE,
        "Policy and value at this step where no layer's reading has that past step's share: u = 0 in its "
        "writes, and all keys, strengths and queries of memories as they came out; what follows a reading is "
        "computed again. It is not what would have happened without the writes.",
    ),
    (
        EFFECT,
        "The effect of the writes: right after that past step they are taken out of the state, and the core "
        "computes all steps from there to this one again, so that later keys, strengths, queries and writes "
        "change. u = 0 in fast weights and in momentum; the step's decays and erasures stay, as does what it "
        "adds to a normaliser, or writes to matrices that have no share (M of delta_delta_net, W1 of "
        "delta_mlp). In attention the step's key and value are masked out of the window; weights that sum "
        "to 1 do so without them. Observations, rewards and actions are those recorded. With one "
        "layer of fast weights whose queries, keys, values and strengths do not read them, share and effect "
        "agree.",
    ),
)
"""Terms of the page and what they are."""
PICTURES = {
    "game": "The game's screen and, below it, the frames that the agent sees, the newest one on the right.",
    "images": "The image that the agent sees; if it has not three channels, each of them in grey.",
    "numbers": "The numbers that the agent sees, each relative to its largest size in this play.",
}
"""What is shown of a step."""


def write_why(
    config: EvalConfig,
    loaded: Loaded,
    protocol: str | None,
    stretch: Stretch,
    console: Console,
) -> Path:
    """Explain a stretch of play, and write the page and its pictures to a new folder in RUN/eval.

    Returns the page's path. Raises RunError.
    """
    agent, play = stretch.agent, stretch.play
    say(console, f"explaining {count(config.why, 'step')} of {len(play.actions):,}")
    moments = explain(agent, stretch.examination, config.why)
    if not moments:
        raise RunError("--why: every episode ended at its first step, where there is no memory to wipe")
    steps = {step for moment in moments for step in (moment.step, *(each.step for each in moment.sources))}
    if protocol is None:
        shown = pictures(play, steps)
    else:
        shown = screens(play, game(agent.spec, protocol, colour=True), steps)
    encoded = {step: _png(image) for step, image in sorted(shown.items())}
    page = to_html(config, loaded, protocol, play, moments, encoded, stretch.action_names)
    name = f"why-{protocol or 'env'}-{loaded.step}-{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}"
    folder = loaded.run_dir / "eval" / name
    with writing(folder):
        for step, content in encoded.items():
            files.write(folder / f"step-{step}.png", content)
        files.write(folder / "why.html", page)
    say(console, f"saved as {folder / 'why.html'}, its pictures beside it")
    return folder / "why.html"


def _png(image: Image.Image) -> bytes:
    content = io.BytesIO()
    image.save(content, format="PNG", optimize=True)
    return content.getvalue()


def to_html(
    config: EvalConfig,
    loaded: Loaded,
    protocol: str | None,
    play: Play,
    moments: Sequence[Moment],
    encoded: Mapping[int, bytes],
    names: Sequence[str],
) -> str:
    """Return the page; `encoded` has a PNG of each step that is shown."""
    spec = loaded.agent.spec
    episodes = sum(play.begins)
    lead = (
        f"The {count(len(moments), 'step')} at which wiping the memory changes the policy most, of the first "
        f"{len(play.actions):,} of one environment ({count(episodes, 'episode')}, "
        f"{'sampled' if config.sample else 'greedy'} actions, seed {config.seed}"
        f"{f', {protocol}' if protocol else ''}). The agent was trained for {loaded.step:,} steps."
    )
    links = "".join(
        f'<li><a href="#m{n}">{n}: step {moment.step:,}, KL {moment.kl:.3g}</a></li>'
        for n, moment in enumerate(moments, 1)
    )
    kind = "numbers" if play.observations[0].ndim != 3 else "game" if spec.game else "images"
    about = ("pictures", PICTURES[kind]), *NUMBERS
    terms = "".join(f"<dt>{html(term)}</dt><dd>{html(text)}</dd>" for term, text in about)
    ours = versions()
    made = [
        ("command", command(config)),
        ("checkpoint", str(loaded.checkpoint)),
        ("deltabeast", f"{ours['deltabeast']}, commit {ours['commit'] or 'unknown'}"),
    ]
    facts = "".join(f"<dt>{html(name)}</dt><dd>{html(value)}</dd>" for name, value in made)
    drawing = _Drawing(play, encoded, names, spec.game is not None)
    sections = "\n".join(drawing.moment(n, moment) for n, moment in enumerate(moments, 1))
    links += '<li><a href="#numbers">What the numbers are</a></li>'
    body = f"""<nav aria-label="Moments"><ol>{links}</ol></nav>
<main>
{sections}
<section id="numbers"><h2>What the numbers are</h2><dl>{terms}</dl></section>
<section id="made"><h2>How this was made</h2><dl>{facts}</dl></section>
</main>"""
    style = (resources(__package__) / "why.css").read_text(encoding="utf-8").rstrip()
    return document(f"What {spec.core} remembers in {title_of(spec)}", lead, body, f"\n{style}")


def command(config: EvalConfig) -> str:
    """Return the command of an evaluation, with the options that are not the default."""
    return eval_command(config.run, *changed_words(config))


@dataclass(frozen=True)
class _Drawing:
    """Draws moments of a stretch of play as HTML."""

    play: Play
    encoded: Mapping[int, bytes]
    """A PNG of each step that is shown."""
    names: Sequence[str]
    """Of the actions."""
    is_game: bool

    def moment(self, n: int, moment: Moment) -> str:
        sources = moment.sources
        without = [each for source in sources for each in (source.minus_share, source.without_writes) if each]
        behaviours = [moment.remembering, moment.wiped, *without]
        highest = torch.stack([each.log_policy for each in behaviours]).amax(0)
        most = (
            len(highest) if len(highest) == _MOST_ACTIONS + 1 else _MOST_ACTIONS
        )  # never one alone as others
        shown = sorted(highest.argsort(descending=True, stable=True)[:most].tolist())
        usual, wiped = (int(each.log_policy.argmax()) for each in behaviours[:2])
        changes = (
            f"Likeliest: {self.names[usual]}, with the memory and wiped."
            if usual == wiped
            else f"Likeliest with the memory: {self.names[usual]}; wiped: {self.names[wiped]}."
        )
        largest = sum(source.fraction for source in sources)
        reading = (
            f"Of what the memory reads, {_percent(largest)} comes from the past steps shown, "
            f"{_percent(moment.own)} from what this step itself writes, {_percent(moment.others)} from the "
            "rest of the episode."
        )
        played = self.names[self.play.actions[moment.step]]
        now = self._column(
            f"Now: step {moment.step:,}",
            moment.step,
            f"step {moment.step - moment.begin:,} of its episode; played {played}",
            self._policy("with the memory", moment.remembering, shown, usual)
            + self._policy("wiped", moment.wiped, shown, usual),
        )
        past = "".join(self._source(source, moment.step, shown, usual) for source in sources)
        return (
            f'<section id="m{n}"><h2>{n}. Step {moment.step:,}: KL {moment.kl:.3g}</h2>'
            f"<p>{html(changes)} {html(reading)}</p>"
            f'<div class="frames">{now}{past}</div></section>'
        )

    def _source(self, source: Source, now: int, shown: Sequence[int], usual: int) -> str:
        of_layers = "".join(f"; layer {n} {_percent(each)}" for n, each in enumerate(source.by_layer, 1))
        ago = f"{count(now - source.step, 'step')} ago: {_percent(source.fraction)}"
        policies = "".join(
            self._policy(term, behaviour, shown, usual)
            if behaviour
            else f"<h4>{term} <span>{why_not}</span></h4>"
            for term, behaviour, why_not in (
                (SHARE, source.minus_share, "not for this core, whose output is not linear in the reading"),
                (
                    EFFECT,
                    source.without_writes,
                    "not for this core: its state cannot be computed from its writes",
                ),
            )
        )
        caption = f"step {source.step:,}{of_layers if len(source.by_layer) > 1 else ''}"
        return self._column(ago, source.step, caption, policies)

    def _column(self, title: str, step: int, caption: str, policies: str) -> str:
        seen = self.play.observations[step]
        alt, pixels = f"Step {step:,}: what the agent sees", ' class="pixels"'
        if self.is_game:
            alt = f"Step {step:,}: the game's screen and, below it, the frames that the agent sees"
        elif seen.ndim != 3:
            numbers = ", ".join(f"{value:.3g}" for value in seen.ravel()[:MOST_NUMBERS].tolist())
            alt, pixels = f"{alt}, the numbers {numbers}{', ...' if seen.size > MOST_NUMBERS else ''}", ""
        data = base64.b64encode(self.encoded[step]).decode()
        return (
            f'<figure><h3>{title}</h3><img{pixels} alt="{html(alt)}" src="data:image/png;base64,{data}">'
            f"<figcaption>{html(caption)}</figcaption>{policies}</figure>"
        )

    def _policy(self, term: str, behaviour: Behaviour, shown: Sequence[int], usual: int) -> str:
        """Draw probabilities as bars: of the actions `shown`, and of all others together.

        The likeliest is marked, and has another colour where it is not the `usual` one.
        """
        policy = behaviour.log_policy.exp().tolist()
        most = policy.index(max(policy))
        mark = "most" if most == usual else "most changed"
        rows = [(self.names[n], policy[n], mark if n == most else "") for n in shown]
        if len(policy) > len(shown):
            others = sum(policy) - sum(probability for _, probability, _ in rows)
            rows.append((f"{len(policy) - len(shown)} others", max(others, 0.0), ""))
        lines = "".join(
            f'<tr class="{mark}"><th scope="row">{html(name)}</th>'
            f'<td><span class="bar" style="width:{100 * probability:.1f}%"></span></td>'
            f'<td class="n">{probability:.2f}</td></tr>'
            for name, probability, mark in rows
        )
        value = f"V {float(behaviour.value):.3g}".replace("-", "−")
        return f'<h4>{term} <span>{value}</span></h4><table class="policy">{lines}</table>'


def _percent(fraction: float) -> str:
    percent = round(100 * fraction)
    return f"{percent:+}%".replace("-", "−") if percent else "0%"
