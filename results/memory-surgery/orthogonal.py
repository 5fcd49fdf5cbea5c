"""Do writes under orthogonal keys leave a cue alone, and do trained agents make their keys so?

    python results/memory-surgery/orthogonal.py RUN [RUN ...] [--corridors 100] [--length N] [--figure PNG]

RUN is an agent of a T-maze as for turns.py, whose memory writes by the delta rule without decay: `delta_net`
or `rdn`. A write `W = W + (u - W e) kᵀ` changes what is read under the cue's key c by (u - W e) (k·c), so by
nothing at k·c = 0. The *cue's head* has the largest share of the cue in what is read at the fork. Of it,
of the other heads, and of an agent before training that is given the same inputs, printed are medians over
corridors; of the writes after the cue's own, up to the fork, means within a corridor:

    fraction      of what the head reads at the fork that of the cue's write, (share·y) / (y·y)
    norm          |c|; of positive keys whose sum is 1 from K^-1/2, all alike, to 1, all in one entry
    overlap       |cos(k, c)| of a later write's key and the cue's
    opposite      |cos(k, c)| of the key that the opposite cue would have been written under, and the cue's
    query         |cos(q, c)| of the fork's query and the cue's key
    strength      β of a later write, and of the cue's
    change        by how much a later write changes what is read under c, relative to it
    left          which part of what the cue's write put under c is still read there at the fork
    keys          the same had all later writes strength 1: what keys alone would leave
    strengths     the same had all later writes the cue's key: what strengths alone would leave

and what two vectors overlap that are drawn at random, and two keys made of such. Then values are put where
they do not belong (`insert`), right after the cue: that of the opposite cue's write, under keys of a given
cosine with the cue's, in a direction drawn at random, in every layer and head or in the cue's head alone;
under such that are orthogonal to the fork's query, too; under the key that the agent itself makes one step
later; and, where keys are positive, under the one vector that is the nearest to orthogonal. Counted are the
turns that flip. With --length corridors are longer than in training: only the first table is printed, that
of forks answered wrongly apart.

RUN may also be an Atari agent with fast weights: then it is the overlap of keys some steps apart, and what is
left under the older one, of an episode with sampled actions: medians over steps, of heads their median and
the best one.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from turns import Corridor, corridors, opposite, states_around

from deltabeast.agents import Agent
from deltabeast.cores import State
from deltabeast.cores.backbone import FastWeightCore
from deltabeast.cores.linear import LinearMemory
from deltabeast.cores.linear_form import DeltaForm
from deltabeast.cores.provenance import fractions, linear_forms, readings, shares
from deltabeast.cores.surgery import erase_keys, insert
from deltabeast.launch.evaluation.environments import env_maker
from deltabeast.launch.evaluation.examination import Inputs
from deltabeast.launch.evaluation.loading import load
from deltabeast.launch.evaluation.stretch import play_stretch

OVERLAPS = (0.0, 0.25, 0.5, 0.75, 1.0)
LAGS = (1, 16, 64, 256)


class Found(NamedTuple):
    """Of one corridor, by layer and head `[L, H]`."""

    share: Tensor
    """Size of the cue's share of what is read at the fork."""
    fraction: Tensor
    norm: Tensor
    overlap: Tensor
    opposite: Tensor
    query: Tensor
    strength: Tensor
    cue_strength: Tensor
    change: Tensor
    left: Tensor
    keys: Tensor
    strengths: Tensor


def part(form: DeltaForm, first: int, last: int) -> DeltaForm:
    """Return steps first to last of a form whose steps write once; what was there before is left out."""
    writes = type(form.writes)(*(x[first : last + 1] for x in form.writes))
    return form._replace(writes=writes, reset=form.reset[first : last + 1], W=torch.zeros_like(form.W))


def under(form: DeltaForm, key: Tensor) -> DeltaForm:
    """Return a form all of whose steps read under one key `[B, H, K]`."""
    return form._replace(writes=form.writes._replace(q=key.expand_as(form.writes.q)))


def left(form: DeltaForm) -> Tensor:
    """Return which part of the first step's value is still read under its key at the last step: `[H]`."""
    read = under(form, form.writes.k[0, :, :, 0])
    first, last = (shares(read, t).writes[0, 0, :, 0] for t in (0, len(form.reset) - 1))
    return (first * last).sum(-1) / first.square().sum(-1)


def survey_layer(form: DeltaForm, mirrored: DeltaForm) -> tuple[Tensor, ...]:
    """Return the numbers of `Found` of a layer, `[H]` each, of a form from the cue's step to the fork."""
    k, e = (x[:, 0, :, 0] for x in (form.writes.k, form.writes.e))  # [T, H, K]
    key, fork = k[0], len(k) - 1
    y = readings(under(form, key.unsqueeze(0)))[:, 0]
    beta = e.norm(dim=-1) / k.norm(dim=-1)
    sure = form.writes._replace(e=form.writes.k)
    repeated = form.writes._replace(
        k=form.writes.k[:1].expand_as(form.writes.k), e=form.writes.k[:1] * beta[:, None, :, None, None]
    )
    parts = shares(form, fork)
    return (
        parts.writes[0, 0, :, 0].norm(dim=-1),
        fractions(parts).steps[0, 0],
        key.norm(dim=-1),
        F.cosine_similarity(k[1:], key, dim=-1).abs().mean(0),
        F.cosine_similarity(mirrored.writes.k[0, 0, :, 0], key, dim=-1).abs(),
        F.cosine_similarity(form.writes.q[fork, 0], key, dim=-1).abs(),
        beta[1:].mean(0),
        beta[0],
        ((y[1:] - y[:-1]).norm(dim=-1) / y[:-1].norm(dim=-1)).mean(0),
        left(form),
        left(form._replace(writes=sure)),
        left(form._replace(writes=repeated)),
    )


@torch.inference_mode()
def survey(agent: Agent, inputs: Inputs, at: Corridor) -> Found:
    """Measure one corridor."""
    _, _, own, mirrored = around(agent, inputs, at)
    by_layer = [survey_layer(*pair) for pair in zip(own, mirrored, strict=True)]
    return Found(*map(torch.stack, zip(*by_layer, strict=True)))


def around(
    agent: Agent, inputs: Inputs, at: Corridor
) -> tuple[Tensor, State, list[DeltaForm], list[DeltaForm]]:
    """Return what the core reads after the cue `[T, 1, n]`, its state then, what each layer does from the cue
    to the fork, and what it would have done in the cue's step at the opposite cue."""
    steps = Inputs(*(each[at.begin : at.fork + 1] for each in inputs[:3]))
    x, reset = agent.core_inputs(*steps[:2]).unsqueeze(1), steps.begins.unsqueeze(1)
    cue = at.cue_step - at.begin
    before, after = states_around(agent, x, reset, cue)
    reward = inputs.reward[at.cue_step : at.cue_step + 1]
    other = agent.core_input(agent.trunk_features(opposite(inputs.observation, at)), reward).unsqueeze(1)
    own = linear_forms(agent.core, x[cue:], before, reset[cue:])
    mirrored = linear_forms(agent.core, other, before, reset[cue : cue + 1])
    return x[cue + 1 :], after, *([f for f in each if isinstance(f, DeltaForm)] for each in (own, mirrored))


def with_overlap(key: Tensor, overlap: float, generator: torch.Generator) -> Tensor:
    """Return vectors as long as keys `[..., K]`, at this cosine with them, else in a random direction."""
    unit = F.normalize(key.double(), dim=-1)
    other = torch.randn(key.shape, generator=generator, dtype=torch.double)
    other = F.normalize(other - (other * unit).sum(-1, keepdim=True) * unit, dim=-1)
    turned = overlap * unit + (1 - overlap**2) ** 0.5 * other
    return (turned * key.double().norm(dim=-1, keepdim=True)).to(key)


def smallest_entry(key: Tensor) -> Tensor:
    """Return unit vectors along the smallest entry of keys `[..., K]`, of all positive ones the nearest to
    orthogonal."""
    return F.one_hot(key.argmin(-1), key.shape[-1]).to(key)


@torch.inference_mode()
def surgery(
    agent: Agent, inputs: Inputs, at: Corridor, head: tuple[int, int], generator: torch.Generator
) -> dict[str, bool]:
    """Return which keys turn the agent, if the opposite cue's value is put under them after the cue."""
    x, after, own, other = around(agent, inputs, at)
    keys, following = ([form.writes.k[t] for form in own] for t in (0, 1))  # [1, H, 1, K]
    # Where the opposite cue's key points away from the cue's, its value is what is read under it negated.
    values = [
        form.writes.u[0] * torch.where((form.writes.k[0] * key).sum(-1, keepdim=True) < 0, -1, 1)
        for key, form in zip(keys, other, strict=True)
    ]
    alone = [torch.zeros_like(key) for key in keys]  # keys of zeros write nothing
    alone[head[0]][:, head[1]] = 1

    def flips(keys: Sequence[Tensor]) -> bool:
        y, _ = agent.core.unroll(x, insert(agent.core, after, keys, values), torch.zeros(x.shape[:2]) > 0)
        return int(agent.heads(y[-1, 0])[0].argmax()) == at.other

    found = {}
    for overlap in OVERLAPS:
        turned = [with_overlap(key, overlap, generator) for key in keys]
        found[f"overlap {overlap}"] = flips(turned)
        found[f"overlap {overlap}, cue's head"] = flips(
            [key * here for key, here in zip(turned, alone, strict=True)]
        )
    both = [
        torch.cat((key, form.writes.q[-1].unsqueeze(-2)), -2) for key, form in zip(keys, own, strict=True)
    ]
    drawn = [torch.randn(key.shape, generator=generator) for key in keys]
    found["orthogonal to the query, too"] = flips(
        [erase_keys(each, pair) for each, pair in zip(drawn, both, strict=True)]
    )
    found["the next step's key"] = flips(following)
    if all((key >= 0).all() for key in keys):
        found["smallest entry"] = flips([smallest_entry(key) for key in keys])
    return found


def untrained(agent: Agent, seed: int) -> Agent:
    torch.manual_seed(seed)
    return Agent(agent.spec).eval()


def chance(agent: Agent, pairs: int = 10_000) -> tuple[float, float]:
    """Return the mean |cos| of random vectors of a key's size, and of keys made of such."""
    assert isinstance(agent.core, FastWeightCore)
    memory = agent.core.memories()[0]
    drawn = torch.randn(2, pairs, memory.head_size)
    keys = memory.features(drawn) if isinstance(memory, LinearMemory) else drawn.softmax(-1)
    return tuple(float(F.cosine_similarity(*each, dim=-1).abs().mean()) for each in (drawn, keys))


def cue_head(found: Sequence[Found]) -> tuple[int, int]:
    """Return layer and number of the head with the largest share of the cue, on average."""
    share = torch.stack([each.share for each in found]).mean(0)
    return divmod(int(share.argmax()), share.shape[1])


def medians(found: Sequence[Found], heads: Tensor) -> str:
    """Write the medians over corridors of the mean over some heads, bool `[L, H]`."""
    rows = [[float(each[heads].mean()) for each in corridor[1:]] for corridor in found]
    return "".join(f"{value:13.3f}" for value in np.median(rows, 0))


def survey_run(
    agent: Agent, options: argparse.Namespace, generator: torch.Generator
) -> tuple[Mapping[str, float], Mapping[str, float]]:
    """Print the tables of one agent, and return overlaps, and flips by the key that was written under."""
    spec = replace(agent.spec, env_options={"length": options.length}) if options.length else agent.spec
    count, seed = options.corridors, options.seed
    play = play_stretch(
        agent,
        env_maker(spec, None, None)(1),
        seed,
        greedy=True,
        episodes=count,
        most_steps=(options.length or 40) * count,
    )
    all_of_them = corridors(play.observations, play.begins, play.actions, right_only=False)
    found, inputs = [*all_of_them][:count], play.inputs("cpu")
    right = [play.actions[at.fork] == at.cue for at in found]
    ours = [survey(agent, inputs, at) for at in found]
    good = [each for each, is_right in zip(ours, right, strict=True) if is_right]
    bad = [each for each, is_right in zip(ours, right, strict=True) if not is_right]
    head = cue_head(good)
    here = torch.zeros_like(ours[0].share, dtype=torch.bool)
    here[head] = True
    print(f"answered rightly {len(good)} of {len(found)}; the cue's head is {head[1]} of layer {head[0]}")
    print(f"{'':24}" + "".join(f"{name:>13}" for name in Found._fields[1:]))
    print(f"{'cue’s head':24}" + medians(good, here))
    print(f"{'other heads':24}" + medians(good, ~here))
    if bad:
        print(f"{'cue’s head, wrong turns':24}" + medians(bad, here))
        remains = [[float(each.left[head]) for each in group] for group in (good, bad)]
        higher = np.mean([a > b for a in remains[0] for b in remains[1]])
        print(f"more is left at a right turn than at a wrong one in {higher:.0%} of pairs")
    if options.length:
        return {}, {}
    fresh = untrained(agent, seed)
    before = [survey(fresh, inputs, at) for at in found]
    print(f"{'before training':24}" + medians(before, torch.ones_like(here)))
    print("random vectors overlap {:.3f}, keys of such {:.3f}".format(*chance(agent)))
    flipped = [
        surgery(agent, inputs, at, head, generator)
        for at, is_right in zip(found, right, strict=True)
        if is_right
    ]
    flips = {name: sum(each[name] for each in flipped) / len(flipped) for name in flipped[0]}
    for name, share in flips.items():
        print(f"{name:30}{share:7.1%}")

    def overlap(found: Sequence[Found], heads: Tensor) -> float:
        return float(np.median([float(each.overlap[heads].mean()) for each in found]))

    of_keys = {
        "before training": overlap(before, torch.ones_like(here)),
        "other heads": overlap(good, ~here),
        "the cue's head": overlap(good, here),
    }
    return of_keys, flips


@torch.inference_mode()
def survey_game(agent: Agent, seed: int, steps: int = 1200) -> None:
    """Print how much keys some steps apart overlap in a game, and what is left under the older."""
    play = play_stretch(
        agent,
        env_maker(agent.spec, agent.spec.protocol, 1)(1),
        seed,
        greedy=False,
        episodes=1,
        most_steps=steps,
    )
    inputs = play.inputs("cpu")
    begins = inputs.begins.unsqueeze(1)
    print(
        f"{len(begins)} steps; random vectors overlap {{:.3f}}, keys of such {{:.3f}}".format(*chance(agent))
    )
    print(f"{'':32}" + "".join(f"{f'{lag} later':>12}" for lag in LAGS))
    for name, player in (("trained", agent), ("before training", untrained(agent, seed))):
        x = player.core_inputs(*inputs[:2]).unsqueeze(1)
        forms = linear_forms(player.core, x, player.initial_state(1), begins)
        for layer, form in enumerate(forms):
            starts = range(64, len(x) - max(LAGS), 16)
            k = form.writes.k[:, 0, :, 0]
            cosines = [F.cosine_similarity(k[lag:], k[:-lag], dim=-1).abs() for lag in LAGS]
            remains = [torch.stack([left(part(form, c, c + lag)) for c in starts]) for lag in LAGS]
            for what, values, best in (("overlap", cosines, torch.amin), ("left", remains, torch.amax)):
                print(f"{name}, layer {layer + 1}, {what}")
                for heads, of_heads in (("all heads", torch.median), ("best head", best)):
                    row = (float(of_heads(each.median(0).values)) for each in values)
                    print(f"    {heads:28}" + "".join(f"{value:12.3f}" for value in row))


def draw(found: Sequence[tuple[str, Mapping[str, float], Mapping[str, float]]], target: Path) -> None:
    """Draw overlaps, a line a run, and how many turns flip by the overlap of the inserted key."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    cores = dict.fromkeys(name for name, *_ in found)
    colours = dict(zip(cores, ("#0072b2", "#d55e00", "#009e73"), strict=False))
    figure, (left_axes, right_axes) = plt.subplots(1, 2, figsize=(9, 3), layout="constrained")
    for name, overlaps, flips in found:
        left_axes.plot(overlaps.values(), range(len(overlaps)), "o-", color=colours[name], alpha=0.7)
        turned = [100 * flips[f"overlap {overlap}"] for overlap in OVERLAPS]
        right_axes.plot(OVERLAPS, turned, "o-", color=colours[name], alpha=0.7, clip_on=False)
    left_axes.set_yticks(range(len(found[0][1])), [*found[0][1]])
    left_axes.set_xlim(0, 1)
    left_axes.set_xlabel("overlap of later keys with the cue's")
    right_axes.set_ylim(0, 100)
    right_axes.set_xlabel("overlap of an inserted key with the cue's")
    right_axes.set_ylabel("% of turns that flip")
    for axes in (left_axes, right_axes):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.3)
    handles = [plt.Line2D([], [], marker="o", color=colour) for colour in colours.values()]
    figure.legend(handles, colours, loc="outside upper right", ncols=len(colours), frameon=False)
    figure.savefig(target, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", metavar="RUN", type=Path, nargs="+")
    parser.add_argument("--corridors", type=int, default=100)
    parser.add_argument("--length", type=int, default=0, help="of the longest corridors, instead of 8")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--figure", metavar="PNG", type=Path)
    options = parser.parse_args()
    generator = torch.Generator().manual_seed(options.seed)
    drawn = []
    for run in options.runs:
        agent = load(run, "latest", None, print).agent.eval()
        feature_map = agent.spec.core_options.get("feature_map")
        name = agent.spec.core + (f", {feature_map} keys" if feature_map else "")
        print(f"\n{run}: {name}", flush=True)
        if agent.spec.game:
            survey_game(agent, options.seed)
        else:
            drawn.append((name, *survey_run(agent, options, generator)))
    if options.figure:
        draw(drawn, options.figure)


if __name__ == "__main__":
    main()
