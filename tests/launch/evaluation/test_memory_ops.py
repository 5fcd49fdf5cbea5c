"""Agents whose memory is operated on while they play, against a loop over rows and steps."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from gymnasium.vector import VectorEnv
from torch import Tensor

from deltabeast.agents import Agent, AgentSpec
from deltabeast.agents.cpu.agent import FastAgent
from deltabeast.cores import core_names, make_core
from deltabeast.envs import make_vector_env
from deltabeast.envs.checks import environment_seeds
from deltabeast.launch.errors import UsageError
from deltabeast.launch.evaluation.altered_memory import AlteredMemory
from deltabeast.launch.evaluation.evaluate import evaluate
from deltabeast.launch.evaluation.memory_ops import MemoryOp, parse_op
from deltabeast.launch.evaluation.play import Player, RandomAgent
from deltabeast.launch.evaluation.returns import Difference, Evaluation, Returns, paired_difference

STEPS, ROWS = 14, 4
SMALL = {"hidden_size": 8, "num_heads": 2, "num_layers": 2, "ff_size": 8}


def make_agent(core: str = "rdn", options: dict[str, Any] | None = None) -> Agent:
    return Agent(AgentSpec((3,), 5, core, "mlp", SMALL if options is None else options)).eval()


class Play:
    """What a player sees of episodes that begin at other steps in each row; one lasts a single step."""

    def __init__(self) -> None:
        self.observation, self.reward = torch.randn(STEPS, ROWS, 3), torch.randn(STEPS, ROWS)
        self.done = torch.zeros(STEPS, ROWS, dtype=torch.bool)
        self.done[0] = True
        self.done[[3, 4, 9], [1, 1, 1]] = self.done[7, 2] = True

    def logits(self, player: Player, rows: slice = slice(None)) -> Tensor:
        """What the policy says at each step, `[T, B, A]`."""
        seen, reward, done = self.observation[:, rows], self.reward[:, rows], self.done[:, rows]
        state, logits = player.initial_state(done.shape[1]), []
        with torch.inference_mode():
            for step in zip(seen, reward, done, strict=True):
                output, state = player.act(*step, state, greedy=True)
                logits.append(output.policy_logits)
        return torch.stack(logits)


def altered(agent: Agent, op: str, fast: bool = False) -> AlteredMemory:
    return AlteredMemory(FastAgent(agent) if fast else agent, agent.core, parse_op(op))


@pytest.mark.parametrize(
    "op", ["freeze@0", "freeze@3", "undo@0", "undo@2", "scale:0.5", "scale:-2@4", "wipe@3", "wipe-every:2"]
)
@pytest.mark.parametrize("fast", [False, True])
def test_a_row_at_a_time(op: str, fast: bool, seed: int) -> None:
    """Of RDN, by hand: of its state (W, y) the operations change W alone, and wipes both."""
    agent, play = make_agent(), Play()
    got = play.logits(altered(agent, op, fast))
    kind, number = op.replace(":", "@").split("@")[:2]
    since = int(op.split("@")[1]) if "@" in op else 0
    for row in range(ROWS):
        (W, y), into = agent.initial_state(1), 0
        for t in range(STEPS):
            into = 0 if play.done[t, row] else into + 1
            wiped = (kind == "wipe" and into == since) or (kind == "wipe-every" and into % int(number) == 0)
            if into == 0 or wiped:
                W, y = torch.zeros_like(W), torch.zeros_like(y)
            with torch.inference_mode():
                going_on = torch.zeros(1, dtype=torch.bool)
                seen = play.observation[t, row : row + 1], play.reward[t, row : row + 1]
                output, (written, y) = agent.act(*seen, going_on, (W, y), greedy=True)
            torch.testing.assert_close(got[t, row], output.policy_logits[0], rtol=1e-4, atol=1e-5)
            if (kind == "freeze" and into >= since) or (kind == "undo" and into == since):
                written = W
            if kind == "scale" and into >= since:
                written = W + float(number) * (written - W)
            W = written


SIZES: dict[str, dict[str, Any]] = {
    "hybrid": {"hidden_size": 8, "num_heads": 2},
    **{name: {"hidden_size": 8} for name in ("lstm", "gru")},
}
WITHOUT_FAST_WEIGHTS = ("lstm", "gru", "hybrid", "softmax_attention", "deltaformer", "gtrxl", "transformer")


@pytest.mark.parametrize(
    "core",
    ["rdn", "kda", "momentum_delta_net", "delta_lstm", "softmax_attention", "transformer", "gru", "hybrid"],
)
@pytest.mark.parametrize("fast", [False, True])
def test_what_changes_nothing_and_what_does(core: str, fast: bool, seed: int) -> None:
    """Bit for bit."""
    agent, play = make_agent(core, SIZES.get(core)), Play()
    untouched = play.logits(FastAgent(agent) if fast else agent)
    nothing = ["freeze@14", "undo@99", "wipe@0", "wipe@99", "freeze@1e30", "wipe-every:99", "wipe-every:1e30"]
    something = ["freeze@0", "undo@0", "wipe@1"]
    if core not in WITHOUT_FAST_WEIGHTS:
        nothing += ["scale:1", "noise:0", "scale:0@99", "noise:3@14"]
        something += ["scale:0.5", "noise:0.5"]
    for op in nothing:
        assert torch.equal(play.logits(altered(agent, op, fast)), untouched), op
    for op in something:
        now = play.logits(altered(agent, op, fast))
        assert torch.equal(now[0], untouched[0]), f"{op}: a step reads what it writes itself"
        assert not torch.allclose(now[1, 0], untouched[1, 0], rtol=1e-6, atol=0), op
    undone = play.logits(altered(agent, "undo@6", fast))
    assert torch.equal(undone[:, 2], untouched[:, 2]), "the last step of both its episodes"
    assert not torch.equal(undone[7, 0], untouched[7, 0])


def test_noise_is_a_row_s_own_and_the_same_again(seed: int) -> None:
    agent, play = make_agent("delta_net"), Play()
    player = altered(agent, "noise:0.5@2")
    got = play.logits(player)
    assert torch.equal(play.logits(player), got)

    class Seeded(AlteredMemory):
        def initial_state(self, batch_size: int, device: Any = None) -> Any:
            state = super().initial_state(batch_size, device)
            self.seed(range(2, 2 + batch_size))
            return state

    some = play.logits(Seeded(agent, agent.core, parse_op("noise:0.5@2")), slice(2, 4))
    torch.testing.assert_close(some, got[:, 2:], rtol=1e-4, atol=1e-5)
    play.observation[:, 1], play.reward[:, 1] = play.observation[:, 0], play.reward[:, 0]
    play.done[:, 1] = play.done[:, 0]
    two = play.logits(player)
    torch.testing.assert_close(two[:3, 0], two[:3, 1], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(two[3, 0], two[3, 1], rtol=1e-3, atol=1e-4)


def test_an_evaluation_gives_each_repeat_its_noise() -> None:
    """By its own seed, in whichever process it is played."""
    seeds: list[list[int]] = []

    class Noting(RandomAgent):
        def seed(self, given: Sequence[int]) -> None:
            seeds.append(list(given))

    def make_env(count: int) -> VectorEnv:
        return make_vector_env(env_id="CartPole-v1", num_envs=count)

    evaluate(Noting(2), make_env, episodes=1, repeats=3, seed=7)
    assert seeds == [environment_seeds(7, 3).tolist()]


@pytest.mark.parametrize(
    ("word", "op", "written"),
    [
        ("freeze@0", MemoryOp("freeze", 0), "freeze@0"),
        ("freeze@1.5k", MemoryOp("freeze", 1500), "freeze@1500"),
        ("undo@7", MemoryOp("undo", 7), "undo@7"),
        ("scale:.5", MemoryOp("scale", 0, 0.5), "scale:0.5"),
        ("scale:-2@30", MemoryOp("scale", 30, -2.0), "scale:-2@30"),
        ("noise:1e-3@0", MemoryOp("noise", 0, 0.001), "noise:0.001"),
        ("noise:-0", MemoryOp("noise", 0, 0.0), "noise:0"),
        ("wipe@12", MemoryOp("wipe", 12), "wipe@12"),
        ("wipe-every:1", MemoryOp("wipe-every", 1), "wipe-every:1"),
    ],
)
def test_what_is_written_is_read(word: str, op: MemoryOp, written: str) -> None:
    assert parse_op(word) == op == parse_op(written) and str(parse_op(word)) == written


FORMS = {
    "freeze": "freeze@T", "undo": "undo@T", "wipe": "wipe@T", "wipe-every": "wipe-every:N",
    "scale": "scale:X[@T]", "noise": "noise:X[@T]",
}  # fmt: skip


@pytest.mark.parametrize(
    "word",
    [
        *FORMS,
        *(
            "freeze@",
            "freeze@-1",
            "freeze@x",
            "freeze@0.2",
            "freeze:3",
            "freeze:1@3",
            "freeze@3@4",
            "freeze@nan",
        ),
        *("undo:@3", "wipe:3", "wipe@3:4", "wipe-every@3", "wipe-every:0", "wipe-every:3@4", "wipe-every:-1"),
        *("scale@3", "scale:", "scale:x", "scale:nan", "scale:inf", "scale:1@", "scale:0.5[@3]", "scale:1:2"),
        *("noise:-0.1", "noise:inf", "noise:1@-1"),
    ],
)
def test_what_cannot_be_read_is_told_its_form(word: str) -> None:
    form = FORMS[re.split("[:@]", word)[0]]
    with pytest.raises(UsageError, match=re.escape(f"--memory {word}: give {form}, ")):
        parse_op(word)


@pytest.mark.parametrize(
    "word", ["", "freze@3", "Freeze@3", "scale=3", "runs/pong", "wipe-every 3", "@3", ":3"]
)
def test_other_operations_are_listed(word: str) -> None:
    with pytest.raises(UsageError, match=re.escape(f"--memory {word}: unknown operation; ")) as raised:
        parse_op(word)
    assert all(form in str(raised.value) for form in FORMS.values())


@pytest.mark.parametrize("name", core_names())
def test_a_core_without_what_is_changed(name: str) -> None:
    """Every core can be wiped; one with a state can be frozen; only fast weights can be scaled."""
    core = make_core(name, 3)
    for op in ("wipe@3", "wipe-every:3"):
        parse_op(op).check(core, name)
    for op, missing in (
        *((op, "feedforward" in name) for op in ("freeze@3", "undo@3")),
        *((op, "feedforward" in name or name in WITHOUT_FAST_WEIGHTS) for op in ("scale:2", "noise:2")),
    ):
        with pytest.raises(UsageError, match=name) if missing else contextlib.nullcontext():
            parse_op(op).check(core, name)


def test_a_paired_difference_by_hand() -> None:
    """Its interval is that of the differences, however far the episodes themselves are apart."""

    def of(*returns: list[float], **more: int) -> Evaluation:
        each = Returns(list(returns), [[1] * len(each) for each in returns])
        return Evaluation(len(returns[0]), len(returns), each, Returns([[9.0]], [[1]]), **more)

    def difference(one: Evaluation, other: Evaluation) -> Difference | None:
        return paired_difference(one, other, "life")

    found = difference(of([1.0, 200.0], [50.0]), of([3.0, 201.0], [50.0]))
    assert found is not None and found.interval is not None
    assert found.mean == -1.0 and -2 <= found.interval[0] < found.interval[1] <= 0
    assert difference(of([5.0, 100.0]), of([3.0, 98.0])) == Difference(2.0, (2.0, 2.0))
    assert difference(of([5.0]), of([3.0])) == Difference(2.0, None), "no interval of one pair"
    assert difference(of([1.0, 2.0]), of([1.0], [2.0])) is None
    assert difference(of([1.0], [2.0, 3.0]), of([1.0, 3.0], [2.0])) is None
    assert difference(of([], []), of([], [])) is None
    for left_out in ("unfinished", "discarded_negative", "discarded_wrapped"):
        whole, part = of([1.0, 2.0]), of([1.0, 2.0], **{left_out: 1})
        assert difference(whole, part) is difference(part, whole) is None, left_out
    assert paired_difference(of([1.0]), of([3.0]), "game") == Difference(0.0, None)
