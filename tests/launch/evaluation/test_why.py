"""Moments at which the memory mattered: which, what they drew on, what is left without it, and their page."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import Tensor, nn
from torch.distributions import Categorical, kl_divergence

from deltabeast.agents import Agent, AgentSpec, save_checkpoint
from deltabeast.cores import State, core_names
from deltabeast.cores.backbone import FastWeightCore
from deltabeast.cores.generalised import GeneralisedMemory
from deltabeast.cores.linear_form import DeltaForm, LinearForm, Writes, join, one_write
from deltabeast.cores.observe import watch_traces
from deltabeast.cores.provenance import core_shares, readings, shares, without_write
from deltabeast.envs import EnvironmentFailed, make_vector_env
from deltabeast.envs.atari import AtariGames
from deltabeast.launch.cli import main
from deltabeast.launch.config import EvalConfig
from deltabeast.launch.evaluation import stretch
from deltabeast.launch.evaluation.command import evaluate_run
from deltabeast.launch.evaluation.examination import Inputs, examine
from deltabeast.launch.evaluation.loading import Loaded
from deltabeast.launch.evaluation.stretch import Play, play_stretch
from deltabeast.launch.evaluation.video import Trace, replay
from deltabeast.launch.evaluation.why import (
    Moment,
    _minus_shares,
    check_core,
    explain,
    layer_fractions,
    strongest,
)
from deltabeast.launch.evaluation.why_page import command, to_html
from deltabeast.launch.evaluation.why_play import bars, pictures, screens, side_by_side

OPTIONS = {"hidden_size": 8, "num_heads": 2, "num_layers": 2, "ff_size": 8}
MAZE = "deltabeast/EndlessTMaze-v0"


def make_agent(core: str = "rdn", **options: Any) -> Agent:
    """With weights large enough for the memory to matter."""
    agent = Agent(AgentSpec((3,), 4, core, "mlp", {**OPTIONS, **options})).eval()
    with torch.no_grad():
        agent.policy.weight.mul_(5)
    return agent


def make_inputs(steps: int = 24, begins: tuple[int, ...] = (0, 9), allowed: Tensor | None = None) -> Inputs:
    begin = torch.zeros(steps, dtype=torch.bool)
    begin[list(begins)] = True
    return Inputs(torch.randn(steps, 3), torch.randn(steps), begin, allowed)


def explained(agent: Agent, inputs: Inputs, count: int) -> list[Moment]:
    return explain(agent, examine(agent, inputs), count)


class Actor:
    """Acts step by step, and remembers states, linear forms and outputs of each step."""

    def __init__(self, agent: Agent, inputs: Inputs) -> None:
        self.agent, self.inputs = agent, inputs
        self.logits: list[Tensor] = []
        self.values: list[Tensor] = []
        self.states = [agent.initial_state(1)]
        self.forms: list[list[LinearForm]] = []

        def collect(layer: int, memory: Any, trace: Any) -> None:
            self.forms[-1].append(memory.linear_form(trace))

        with watch_traces(agent.core, collect), torch.no_grad():
            for t in range(len(inputs.reward)):
                self.forms.append([])
                output, state = agent.act(*self.step(t), self.states[-1], greedy=True)
                self.logits.append(output.policy_logits[0])
                self.values.append(output.baseline[0])
                self.states.append(state)

    def step(self, t: int) -> tuple[Tensor, Tensor, Tensor]:
        return (
            self.inputs.observation[t : t + 1],
            self.inputs.reward[t : t + 1],
            self.inputs.begins[t : t + 1],
        )

    def joined(self, moment: Moment) -> list[LinearForm]:
        """Forms by layer of the moment's episode so far."""
        steps = self.forms[moment.begin : moment.step + 1]
        return [join([forms[layer] for forms in steps]) for layer in range(len(steps[0]))]


def test_moments_are_the_largest_changes_by_a_wiped_state(seed: int) -> None:
    """Against an agent that acts step by step, and from `initial_state`."""
    agent, inputs = make_agent(), make_inputs(begins=(0, 9, 10))
    actor, divergences = Actor(agent, inputs), []
    for t, logits in enumerate(actor.logits):
        seen, reward, _ = actor.step(t)
        with torch.no_grad():
            output, _ = agent.act(seen, reward, torch.tensor([False]), agent.initial_state(1))
        wiped = Categorical(logits=output.policy_logits[0])
        divergences.append((float(kl_divergence(Categorical(logits=logits), wiped)), t, output))
    assert all(divergences[t][0] == pytest.approx(0, abs=1e-6) for t in (0, 9, 10))
    expected = sorted(divergences, key=lambda each: each[0], reverse=True)[:5]
    moments = explained(agent, inputs, 5)
    assert [moment.step for moment in moments] == [t for _, t, _ in expected]
    for moment, (kl, t, wiped_output) in zip(moments, expected, strict=True):
        assert moment.kl == pytest.approx(kl, rel=1e-3) and kl > 1e-4
        assert moment.begin == max(b for b in (0, 9, 10) if b <= t)
        torch.testing.assert_close(moment.remembering.log_policy.float(), actor.logits[t].log_softmax(-1))
        torch.testing.assert_close(moment.remembering.value, actor.values[t])
        torch.testing.assert_close(
            moment.wiped.log_policy.float(), wiped_output.policy_logits[0].log_softmax(-1)
        )
        torch.testing.assert_close(moment.wiped.value, wiped_output.baseline[0])


def test_no_moment_begins_an_episode(seed: int) -> None:
    agent = make_agent()
    moments = explained(agent, make_inputs(6, (0, 1, 2, 4)), 10)
    assert sorted(moment.step for moment in moments) == [3, 5]
    assert [len(moment.sources) for moment in moments] == [1, 1]
    assert explained(agent, make_inputs(3, (0, 1, 2)), 10) == []


@pytest.mark.parametrize("core", ["rdn", "softmax_attention", "delta_rnn"])
def test_shares_are_those_of_an_actors_single_steps(core: str, seed: int) -> None:
    """Over layers and heads as if all readings were one vector, in float64."""
    agent, inputs = make_agent(core), make_inputs()
    actor = Actor(agent, inputs)
    for moment in explained(agent, inputs, 4):
        t = moment.step - moment.begin
        parts = [shares(form, t) for form in actor.joined(moment)]
        vectors = torch.cat([part.writes.sum(3).flatten(1) for part in parts], 1).double()  # [t + 1, all]
        y = torch.cat([part.reading.flatten() for part in parts]).double()
        expected = (vectors @ y / (y @ y)).tolist()
        order = sorted(range(t), key=lambda j: abs(expected[j]), reverse=True)[:3]
        assert [source.step - moment.begin for source in moment.sources] == order
        assert moment.own == pytest.approx(expected[t], rel=1e-3, abs=1e-5)
        for source, j in zip(moment.sources, order, strict=True):
            assert source.fraction == pytest.approx(expected[j], rel=1e-3, abs=1e-5)
            for layer, part in enumerate(parts):
                of_layer, reading = part.writes[j].sum(2).flatten(), part.reading.flatten()
                alone = float(of_layer @ reading / (reading @ reading))
                assert source.by_layer[layer] == pytest.approx(alone, rel=1e-3, abs=1e-4)
        fractions = [source.fraction for source in moment.sources]
        assert sum(fractions) + moment.own + moment.others == pytest.approx(1, abs=1e-5)
        _, total = layer_fractions(parts)
        torch.testing.assert_close(total.tolist(), expected, rtol=1e-3, atol=1e-5)


def test_the_strongest_fractions_are_the_largest_in_size() -> None:
    assert strongest(torch.tensor([0.1, -0.5, 0.3, 0.3, 0.2])) == [1, 2, 3]
    assert strongest(torch.tensor([0.1, -0.5])) == [1, 0]


@pytest.mark.parametrize("core", ["rdn", "delta_product"])
def test_a_share_is_taken_out_of_every_layers_reading(core: str, seed: int) -> None:
    """The network by hand, from readings of which u = 0 in all writes of one step."""
    agent, inputs = make_agent(core), make_inputs()
    actor = Actor(agent, inputs)
    network = agent.core
    assert isinstance(network, FastWeightCore)
    with torch.no_grad():
        features = agent.core_inputs(*inputs[:2])
    for moment in explained(agent, inputs, 3):
        t, forms = moment.step - moment.begin, actor.joined(moment)
        for source in moment.sources:
            with torch.no_grad():
                x: Any = network.input_proj(features[moment.step])
                for layer, form in zip(network.layers, forms, strict=True):
                    y = without_write(form, source.step - moment.begin)[t, 0].flatten()
                    x = x + layer.out(y)  # type: ignore[operator]
                    x = x + layer.ff(layer.ff_norm(x))  # type: ignore[operator]
                logits, value = agent.heads(x)
            assert source.minus_share is not None
            torch.testing.assert_close(source.minus_share.log_policy.float(), logits.log_softmax(-1))
            torch.testing.assert_close(source.minus_share.value, value)
            assert not torch.allclose(source.minus_share.value, moment.remembering.value, atol=1e-6)


COLUMNS = {
    "momentum_delta_net": {0: 0, 1: 0},
    "delta_delta_net": {1: 0},
    "delta_rnn": {0: 0, 1: 4},
    "delta_lstm": {0: 0, 1: 4},
}
"""Which state tensors miss a write, if not the first alone, and where they begin in the form's matrix."""


def take_out(core: str, state: State, forms: Sequence[LinearForm]) -> State:
    """Each W, with momentum C, less what is left of the step's writes when it ends; of attention the newest
    slot."""
    parts = [part.clone() for part in state]
    for layer, form in enumerate(forms):
        if isinstance(form, DeltaForm):
            left = torch.zeros_like(form.W)
            for k, u, e, decay in zip(*(each[0].unbind(2) for each in form.writes[1:]), strict=True):
                left = left * decay.unsqueeze(-2)
                left = left + torch.einsum("bhv,bhk->bhvk", u - (left @ e.unsqueeze(-1)).squeeze(-1), k)
            for n, first in COLUMNS.get(core, {0: 0}).items():
                parts[n][:, layer] -= left[..., first : first + parts[n].shape[-1]]
        else:
            for part in parts[:3]:
                part[:, layer, :, -1] = 0
    return tuple(parts)


@pytest.mark.parametrize(
    ("core", "options"),
    [
        *((name, {}) for name in ("delta_net", "rdn", "linear_transformer", "momentum_delta_net")),
        *((name, {}) for name in ("delta_delta_net", "softmax_attention", "deltaformer")),
        *((name, {"clock": 3, "short_conv": 3}) for name in ("kda", "gtrxl")),
        *((name, {}) for name in ("delta_product", "delta_rnn", "delta_lstm", "rwkv7")),
    ],
)
def test_writes_taken_out_are_missing_in_all_later_steps(
    core: str, options: dict[str, int], seed: int
) -> None:
    """They are taken out after the step; then the actor goes on."""
    agent, inputs = make_agent(core, **options), make_inputs()
    actor = Actor(agent, inputs)
    differ = 0
    for moment in explained(agent, inputs, 3):
        for source in moment.sources:
            state = take_out(core, actor.states[source.step + 1], actor.forms[source.step])
            with torch.no_grad():
                for t in range(source.step + 1, moment.step + 1):
                    output, state = agent.act(*actor.step(t), state)
            assert source.without_writes is not None
            share = source.minus_share
            expected = output.policy_logits[0].log_softmax(-1)
            torch.testing.assert_close(
                source.without_writes.log_policy.float(), expected, rtol=1e-4, atol=1e-5
            )
            torch.testing.assert_close(source.without_writes.value, output.baseline[0], rtol=1e-4, atol=1e-5)
            differ += share is None or not torch.allclose(source.without_writes.value, share.value, atol=1e-6)
    assert differ, "the share and the effect are two numbers"


@pytest.mark.parametrize("core", ["delta_net", "momentum_delta_net", "delta_delta_net", "delta_mlp"])
def test_share_and_effect_agree_where_nothing_written_depends_on_a_reading(core: str, seed: int) -> None:
    for moment in explained(make_agent(core, num_layers=1), make_inputs(), 3):
        for source in moment.sources:
            assert source.minus_share is not None and source.without_writes is not None
            torch.testing.assert_close(source.minus_share, source.without_writes, rtol=1e-4, atol=1e-5)


NONLINEAR = {"delta_lstm"}
"""Cores whose output is a nonlinear function of the reading."""


def test_every_core_in_the_backbone_is_explained(seed: int) -> None:
    """With all options of its memory; and a share of nothing changes nothing."""
    refused = set()
    for name in core_names():
        plain = Agent(AgentSpec((3,), 4, name, "mlp")).eval()
        if not isinstance(plain.core, FastWeightCore):
            refused.add(name)
            why = (
                "what {} remembers is no sum of what it wrote"
                if plain.initial_state(1)
                else "{} has no memory"
            )
            with pytest.raises(ValueError, match=why.format(name)):
                check_core(plain)
            continue
        agent = plain if name in ("hybrid", "rdn_large") else make_agent(name, clock=2)
        check_core(agent)
        inputs = make_inputs(7, (0, 2))
        (moment,) = explained(agent, inputs, 1)
        for source in moment.sources:
            assert (source.minus_share is None) == (name in NONLINEAR), name
            assert source.without_writes is not None, name
        if name in NONLINEAR:
            continue
        with torch.inference_mode():
            x = agent.core_inputs(*inputs[:2])[moment.begin : moment.step + 1].unsqueeze(1)
            reset = inputs.begins[moment.begin : moment.step + 1].unsqueeze(1)
            found = core_shares(agent.core, x, agent.initial_state(1), reset, len(x) - 1)
            parts = [part._replace(initial=part.reading, writes=0 * part.writes) for part in found if part]
            same = _minus_shares(agent, x, reset, parts, [0], None)
        torch.testing.assert_close(same.log_policy[0], moment.remembering.log_policy, rtol=1e-4, atol=1e-5)
        assert not any("unroll" in vars(memory) for memory in agent.core.memories())  # type: ignore[operator, union-attr]
    assert refused == {"lstm", "gru", "feedforward", "gated_feedforward"}


def test_all_that_follows_a_reading_is_computed(seed: int) -> None:
    agent = make_agent("delta_net", short_conv=3, head_norm=True, output_gate="silu", clock=3)
    for moment in explained(agent, make_inputs(), 3):
        for source in moment.sources:
            assert source.minus_share is not None and source.without_writes is not None
            for each in (source.minus_share, source.without_writes):
                assert not torch.equal(each.log_policy, moment.remembering.log_policy)


def test_forbidden_actions_stay_so(seed: int) -> None:
    allowed = torch.rand(24, 4) < 0.6
    allowed[:, 1] = True
    for moment in explained(make_agent(), make_inputs(allowed=allowed), 4):
        others = [each for source in moment.sources for each in (source.minus_share, source.without_writes)]
        assert moment.kl > 0
        for each in (moment.remembering, moment.wiped, *others):
            assert each is not None
            assert ((each.log_policy.exp() == 0) == ~allowed[moment.step]).all()


LEFT, RIGHT, FORK, BLANK = range(4)


class CueMemory(GeneralisedMemory):
    """Writes +1 for LEFT and -1 for RIGHT over what it had; reads it at a FORK."""

    def __init__(self, hidden_size: int, num_heads: int, **options: Any) -> None:
        super().__init__(hidden_size, num_heads, (hidden_size,), **options)
        self.slow_net.weight.data = torch.eye(hidden_size)

    def writes(self, projections: tuple[Tensor, ...]) -> Writes:
        seen = (projections[0] > 0).float()  # behind LayerNorm
        slot, channel = torch.eye(4)[0], torch.eye(4)[BLANK]
        cue = seen[..., [LEFT]] + seen[..., [RIGHT]]
        value = (seen[..., [LEFT]] - seen[..., [RIGHT]]) * channel
        return one_write(seen[..., [FORK]] * slot, cue * slot, value, cue * slot, torch.ones_like(seen))


class CueCore(FastWeightCore):
    memory = CueMemory


class AsSeen(nn.Module):
    def trunk_features(self, observation: Tensor) -> Tensor:
        return observation

    project = trunk_features


def cue_agent() -> Agent:
    """Turns as the last cue said, with a probability of 0.993 of the two; all by hand."""
    agent = Agent(AgentSpec((4,), 2, "delta_net", "mlp", OPTIONS)).eval()
    agent.stem = AsSeen()  # type: ignore[assignment]
    core = agent.core = CueCore(5, hidden_size=4, num_layers=1, num_heads=1, ff_size=1)
    agent.policy, agent.baseline = nn.Linear(4, 2), nn.Linear(4, 1)
    for weight in (*agent.policy.parameters(), *agent.baseline.parameters(), *core.input_proj.parameters()):
        nn.init.zeros_(weight)
    for weight in core.layers[0].ff.parameters():  # type: ignore[union-attr]
        nn.init.zeros_(weight)
    core.input_proj.weight.data[:, :4] = torch.eye(4)
    core.layers[0].out.weight.data = torch.eye(4)  # type: ignore[union-attr]
    agent.policy.weight.data[:, BLANK] = torch.tensor([2.5, -2.5])
    return agent


def test_the_cue_is_named_where_the_truth_is_known() -> None:
    """At forks alone does the memory matter, and there the last cue is the whole of the reading."""
    seen = [LEFT, BLANK, BLANK, FORK, RIGHT, BLANK, FORK, BLANK, FORK, LEFT, BLANK, FORK]
    begins = torch.zeros(len(seen), dtype=torch.bool)
    begins[[0, 9]] = True
    inputs = Inputs(torch.eye(4)[seen], torch.zeros(len(seen)), begins)
    moments = explained(cue_agent(), inputs, 5)
    cues = {3: 0, 6: 4, 8: 4, 11: 9}
    assert [moment.step for moment in moments[:4]] == list(cues) and moments[4].kl == pytest.approx(
        0, abs=1e-9
    )
    for moment in moments[:4]:
        first, *others = moment.sources
        assert first.step == cues[moment.step] and first.fraction == pytest.approx(1, abs=1e-6)
        assert all(other.fraction == 0 for other in others) and moment.own == 0
        turned = 1 if moment.step in (6, 8) else 0
        assert float(moment.remembering.log_policy[turned].exp()) == pytest.approx(0.9933, abs=1e-4)
        assert first.minus_share is not None and first.without_writes is not None
        for without in (moment.wiped, first.minus_share, first.without_writes):
            assert without.log_policy.exp().tolist() == pytest.approx([0.5, 0.5])
        for other in others:
            assert other.without_writes is not None
            torch.testing.assert_close(other.without_writes.log_policy, moment.remembering.log_policy)


def save_maze_agent(folder: Path, core: str = "delta_net") -> Path:
    options = OPTIONS if core == "delta_net" else {"hidden_size": 8}
    torch.manual_seed(5)
    save_checkpoint(folder, 1600, Agent(AgentSpec((5,), 3, core, "mlp", options, env_id=MAZE)), {})
    return folder


def page_of(run: Path, seed: int = 1, **options: Any) -> Path:
    before = set(run.glob("eval/why-*/why.html"))
    config = EvalConfig(run, episodes=2, repeats=1, device="cpu", why=3, seed=seed, sample=True, **options)
    evaluate_run(config, Console(quiet=True))
    (page,) = set(run.glob("eval/why-*/why.html")) - before
    return page


class References(HTMLParser):
    """Collects what a page refers to, its images and their texts, and checks that tags are closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.alts: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag != "script"
        of = dict(attrs)
        self.targets += [str(of[name]) for name in ("src", "href", "srcset", "data", "action") if name in of]
        if tag == "img":
            self.alts.append(str(of["alt"]))
        if tag not in ("img", "meta"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_a_page_is_written_beside_the_evaluation(tmp_path: Path) -> None:
    run = save_maze_agent(tmp_path)
    page = page_of(run)
    text = page.read_text()
    references = References(text)
    assert not references.open
    assert all(target.startswith(("data:image/png;base64,", "#")) for target in references.targets)
    assert "@import" not in text and "url(" not in text and "http" not in text
    assert len(re.findall(r'<section id="m\d', text)) == 3 and "FORWARD" in text and "LEFT" in text
    assert len(references.alts) >= 6 and all(
        re.match(r"Step [\d,]+: what the agent sees, the numbers", alt) for alt in references.alts
    )
    shown = {int(alt.split(":")[0].removeprefix("Step ").replace(",", "")) for alt in references.alts}
    assert {file.name for file in page.parent.glob("*.png")} == {f"step-{step}.png" for step in shown}
    assert len(list((run / "eval").glob("*.json"))) == 1
    for term in ("share taken out", "without its writes, rerun", "wiped", "with the memory"):
        assert f"<dt>{term}</dt>" in text


def test_a_page_depends_on_the_seed_alone(tmp_path: Path) -> None:
    run = save_maze_agent(tmp_path)
    first, again, other = page_of(run), page_of(run), page_of(run, seed=2)
    assert first != again and first.read_bytes() == again.read_bytes()
    assert [file.read_bytes() for file in sorted(first.parent.iterdir())] == [
        file.read_bytes() for file in sorted(again.parent.iterdir())
    ]
    assert References(other.read_text()).alts != References(first.read_text()).alts


def test_a_certificate_beside_it_looks_at_the_same_play(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, played = save_maze_agent(tmp_path), []

    def play(*arguments: Any, **options: Any) -> Play:
        played.append(play_stretch(*arguments, **options))
        return played[-1]

    monkeypatch.setattr(stretch, "play_stretch", play)
    alone, beside = page_of(run), page_of(run, certificate=True)
    assert len(played) == 2 and played[0].actions == played[1].actions
    without_command = [page.read_text().replace(" --certificate", "") for page in (alone, beside)]
    assert without_command[0] == without_command[1] and "--certificate" in beside.read_text()


def test_an_environment_that_fails_in_the_stretch_loses_no_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And `--why`, which cannot do without, says so after the results are saved."""
    run = save_maze_agent(tmp_path)

    def fail(*_: Any, **__: Any) -> Play:
        raise EnvironmentFailed("Its-v0: step failed: KeyError: 3")

    monkeypatch.setattr(stretch, "play_stretch", fail)
    asked = EvalConfig(run, episodes=2, repeats=1, device="cpu", certificate=True)
    saved = json.loads(evaluate_run(asked, Console(width=160)).read_text())
    assert "no certificate: Its-v0: step failed: KeyError: 3" in capsys.readouterr().out
    assert saved["results"]["trained"] and not saved.get("certificate")
    with pytest.raises(EnvironmentFailed):
        page_of(run)
    assert len(list((run / "eval").glob("*.json"))) == 2


@pytest.mark.parametrize("option", ["certificate", "why"])
def test_a_stretch_that_hangs_is_named_by_its_option(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named: list[str] = []

    @contextmanager
    def progress(_: Console, name: str) -> Iterator[Callable[..., None]]:
        named.append(name)
        yield lambda *_: None

    monkeypatch.setattr(stretch, "progress", progress)
    config = EvalConfig(save_maze_agent(tmp_path), episodes=1, repeats=1, device="cpu", **{option: True})
    evaluate_run(config, Console(quiet=True))
    assert named == [option]


def test_names_are_escaped(tmp_path: Path, seed: int) -> None:
    spec = AgentSpec((3,), 4, "rdn", "mlp", OPTIONS, env_id="mine/<script>alert(1)")
    agent = Agent(spec).eval()
    inputs = make_inputs(6, (0,))
    play = Play(1, list(inputs.observation.numpy()), [0.0] * 6, [True] + [False] * 5, [], [0] * 6, [0.0] * 6)
    names = ["<b>one", 'a"b', "\x1b[31m", "&amp;"]
    config = EvalConfig(Path("<i>run"), why=1)
    encoded = dict.fromkeys(range(6), b"png")
    loaded = Loaded(tmp_path, agent, tmp_path, 1600)
    text = to_html(config, loaded, None, play, explained(agent, inputs, 1), encoded, names)
    assert "<script" not in text and "<b>" not in text and "<i>" not in text and "\x1b" not in text
    assert "What rdn remembers in &lt;script&gt;alert(1)</" in text, "as `watch` names it"
    assert "&lt;b&gt;one" in text and "&amp;amp;" in text
    References(text)


def test_the_command_is_the_one_that_was_given() -> None:
    config = EvalConfig(Path("a run"), why=2, sample=True, forget_every=(1, 2), protocol="revisited")
    assert command(config) == (
        "deltabeast eval 'a run' --protocol revisited --sample --forget-every 1 2 --why 2"
    )
    assert command(EvalConfig(Path("run"))) == "deltabeast eval run"


def test_the_command_of_an_agent_from_a_hub_names_it_as_it_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = save_maze_agent(tmp_path)
    monkeypatch.setattr("deltabeast.launch.evaluation.command.run_here", lambda _: run)
    named = EvalConfig(Path("hub:me/maze@v1"), episodes=1, repeats=1, device="cpu", why=1)
    evaluate_run(named, Console(quiet=True))
    (page,) = run.glob("eval/why-*/why.html")
    text = page.read_text()
    assert "deltabeast eval hub:me/maze@v1 --episodes 1" in text and f"eval {run}" not in text


def test_a_memory_without_writes_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = save_maze_agent(tmp_path, "lstm")
    with pytest.raises(SystemExit) as ended:
        main(["eval", str(run), "--why", "2", "--device", "cpu"])
    error = capsys.readouterr().err
    assert ended.value.code == 2 and error.count("\n") == 1
    assert "--why: what lstm remembers" in error and "delta_net, rdn" in error
    assert not (run / "eval").exists()
    with pytest.raises(SystemExit) as ended:
        main(["eval", str(run), "--why", "101"])
    assert ended.value.code == 2 and "--why 101; it must be from 0 to 100" in capsys.readouterr().err


@pytest.mark.parametrize("greedy", [True, False])
def test_the_stretch_is_what_was_played(greedy: bool) -> None:
    maze = Agent(AgentSpec((5,), 3, "delta_net", "mlp", OPTIONS)).eval()
    play = play_stretch(maze, make_vector_env(env_id=MAZE, num_envs=1), 3, greedy, 2)
    env = make_vector_env(env_id=MAZE, num_envs=1)
    observation, _ = env.reset(seed=3)
    for t, action in enumerate(play.actions):
        np.testing.assert_array_equal(play.observations[t], observation[0])
        observation, reward, terminated, truncated, _ = env.step(np.array([action]))
        if t + 1 < len(play.actions):
            assert play.rewards[t + 1] == pytest.approx(float(reward[0]))
            assert play.begins[t + 1] == bool(terminated[0] or truncated[0])
    assert terminated[0] or truncated[0]
    assert play.begins[0] and sum(play.begins) == 2 and play.rewards[0] == 0
    assert len(set(play.actions)) > (0 if greedy else 1)
    short = play_stretch(maze, make_vector_env(env_id=MAZE, num_envs=1), 3, greedy, 2, most_steps=7)
    assert short.actions == play.actions[:7]


def test_pictures_of_a_game_are_of_their_own_steps() -> None:
    spec = AgentSpec((4, 84, 84), 6, "delta_net", "nature", OPTIONS, game="space_invaders")
    agent = Agent(spec).eval()
    play = play_stretch(agent, AtariGames("space_invaders", 1, num_threads=1), 3, False, 1, most_steps=20)
    colour = AtariGames("space_invaders", 1, num_threads=1, colour=True)
    shown = screens(play, colour, {4, 19})
    again = AtariGames("space_invaders", 1, num_threads=1, colour=True)
    trace = Trace(3, play.actions, play.score, [], [], [])
    for step, screen in enumerate(replay(trace, again)):
        if step in shown:
            picture = np.asarray(shown[step])
            np.testing.assert_array_equal(picture[:420:2, ::2], screen)
            assert picture.shape == (420 + 6 + 80, 320, 3)
    assert sorted(shown) == [4, 19]


def test_pictures_of_other_observations() -> None:
    image = np.arange(3 * 4 * 5, dtype=np.uint8).reshape(3, 4, 5)
    assert np.asarray(side_by_side(image))[2, 3].tolist() == image[:, 2, 3].tolist()
    grey = np.asarray(side_by_side(np.stack([image[0], image[1]])))
    assert grey.shape == (4, 10) and grey[1, 7] == image[1, 1, 2]
    play = Play(1, [image, image + 1])
    assert pictures(play, [1])[1].size == (320, 256)
    half = np.asarray(bars(np.array([0.5, -1.0]), np.array([1.0, 1.0]), signed=True))
    blue = (half == (0, 0x72, 0xB2)).all(-1)
    first, second = blue[6:28].any(0).nonzero()[0], blue[28:50].any(0).nonzero()[0]
    assert first.min() == second.max() + 2, "the axis is between them"
    assert len(second) == pytest.approx(2 * len(first), abs=2)
    many = bars(np.arange(30.0), np.arange(30.0), signed=False)
    assert many.height == 22 * 25 + 12


def test_readings_of_single_steps_are_the_actors(seed: int) -> None:
    """What the tests above compare with: the joined forms read what the actor's memory read."""
    agent, inputs = make_agent(), make_inputs()
    actor = Actor(agent, inputs)
    (moment,) = explained(agent, inputs, 1)
    outputs: list[Tensor] = []
    with watch_traces(agent.core, lambda layer, memory, trace: outputs.append(trace.y[0])), torch.no_grad():
        agent.act(*actor.step(moment.step), actor.states[moment.step])
    for form, y in zip(actor.joined(moment), outputs, strict=True):
        torch.testing.assert_close(readings(form)[-1], y, rtol=1e-4, atol=1e-6)
