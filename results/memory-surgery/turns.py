"""Does a trained agent's memory hold the last cue where provenance says it does? Corridors of EndlessTMaze.

    python results/memory-surgery/turns.py RUN [RUN ...] [--corridors 200] [--seed 1] [--figure PNG]

RUN is a run of deltabeast/EndlessTMaze-v0 or EndlessTMazeLong-v0 whose core writes under keys in every layer.
The agent plays greedily; counted are the corridors whose cue it saw in one step and whose fork it answered at
once, as the cue said. The right answer is then the cue's step. Of each one is asked:

    cue named first   whether the cue's step has the largest share of what all layers read at the fork, in
                      size, among all steps before it in the episode; in brackets the mean of its share
    undone            whether the agent turns the other way with the cue's write taken back, as `undo@T`
                      does: the memory stood still
    undone, u = 0     the same where the step decayed and erased as it did, but wrote nothing
    random undone     the same as `undone`, of another step of the episode, drawn at random
    opposite written  whether it turns the other way after the opposite cue's write, as this agent would have
                      made it in the same step, is made right behind the cue's own (`write_again`)
    opposite inserted the same with the value of that write alone, under the key of the cue's own (`insert`)
    wiped             the same with the whole memory empty after the cue

Beside it stands the mean probability of the other turn, and how many turned where the corridor before had the
same cue, the other one, or there was none. All steps after a change are computed again from the same
observations: between cue and fork there is nothing to see.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from deltabeast.agents import Agent
from deltabeast.cores import State
from deltabeast.cores.provenance import core_shares, linear_forms
from deltabeast.cores.surgery import (
    insert,
    replace_memory,
    scale_writes,
    step_without_writes,
    write_again,
    writes_under_keys,
)
from deltabeast.launch.errors import RunError, UsageError
from deltabeast.launch.evaluation.environments import env_maker
from deltabeast.launch.evaluation.examination import Inputs
from deltabeast.launch.evaluation.loading import load
from deltabeast.launch.evaluation.stretch import play_stretch
from deltabeast.launch.evaluation.why import layer_fractions

FORWARD, LEFT, RIGHT = range(3)
CUES, FORK = slice(0, 3), 4
"""Of an observation, which is MultiDiscrete [3, 2] as one-hot numbers."""
OLDER = "other", "same"


class Corridor(NamedTuple):
    """Where it lies among the steps of a stretch of play."""

    begin: int
    """The first step of its episode."""
    cue_step: int
    fork: int
    cue: int
    """LEFT or RIGHT."""
    older: str
    """The cue of the corridor before: the same, the other, or none at an episode's beginning."""

    @property
    def other(self) -> int:
        return LEFT + RIGHT - self.cue


class Answer(NamedTuple):
    """What is found of one corridor."""

    older: str
    named: bool
    share: float
    flipped: dict[str, tuple[bool, float]]
    """By change: whether the other turn is the likeliest action, and its probability."""


def corridors(
    observations: Sequence[np.ndarray],
    begins: Sequence[bool],
    actions: Sequence[int],
    right_only: bool = True,
) -> Iterator[Corridor]:
    """Find the corridors whose cue was seen in one step and whose fork was answered at once, and rightly."""
    begin = cue_step = cue = last = shown = 0
    for t, (seen, begins_here, action) in enumerate(zip(observations, begins, actions, strict=True)):
        if begins_here:
            begin, cue, shown = t, 0, 0
        if now := int(seen[CUES].argmax()):
            if shown == 0:
                last = cue
            cue_step, cue, shown = t, now, shown + 1
        if seen[FORK]:
            if shown == 1 and action != FORWARD and (action == cue or not right_only):
                yield Corridor(begin, cue_step, t, cue, OLDER[cue == last] if last else "none")
            shown = 0 if action != FORWARD else 2  # not at once


def opposite(observation: Tensor, at: Corridor) -> Tensor:
    """Return the observation of the cue's step `[1, 5]`, had it been the other cue."""
    seen = observation[at.cue_step : at.cue_step + 1].clone()
    seen[:, [at.cue, at.other]] = seen[:, [at.other, at.cue]]
    return seen


@torch.inference_mode()
def examine(agent: Agent, inputs: Inputs, at: Corridor, random: np.random.Generator) -> Answer:
    """Name the step that the fork's reading comes from, change the memory, and see where the agent turns."""
    core = agent.core
    episode = Inputs(*(each[at.begin : at.fork + 1] for each in inputs[:3]))
    x, reset = agent.core_inputs(*episode[:2]).unsqueeze(1), episode.begins.unsqueeze(1)
    reward = inputs.reward[at.cue_step : at.cue_step + 1]
    mirrored = agent.core_input(agent.trunk_features(opposite(inputs.observation, at)), reward).unsqueeze(1)
    cue, fork = at.cue_step - at.begin, at.fork - at.begin
    before, after = states_around(agent, x, reset, cue)

    parts = [each for each in core_shares(core, x, agent.initial_state(1), reset, fork) if each is not None]
    _, fractions = layer_fractions(parts)
    named = int(fractions[:fork].abs().argmax()) == cue

    def turn(state: State, step: int) -> tuple[bool, float]:
        """Play on from the state after `step`."""
        y, _ = core.unroll(x[step + 1 :], state, reset[step + 1 :])
        logits, _ = agent.heads(y[-1, 0])
        return int(logits.argmax()) == at.other, float(logits.softmax(-1)[at.other])

    none, every = torch.zeros(1, device=x.device), torch.ones(1, dtype=torch.bool, device=x.device)
    flipped = {"as it was": turn(after, cue)}
    flipped["undone"] = turn(scale_writes(core, before, after, reset[cue], none), cue)
    emptied = step_without_writes(core, x[cue], before, reset[cue])
    if emptied is not None:
        flipped["undone, u = 0"] = turn(emptied, cue)
    if fork > 1:
        j = int(random.choice([step for step in range(fork) if step != cue]))
        flipped["random undone"] = turn(
            scale_writes(core, *states_around(agent, x, reset, j), reset[j], none), j
        )
    own = linear_forms(core, x[cue : cue + 1], before, reset[cue : cue + 1])
    other = linear_forms(core, mirrored, before, reset[cue : cue + 1])
    flipped["opposite written"] = turn(write_again(core, after, other, 0), cue)
    keys = [form.writes.k[0] for form in own if form is not None]
    values = [form.writes.u[0] for form in other if form is not None]
    flipped["opposite inserted"] = turn(insert(core, after, keys, values), cue)
    flipped["wiped"] = turn(replace_memory(core, after, core.initial_state(1, x.device), every), cue)
    return Answer(at.older, named, float(fractions[cue]), flipped)


def states_around(agent: Agent, x: Tensor, reset: Tensor, step: int) -> tuple[State, State]:
    """Return the states before and after a step of an episode."""
    before = agent.initial_state(1)
    if step:
        _, before = agent.core.unroll(x[:step], before, reset[:step])
    return before, agent.core.step(x[step], before, reset[step])[1]


def table(answers: Sequence[Answer]) -> str:
    """Write each measure with the share of the corridors."""
    before = [*OLDER, "none"]
    count = len(answers)
    named, share = (sum(getattr(answer, what) for answer in answers) / count for what in ("named", "share"))
    lines = [
        f"cue named first   {named:7.0%}   (share {share:.2f})",
        "",
        f"{'':17} {'turned':>7} {'P(other)':>9}   cue before: " + "".join(f"{each:>12}" for each in before),
    ]
    for name in dict.fromkeys(name for answer in answers for name in answer.flipped):
        found = [(answer.older, *answer.flipped[name]) for answer in answers if name in answer.flipped]
        turned = [flips for _, flips, _ in found]
        of_each = [[flips for older, flips, _ in found if older == each] for each in before]
        lines.append(
            f"{name:17} {sum(turned) / len(turned):7.0%} {sum(p for *_, p in found) / len(found):9.2f}"
            + " " * 15
            + "".join(f"{f'{sum(each)} of {len(each)}':>12}" for each in of_each)
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", metavar="RUN", type=Path, nargs="+")
    parser.add_argument("--corridors", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--figure", metavar="PNG", type=Path, help="draw what turns the agents")
    options = parser.parse_args()
    if options.corridors < 1:
        parser.error(f"--corridors {options.corridors}; give at least 1")
    found: list[tuple[str, list[Answer]]] = []
    for run in options.runs:
        try:
            loaded = load(run, "latest", None, print)
        except (UsageError, RunError) as error:
            parser.error(str(error))
        agent = loaded.agent.eval()
        if "EndlessTMaze" not in (agent.spec.env_id or "") or not writes_under_keys(agent.core):
            parser.error(
                f"{run}: give a run of deltabeast/EndlessTMaze-v0 whose core writes under keys in every layer"
            )
        answers = measure(agent, options.corridors, options.seed)
        found.append((agent.spec.core, answers))
        print(f"\n{run}: {agent.spec.core}, step {loaded.step:,}, {agent.spec.env_id}, seed {options.seed}")
        print(table(answers) if answers else "no corridor was answered as its cue said")
    if options.figure and all(answers for _, answers in found):
        draw(found, options.figure)


def draw(found: Sequence[tuple[str, Sequence[Answer]]], target: Path) -> None:
    """Draw how many turns each change flips: a dot a run, apart by what the corridor before had shown."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    changes = {
        "random undone": "another step's write undone",
        "undone": "the cue's write undone",
        "opposite written": "opposite cue written after it",
        "opposite inserted": "opposite cue inserted under its key",
    }
    colours = dict(
        zip(dict.fromkeys(core for core, _ in found), ("#0072b2", "#d55e00", "#009e73"), strict=False)
    )
    figure, axes = plt.subplots(1, 2, figsize=(9, 2.9), sharey=True, layout="constrained")
    for panel, older in zip(axes, OLDER, strict=True):
        for n, (core, answers) in enumerate(found):
            for row, change in enumerate(changes):
                flips = [
                    each.flipped[change][0]
                    for each in answers
                    if each.older == older and change in each.flipped
                ]
                y = row + 0.09 * (n - (len(found) - 1) / 2)
                panel.plot(
                    100 * sum(flips) / len(flips), y, "o", color=colours[core], clip_on=False, markersize=5
                )
        panel.set_title(f"the corridor before had the {older} cue", fontsize=10)
        panel.set_xlim(0, 100)
        panel.set_xticks((0, 25, 50, 75))
        panel.set_xlabel("% of turns that flip")
        panel.grid(axis="x", alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
    axes[0].set_yticks(range(len(changes)), changes.values())
    axes[0].invert_yaxis()
    handles = [plt.Line2D([], [], marker="o", linestyle="", color=colour) for colour in colours.values()]
    figure.legend(handles, colours, loc="outside upper right", ncols=len(colours), frameon=False)
    figure.savefig(target, dpi=150)


def measure(agent: Agent, count: int, seed: int) -> list[Answer]:
    """Examine `count` corridors; fewer if 40 steps of play for each do not have as many."""
    env = env_maker(agent.spec, None, None)(1)
    play = play_stretch(agent, env, seed, greedy=True, episodes=count, most_steps=40 * count)
    found = list(corridors(play.observations, play.begins, play.actions))[:count]
    inputs, random = play.inputs("cpu"), np.random.default_rng(seed)
    return [examine(agent, inputs, corridor, random) for corridor in found]


if __name__ == "__main__":
    main()
