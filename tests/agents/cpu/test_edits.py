"""Whatever somebody edits, subclasses, hooks or replaces takes effect in a default run on a CPU.

Each edit is trained with for a few updates, once as a run does it by default and once with the eager code
alone: the weights agree to rounding, and differ from those without the edit.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from training_in_process import listen, run
from training_process import CARTPOLE, newest

import deltabeast.agents
from deltabeast.agents import Agent, Learner, Unroll, inference, learner, losses, stems, vtrace
from deltabeast.agents.cpu.cache import CacheSpec
from deltabeast.cores import FastWeightCore, State
from deltabeast.cores.layer import Layer
from deltabeast.cores.rdn import RecurrentDeltaMemory
from deltabeast.kernels.native import compiling
from deltabeast.launch.runs.directory import read_words
from deltabeast.launch.training import cpu_parts

ARGUMENTS = (*CARTPOLE, "--steps", "100", "--learning-rate", "1e-3")

Edit = Callable[[pytest.MonkeyPatch], None]
EDITS: dict[str, Edit] = {}


def edit(function: Edit) -> Edit:
    EDITS[function.__name__] = function
    return function


@edit
def a_term_in_the_loss(patch: pytest.MonkeyPatch) -> None:
    """KL of the policy at equal weights: zero in what is compared when a run begins."""
    plain = losses.actor_critic

    def with_kl(logits: Tensor, values: Tensor, batch: Any, rewards: Tensor, **costs: Any) -> Any:
        loss, metrics = plain(logits, values, batch, rewards, **costs)
        return loss + 3 * (logits.mean(-1) ** 2).sum(), metrics

    patch.setattr(learner.UpdateOps, "__new__", _with_default(actor_critic=with_kl))


@edit
def another_optimizer(patch: pytest.MonkeyPatch) -> None:
    def sign_step(finite: Tensor, parameters: list[Tensor], gradients: list[Tensor], *rest: Any) -> None:
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter -= 1e-3 * gradient.sign()

    patch.setattr(learner.UpdateOps, "__new__", _with_default(rmsprop=sign_step))


def _with_default(**changed: Any) -> Callable[..., Any]:
    made = learner.UpdateOps.__new__

    def new(kind: type, *given: Any, **named: Any) -> Any:
        return made(kind, *given, **{**changed, **named} if not given else named)

    return new


@edit
def another_vtrace(patch: pytest.MonkeyPatch) -> None:
    plain = vtrace.vtrace_from_log_rhos

    def halved(*given: Any, **named: Any) -> Any:
        targets = plain(*given, **named)
        return targets._replace(vs=targets.vs * 0.5)

    patch.setattr(losses, "vtrace_from_log_rhos", halved)


@edit
def a_line_in_a_layer(patch: pytest.MonkeyPatch) -> None:
    def forward(self: Layer, x: Tensor, state: State, reset: Tensor) -> Any:
        y, trace = self.memory(self.memory.slow_net(self.norm(x)), state, reset)
        x = x + 0.5 * self.out(y)
        return x + self.ff(self.ff_norm(x)), trace

    patch.setattr(Layer, "forward", forward)


@edit
def a_memory_s_unroll(patch: pytest.MonkeyPatch) -> None:
    plain = RecurrentDeltaMemory.unroll

    def unroll(self: Any, parts: Any, state: State, reset: Tensor) -> Any:
        y, after = plain(self, parts, state, reset)
        return 0.5 * y, after

    patch.setattr(RecurrentDeltaMemory, "unroll", unroll)


@edit
def a_core_s_step(patch: pytest.MonkeyPatch) -> None:
    def step(self: Any, x: Tensor, state: State, reset: Tensor) -> Any:
        y, after = self.unroll(x.unsqueeze(0), state, reset.unsqueeze(0))
        return 0.1 * y.squeeze(0), after

    patch.setattr(FastWeightCore, "step", step, raising=False)


@edit
def an_agent_s_act(patch: pytest.MonkeyPatch) -> None:
    """Epsilon-greedy; by a wrapper that passes for what it wraps."""
    plain = Agent.act

    @functools.wraps(plain)
    def act(self: Agent, *given: Any, **named: Any) -> Any:
        output, state = plain(self, *given, **named)
        return output._replace(action=torch.zeros_like(output.action)), state

    patch.setattr(Agent, "act", act)


@edit
def a_method_of_one_module(patch: pytest.MonkeyPatch) -> None:
    def change(agent: Agent) -> None:
        step = agent.core.step

        def smaller(*given: Any) -> Any:
            y, state = step(*given)
            return 0.1 * y, state

        agent.core.step = smaller  # type: ignore[method-assign]

    _agent_with(patch, change)


@edit
def an_actor_s_inference(patch: pytest.MonkeyPatch) -> None:
    plain = inference.EagerInference.select_actions

    def select_actions(self: Any, unroll: Any, t: int) -> None:
        plain(self, unroll, t)
        unroll.action[t] = 1

    patch.setattr(inference.EagerInference, "select_actions", select_actions)


class OwnStem(stems.VectorStem):
    def trunk_features(self, observation: Tensor) -> Tensor:
        return torch.tanh(self.fc1(observation.float()))


def _agent_with(patch: pytest.MonkeyPatch, change: Callable[[Agent], object]) -> None:
    made = Agent.__init__

    def init(self: Agent, *given: Any) -> None:
        made(self, *given)
        change(self)

    patch.setattr(Agent, "__init__", init)


@edit
def a_subclassed_stem(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("deltabeast.agents.network.make_stem", lambda name, shape, size, *_: OwnStem(*shape, size))


@edit
def a_forward_hook(patch: pytest.MonkeyPatch) -> None:
    _agent_with(patch, lambda agent: agent.core.input_proj.register_forward_hook(lambda m, x, y: 0.5 * y))


class Squared(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.square(), self.bias)


@edit
def a_replaced_linear(patch: pytest.MonkeyPatch) -> None:
    _agent_with(patch, lambda agent: setattr(agent.stem, "fc2", Squared(256, 256)))


@edit
def an_auxiliary_output(patch: pytest.MonkeyPatch) -> None:
    """Something more that the agent computes and the loss reads, as a term of one's own does."""
    plain, plain_loss = Agent.unroll, Learner.loss

    def unroll(self: Agent, *given: Any) -> Any:
        output, state, stats = plain(self, *given)
        vars(self)["more"] = 3 * (output.baseline**2).mean()
        return output, state, stats

    def loss(self: Learner, batch: Unroll) -> Any:
        total, metrics = plain_loss(self, batch)
        return total + vars(self.agent).pop("more"), metrics

    patch.setattr(Agent, "unroll", unroll)
    patch.setattr(Learner, "loss", loss)


@edit
def another_head(patch: pytest.MonkeyPatch) -> None:
    _agent_with(patch, lambda agent: setattr(agent, "baseline", Squared(agent.core.output_size, 1)))


def weights(run_dir: Path, *more: str) -> Tensor:
    run(run_dir, *ARGUMENTS, *more)
    return torch.cat([weight.flatten() for weight in newest(run_dir)[1].values()])


@pytest.fixture(scope="module")
def unedited(tmp_path_factory: pytest.TempPathFactory) -> Tensor:
    return weights(tmp_path_factory.mktemp("unedited") / "run")


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_is_what_runs(
    name: str, unedited: Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    EDITS[name](monkeypatch)
    default, plain = weights(tmp_path / "default"), weights(tmp_path / "plain", "--fused", "off")
    torch.testing.assert_close(default, plain, rtol=1e-3, atol=1e-4)
    assert default.shape != unedited.shape or (default - unedited).abs().max() > 1e-3


LOSS = ("agents/losses.py", "baseline_cost * baseline_loss", "2 * baseline_cost * baseline_loss")
LAYER = ("cores/layer.py", "x = x + self.out(y)", "x = x - self.out(y)")
RULE = ("kernels/reference.py", "v[t] + _per_head(g, Rv)", "v[t] - 2 * _per_head(g, Rv)")


@pytest.mark.parametrize(
    ("edits", "parts"),
    [
        pytest.param([LOSS, RULE], ["loss", "core"], id="both"),
        pytest.param([LOSS], ["loss"], id="loss", marks=pytest.mark.long),
        pytest.param([LAYER], ["core"], id="layer", marks=pytest.mark.long),
        pytest.param([RULE], ["core"], id="rule", marks=pytest.mark.long),
    ],
)
def test_an_edited_copy_of_the_source_is_what_runs(
    edits: list[tuple[str, str, str]], parts: list[str], unedited: Tensor, tmp_path: Path
) -> None:
    root = Path(deltabeast.agents.__path__[0]).resolve().parent
    package = tmp_path / "deltabeast"
    package.mkdir()
    for room in ("agents", "cores", "envs", "kernels", "launch"):
        # with the times of the files, by which what Python compiled of them is still good
        subprocess.run(["cp", "-rp", str(root / room), str(package / room)], check=True)
    for file, old, new in edits:
        source = package / file
        assert old in source.read_text()
        source.write_text(source.read_text().replace(old, new))
    command = """
import sys
from deltabeast.launch.cli import main

for fused in ("auto", "off"):
    main([*sys.argv[1:], "--fused", fused, "--run-dir", fused])
    print(f"end of {fused}", flush=True)
"""
    done = subprocess.run(
        [sys.executable, "-c", command, "train", *ARGUMENTS],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
    )
    said = dict(zip(("auto", "off"), done.stdout.split("end of auto"), strict=True))
    default, plain = (
        torch.cat([w.flatten() for w in newest(tmp_path / fused)[1].values()]) for fused in ("auto", "off")
    )
    torch.testing.assert_close(default, plain, rtol=1e-3, atol=1e-4)
    assert (default - unedited).abs().max() > 1e-3
    assert "the eager code" not in said["off"]
    for part in parts:
        assert f"{part}: the eager code runs, since " in said["auto"]


def test_nothing_is_dropped_without_an_edit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = listen(monkeypatch, "nothing", lambda: None)
    run(tmp_path / "run", *ARGUMENTS)
    assert not [line for line in said if "eager code" in line]


def test_a_resumed_run_is_compared_again_on_another_machine_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its numbers stay the same where they can, and no C runs that was never compared."""
    compared: list[set[str]] = []

    def mismatches(learner: Learner, unroll: Unroll, parts: list[str], spec: CacheSpec) -> dict[str, str]:
        compared.append(set(parts))
        return {"core": "a test"}

    monkeypatch.setattr(cpu_parts, "mismatches", mismatches)
    run(tmp_path, *ARGUMENTS)
    stored = read_words(tmp_path, "auto")["fused"]
    assert stored == f"trunk,projection,heads,loss,rmsprop,adam by {compiling.identity()}"
    run(tmp_path, *ARGUMENTS, "--steps", "200")
    assert len(compared) == 1 and "core" in compared[0] and read_words(tmp_path, "auto")["fused"] == stored
    monkeypatch.setattr(cpu_parts, "identity", lambda: "another")
    run(tmp_path, *ARGUMENTS, "--steps", "300")
    assert len(compared) == 2 and read_words(tmp_path, "auto")["fused"].endswith(" by another")


def test_where_there_is_no_compiler_the_machine_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    with_c = compiling.identity()
    monkeypatch.setattr(compiling, "unsupported_reason", lambda *source: "no C compiler")
    assert compiling.identity.__wrapped__() == "no C" != with_c
    monkeypatch.undo()
    monkeypatch.setattr(compiling, "_processor", lambda: "another")
    assert compiling.identity.__wrapped__() not in (with_c, "no C")
