"""Agents whose memory is operated on while they play, against a loop over rows and steps."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from gymnasium.vector import VectorEnv
from torch import Tensor

from deltabeast.agents import Agent, AgentSpec
from deltabeast.agents.cpu.agent import FastAgent
from deltabeast.cores import core_names, make_core
from deltabeast.cores.delta_net import DeltaMemory, DeltaNet
from deltabeast.cores.observe import watch_traces
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
    "op",
    [
        *("freeze@0", "freeze@3", "undo@0", "undo@2", "scale:0.5", "scale:-2@4", "wipe@3", "wipe-every:2"),
        *("erase@0", "erase@2", "erase:0@3", "insert:1@1", "insert:0@4", "restore:0@1", "restore:2@5"),
    ],
)
@pytest.mark.parametrize("fast", [False, True])
def test_a_row_at_a_time(op: str, fast: bool, seed: int) -> None:
    """Of RDN, by hand: of its state (W, y) the operations change W alone, and wipes both."""
    agent, play = make_agent(), Play()
    got = play.logits(altered(agent, op, fast))
    kind, number = op.replace(":", "@").split("@")[:2]
    since = int(op.split("@")[1]) if "@" in op else 0
    for row in range(ROWS):
        (W, y), into, saved = agent.initial_state(1), 0, []
        for t in range(STEPS):
            into = 0 if play.done[t, row] else into + 1
            wiped = (kind == "wipe" and into == since) or (kind == "wipe-every" and into % int(number) == 0)
            if into == 0 or wiped:
                W, y = torch.zeros_like(W), torch.zeros_like(y)
            with torch.inference_mode():
                going_on = torch.zeros(1, dtype=torch.bool)
                seen = play.observation[t, row : row + 1], play.reward[t, row : row + 1]
                parts: list[Any] = []
                with watch_traces(
                    agent.core, lambda _, memory, trace, to=parts: to.append(trace.projections)
                ):
                    output, (written, after) = agent.act(*seen, going_on, (W, y), greedy=True)
                k, v = by_hand(agent, parts, y)
                y = after
            torch.testing.assert_close(got[t, row], output.policy_logits[0], rtol=1e-4, atol=1e-5)
            if (kind == "freeze" and into >= since) or (kind == "undo" and into == since):
                written = W
            if kind == "scale" and into >= since:
                written = W + float(number) * (written - W)
            if kind in ("erase", "insert", "restore") and into == int(number):
                saved = [{"erase": k, "insert": v, "restore": written}[kind].clone()]
            if kind in ("erase", "insert") and into == since:
                key, value = (saved[0], 0 * v) if kind == "erase" else (k, saved[0])
                read = (written[0] * key.unsqueeze(-2)).sum(-1)
                by = key / key.square().sum(-1, keepdim=True)
                written = written + (value - read).unsqueeze(-1) * by.unsqueeze(-2)
            if kind == "restore" and into == since:
                written = saved[0]
            W = written


def by_hand(agent: Agent, parts: list[Any], y: Tensor) -> tuple[Tensor, Tensor]:
    """RDN's keys and values β v, by layer and head: `[L, H, h]`."""
    k, u = [], []
    for n, (memory, projections) in enumerate(zip(agent.core.memories(), parts, strict=True)):  # type: ignore[operator]
        _, key, value, beta = (part[0, 0] for part in projections)
        g = y[0, n].tanh()
        of_heads = range(len(g))
        k.append(torch.stack([(key[i] + g[i] @ memory.Rk[i]).softmax(0) for i in of_heads]))
        strength = [(beta[i] + g[i] @ memory.rb[i]).sigmoid() for i in of_heads]
        u.append(torch.stack([strength[i] * (value[i] + g[i] @ memory.Rv[i]) for i in of_heads]))
    return torch.stack(k), torch.stack(u)


@pytest.mark.parametrize(
    "core",
    ["softmax_attention", "gtrxl", "deltaformer", "momentum_delta_net", "delta_delta_net", "delta_mlp"],
)
def test_an_undone_step_is_missing_in_later_ones_alone(core: str, seed: int) -> None:
    """Also of memories that are no single matrix; row 0 has one episode."""
    agent, play = make_agent(core), Play()
    untouched, *undone = (
        play.logits(player) for player in (agent, *(altered(agent, f"undo@{T}") for T in (2, 3)))
    )
    for T, logits in zip((2, 3), undone, strict=True):
        differs = (logits != untouched).flatten(2).any(-1)
        assert differs[:, 0].tolist() == [t > T for t in range(STEPS)]
    assert not torch.equal(*undone)


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
    nothing += ["restore:0@99", "restore:13@14"]
    something += ["restore:0@1"]
    if core not in WITHOUT_FAST_WEIGHTS:
        nothing += ["erase:14@15", "insert:14@15"]
        something += ["erase@0", "insert:0@1"]
        nothing += ["scale:1", "noise:0", "scale:0@99", "noise:3@14"]
        something += ["scale:0.5", "noise:0.5"]
    for op in nothing:
        assert torch.equal(play.logits(altered(agent, op, fast)), untouched), op
    for op in something:
        now = play.logits(altered(agent, op, fast))
        eager = fast and op[0] in "ei"  # as steps are whose keys are looked at
        near = {"rtol": 1e-4, "atol": 1e-5} if eager else {"rtol": 0, "atol": 0}
        torch.testing.assert_close(now[0], untouched[0], **near, msg=f"{op}: a step reads what it writes")
        after = 1 + (op in ("insert:0@1", "restore:0@1"))
        assert not torch.allclose(now[after, 0], untouched[after, 0], rtol=1e-6, atol=0), op
    assert torch.equal(
        play.logits(altered(agent, "restore:5@6", fast)), play.logits(altered(agent, "undo@6", fast))
    )
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
        ("erase@3", MemoryOp("erase", 3, source=3), "erase@3"),
        ("erase:3@3", MemoryOp("erase", 3, source=3), "erase@3"),
        ("erase:0@1k", MemoryOp("erase", 1000, source=0), "erase:0@1000"),
        ("insert:0@0", MemoryOp("insert", 0, source=0), "insert:0@0"),
        ("insert:2@7", MemoryOp("insert", 7, source=2), "insert:2@7"),
        ("restore:2@7", MemoryOp("restore", 7, source=2), "restore:2@7"),
        ("transplant:a/b@3", MemoryOp("transplant", 3, run="a/b"), "transplant:a/b@3"),
        (
            "transplant:hub:me/a@v1@0",
            MemoryOp("transplant", 0, run="hub:me/a@v1"),
            "transplant:hub:me/a@v1@0",
        ),
        ("wipe@12", MemoryOp("wipe", 12), "wipe@12"),
        ("wipe-every:1", MemoryOp("wipe-every", 1), "wipe-every:1"),
    ],
)
def test_what_is_written_is_read(word: str, op: MemoryOp, written: str) -> None:
    assert parse_op(word) == op == parse_op(written) and str(parse_op(word)) == written


FORMS = {
    "freeze": "freeze@T", "undo": "undo@T", "wipe": "wipe@T", "wipe-every": "wipe-every:N",
    "scale": "scale:X[@T]", "noise": "noise:X[@T]", "erase": "erase@T or erase:S@T", "insert": "insert:S@T",
    "restore": "restore:S@T", "transplant": "transplant:RUN@T",
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
        *("erase:3", "erase:4@3", "erase:@3", "erase:x@3", "erase:1@", "insert@3", "insert:3", "insert:4@3"),
        *("restore:3@3", "restore:4@3", "restore@3", "restore:-1@3", "restore:1@2@3"),
        *("transplant@3", "transplant:a", "transplant:@3", "transplant:a@", "transplant:a@x"),
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
        *((op, "feedforward" in name) for op in ("freeze@3", "undo@3", "restore:1@3", "transplant:a@3")),
        *((op, "feedforward" in name or name in WITHOUT_FAST_WEIGHTS) for op in ("scale:2", "noise:2")),
        *((op, "feedforward" in name or name in WITHOUT_FAST_WEIGHTS) for op in ("erase@3", "insert:1@3")),
    ):
        with pytest.raises(UsageError, match=name) if missing else contextlib.nullcontext():
            parse_op(op).check(core, name)


def test_a_rule_of_one_s_own_has_no_keys() -> None:
    class Own(DeltaNet):
        class memory(DeltaMemory):
            def unroll(self, *arguments: Any) -> Any:
                return super().unroll(*arguments)

    parse_op("scale:2").check(Own(3), "mine:Own")
    for op in ("erase@3", "insert:1@3"):
        with pytest.raises(
            UsageError, match=f"--memory {op}: mine:Own does not write under keys.*; give freeze@T"
        ):
            parse_op(op).check(Own(3), "mine:Own")


@pytest.mark.parametrize("core", ["rdn", "softmax_attention", "gru", "momentum_delta_net"])
def test_the_memory_of_another_agent(core: str, seed: int) -> None:
    """It has seen the same, and decided nothing; what is no memory stays the player's own."""
    one, other, play = make_agent(core, SIZES.get(core)), make_agent(core, SIZES.get(core)), Play()
    op = parse_op("transplant:other@2")
    got = play.logits(AlteredMemory(one, one.core, op, other))
    kinds = [p.kind for p in one.core.memories()[0].state_parts()] if core != "gru" else ["fast weights"]  # type: ignore[operator]
    for row in range(ROWS):
        state, theirs, into = one.initial_state(1), other.initial_state(1), 0
        for t in range(STEPS):
            into = 0 if play.done[t, row] else into + 1
            step = [x[t, row : row + 1] for x in (play.observation, play.reward, play.done)]
            with torch.inference_mode():
                output, state = one.act(*step, state, greedy=True)  # type: ignore[misc, arg-type]
                _, theirs = other.act(*step, theirs, greedy=True)  # type: ignore[misc, arg-type]
            torch.testing.assert_close(got[t, row], output.policy_logits[0], rtol=1e-4, atol=1e-5)
            if into == 2:
                state = tuple(
                    mine if kind == "output" else his
                    for kind, mine, his in zip(kinds, state, theirs, strict=True)
                )
    same = play.logits(AlteredMemory(one, one.core, op, one))
    assert torch.equal(same, play.logits(one)) and not torch.allclose(got[3:, 0], same[3:, 0], rtol=1e-3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"core": "delta_net"}, "its core is delta_net, this agent's rdn; give a run of the same"),
        ({"core_options": {**SMALL, "num_heads": 4}}, "its core option num_heads is 4, this agent's 2;"),
        ({"core_options": {**SMALL, "ff_size": 9}}, "its core option ff_size is 9, this agent's 8;"),
        ({"env_id": "Pong-v0"}, "its environment is Pong-v0, this agent's None;"),
        ({"observation_shape": (4,)}, r"its observation is [4], this agent's [3];"),
        ({"core_options": {**SMALL, "clock": 0}}, None),
    ],
)
def test_a_donor_has_to_fit(changes: dict[str, Any], message: str | None) -> None:
    agent = make_agent()
    donor = Agent(replace(agent.spec, **changes))
    with (
        pytest.raises(UsageError, match=re.escape("--memory transplant:a@3: " + message))
        if message
        else contextlib.nullcontext()
    ):
        parse_op("transplant:a@3").check_donor(donor, agent)
    if not message:
        parse_op("transplant:a@3").check_donor(agent, donor)


def test_a_donors_layers_may_be_spelled_otherwise() -> None:
    """As an earlier version stored them."""
    spec = replace(make_agent().spec, core="hybrid")
    agent, donor = (
        Agent(replace(spec, core_options={"hidden_size": 8, "ff_size": 8, "layers": layers}))
        for layers in ("gated_delta_net,rdn", "gated-delta-net, rdn")
    )
    parse_op("transplant:a@3").check_donor(donor, agent)


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
