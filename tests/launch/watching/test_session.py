"""What is watched is what is played, and the memory's operations do what they say."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from watching import MAZE, SHORT, make_agent, make_session, save_run

from deltabeast.agents import Agent, find_checkpoints
from deltabeast.cores.backbone import FastWeightCore
from deltabeast.cores.observe import watch_traces
from deltabeast.cores.provenance import core_shares, fractions
from deltabeast.envs import make_vector_env
from deltabeast.launch.evaluation.altered_memory import AlteredMemory
from deltabeast.launch.evaluation.memory_ops import parse_op
from deltabeast.launch.evaluation.play import Player
from deltabeast.launch.evaluation.stretch import Play, play_stretch
from deltabeast.launch.evaluation.why import layer_fractions
from deltabeast.launch.watching.commands import (
    Refused,
    Restart,
    Speed,
    Transplant,
    Undo,
    UseCheckpoint,
    Wipe,
    parse_command,
)
from deltabeast.launch.watching.readings import Readings
from deltabeast.launch.watching.session import Session, short_names

Records = list[dict[str, Any]]


def take(session: Session, steps: int) -> Records:
    return [session.step()[0] for _ in range(steps)]


def played(agent: Player, steps: int, greedy: bool = True, seed: int = 1) -> Play:
    env = make_vector_env(env_id=MAZE, num_envs=1, options=SHORT)
    return play_stretch(agent, env, seed, greedy, 100, most_steps=steps)


@pytest.mark.parametrize("greedy", [True, False])
def test_a_session_plays_what_an_evaluation_does(greedy: bool, tmp_path: Path, seed: int) -> None:
    agent = make_agent("rdn")
    session = make_session(save_run(tmp_path, agent), greedy=greedy, seed=7)
    records, play = take(session, 60), played(agent, 60, greedy, 7)
    assert [each["action"] for each in records] == play.actions
    assert [each["begins"] for each in records] == play.begins
    assert [each["step"] for each in records] == list(range(60))
    assert [each["seen"]["numbers"] for each in records] == [each.tolist() for each in play.observations]
    assert [each["reward"] for each in records[:-1]] == pytest.approx(play.rewards[1:], rel=1e-3)
    inputs = play.inputs("cpu")
    with torch.inference_mode():
        output, _, _ = agent.unroll(
            inputs.observation.unsqueeze(1),
            inputs.reward.unsqueeze(1),
            inputs.begins.unsqueeze(1),
            agent.initial_state(1),
        )
    policy = torch.tensor([each["policy"] for each in records])
    torch.testing.assert_close(policy, output.policy_logits.softmax(-1).squeeze(1), rtol=5e-3, atol=1e-3)
    values = torch.tensor([each["value"] for each in records])
    torch.testing.assert_close(values, output.baseline.squeeze(1), rtol=1e-3, atol=1e-4)
    begun = [each["into"] for each in records if each["begins"]]
    assert len(begun) > 1 and set(begun) == {0}
    session.apply(Restart(7))
    assert take(session, 20) == records[:20]
    session.apply(Restart(8))
    assert take(session, 20) != records[:20]
    session.close()


@pytest.mark.parametrize("core", ["delta_net", "rdn", "softmax_attention"])
def test_shares_are_those_of_the_episode(core: str, seed: int, tmp_path: Path) -> None:
    agent = make_agent(core)
    session = make_session(save_run(tmp_path, agent))
    records, play = take(session, 9), played(agent, 9)
    inputs = play.inputs("cpu")
    with torch.inference_mode():
        x = agent.core_inputs(*inputs[:2]).unsqueeze(1)
    for t, record in enumerate(records):
        parts = [
            part
            for part in core_shares(agent.core, x, agent.initial_state(1), inputs.begins.unsqueeze(1), t)
            if part is not None
        ]
        _, total = layer_fractions(parts)
        reading, sizes = record["reading"], total.abs()
        first = t - record["into"]
        assert reading["first"] == first and reading["older"] == 0
        assert reading["shares"] == pytest.approx((10_000 * total[first:]).tolist(), abs=1.5)
        largest = sizes[first:t].sort(descending=True).values[:3]
        torch.testing.assert_close(sizes[reading["sources"]], largest, rtol=1e-3, atol=1e-4)
        age = reading["age"]
        assert sizes[t - age :].sum() / sizes.sum() > 0.5 - 1e-5
        assert age == 0 or sizes[t - age + 1 :].sum() / sizes.sum() < 0.5 + 1e-5
    session.close()


def test_a_window_of_steps_leaves_the_rest_to_what_is_older(seed: int) -> None:
    agent = make_agent("delta_net")
    x, reset = torch.randn(9, 1, agent.core.input_size), torch.zeros(9, 1, dtype=torch.bool)
    reset[0] = True
    readings, state = Readings(window=4), agent.initial_state(1)
    for t in range(9):
        forms: list[Any] = []

        def collect(_: int, memory: Any, trace: Any, forms: list[Any] = forms) -> None:
            forms.append(memory.linear_form(trace))

        with torch.no_grad(), watch_traces(agent.core, collect):
            _, state = agent.core.step(x[t], state, reset[t])
        readings.add(t, forms, bool(reset[t]))
    found = [
        part for part in core_shares(agent.core, x, agent.initial_state(1), reset, 8) if part is not None
    ]
    _, total = layer_fractions(found)
    reading = readings.explain()
    assert reading is not None and reading.first == 5
    assert reading.fractions == pytest.approx(total[5:].tolist(), abs=1e-5)
    assert reading.older == pytest.approx(float(total[:5].sum()), abs=1e-5)
    assert fractions(found[0], over_heads=True).initial.abs().max() < 1e-6


def test_undo_is_that_of_an_evaluation(tmp_path: Path, seed: int) -> None:
    agent = make_agent("rdn")
    session = make_session(save_run(tmp_path, agent))
    with pytest.raises(Refused, match="no write to undo: no step was taken yet"):
        session.apply(Undo(0))
    before = take(session, 4)
    assert "step 3 wrote" in session.apply(Undo(0))
    with pytest.raises(Refused, match="no write to undo: what step 3 wrote was taken back already"):
        session.apply(Undo(0))
    after = take(session, 8)
    assert after[0]["notes"] == ["what step 3 wrote was taken back"] and after[1]["notes"] == []
    play = played(AlteredMemory(agent, agent.core, parse_op("undo@3")), 12)
    assert [each["action"] for each in before + after] == play.actions
    assert after[0]["reading"]["first"] == 0 and after[0]["reading"]["shares"][3] == 0
    assert sum(after[0]["reading"]["shares"]) == pytest.approx(10_000, abs=6)
    undisturbed = make_session(tmp_path)
    assert take(undisturbed, 12)[4]["policy"] != after[0]["policy"]


def test_a_wiped_memory_acts_as_without_memory(tmp_path: Path, seed: int) -> None:
    session = make_session(save_run(tmp_path, make_agent("rdn")))
    first = take(session, 6)
    assert first[0]["kl"] == 0 and first[0]["policy"] == first[0]["wiped"]
    assert all(each["kl"] > 1e-4 and each["policy"] != each["wiped"] for each in first[1:])
    session.apply(Wipe(0))
    after, later = take(session, 2)
    assert later["kl"] > 1e-4 and later["reading"]["first"] == 6
    assert after["policy"] == after["wiped"] and after["kl"] == 0 and not after["begins"]
    assert after["reading"]["shares"] == [10_000] and after["reading"]["first"] == 6


def test_the_others_memory_is_taken(tmp_path: Path, seed: int) -> None:
    one, other = save_run(tmp_path / "one", make_agent("rdn")), save_run(tmp_path / "two", make_agent("rdn"))
    session = make_session(one, other)
    assert session.state()["seats"][0]["can_transplant"]
    records = [session.step() for _ in range(6)]
    assert all(pair[0]["seen"] == pair[1]["seen"] for pair in records[:1])  # from one seed
    session.apply(Transplant(0))
    seats = session.seats
    core = seats[0].agent.core
    assert isinstance(core, FastWeightCore)
    kinds = [part.kind for part in core.memories()[0].state_parts()]
    same = [torch.equal(*pair) for pair in zip(seats[0]._state, seats[1]._state, strict=True)]
    assert {"fast weights", "output"} == set(kinds)
    assert same == [kind == "fast weights" for kind in kinds]  # last outputs stay one's own
    (record, _), _ = session.step(), session.close()
    assert record["notes"] == ["plays on with the memory of the agent beside"]
    assert record["reading"]["first"] == 6 and abs(record["reading"]["older"]) > 1
    third = save_run(tmp_path / "three", make_agent("delta_net"))
    unlike = make_session(one, third)
    assert not unlike.state()["seats"][0]["can_transplant"]
    with pytest.raises(Refused, match="memories differ"):
        unlike.apply(Transplant(0))
    with pytest.raises(Refused, match="--beside"):
        make_session(one).apply(Transplant(0))


def steps_until_an_end(session: Session) -> None:
    session.step()
    while not session.seats[0].begins_next:
        session.step()


def fast_weights(session: Session, seat: int) -> list[torch.Tensor]:
    core = session.seats[seat].agent.core
    assert isinstance(core, FastWeightCore)
    kinds = [part.kind for part in core.memories()[0].state_parts()]
    state = session.seats[seat]._state
    return [part for part, kind in zip(state, kinds, strict=True) if kind == "fast weights"]


def test_a_wipe_gives_way_to_the_others_memory(tmp_path: Path, seed: int) -> None:
    one, other = (save_run(tmp_path / name, make_agent("rdn")) for name in "ab")
    session = make_session(one, other)
    for _ in range(4):
        session.step()
    session.apply(Wipe(0))
    with pytest.raises(Refused, match=r"^a: there is no write to undo: the memory is wiped as the next"):
        session.apply(Undo(0))
    with pytest.raises(Refused, match=r"^b: the other's memory is empty"):
        session.apply(Transplant(1))  # it is wiped as the next step begins
    assert session.apply(Transplant(0)).startswith("a: step 4: plays on with the memory")
    with pytest.raises(Refused, match="no write to undo: the memory is a copy of the other agent's"):
        session.apply(Undo(0))
    taken = zip(fast_weights(session, 0), fast_weights(session, 1), strict=True)
    assert all(torch.equal(*pair) and pair[0].any() for pair in taken)
    own = [
        part for part in session.seats[0]._state if not any(part is each for each in fast_weights(session, 0))
    ]
    assert own and not any(part.any() for part in own)  # the last outputs are wiped all the same
    (record, _) = session.step()
    assert record["kl"] > 1e-4 and record["policy"] != record["wiped"]
    assert record["notes"] == ["memory wiped", "plays on with the memory of the agent beside"]


def test_nothing_is_taken_or_undone_just_before_an_episode_begins(tmp_path: Path, seed: int) -> None:
    session = make_session(*(save_run(tmp_path / name, make_agent("rdn")) for name in "ab"))
    with pytest.raises(Refused, match="the next step begins an episode"):
        session.apply(Transplant(0))
    steps_until_an_end(session)
    for command in (Transplant(0), Undo(0)):
        with pytest.raises(Refused, match="the next step begins an episode"):
            session.apply(command)
    (record, _) = session.step()
    assert record["begins"] and record["notes"] == []
    session.seats[1]._over, session.seats[0]._over = True, False
    with pytest.raises(Refused, match="the other's memory is empty"):
        session.apply(Transplant(0))


def test_environments_that_cannot_be_made_anew_leave_the_old_ones(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = make_session(save_run(tmp_path, make_agent("lstm")))

    def fail() -> Any:
        raise OSError("no memory")

    monkeypatch.setattr(session.seats[0], "_make_envs", fail)
    with pytest.raises(OSError, match="no memory"):
        session.apply(Restart(3))
    assert len(take(session, 2)) == 2


def test_newer_checkpoints_play_from_the_next_episode_on(tmp_path: Path, seed: int) -> None:
    save_run(tmp_path, make_agent("rdn"))
    session = make_session(tmp_path)
    take(session, 3)
    newer = make_agent("rdn")
    save_run(tmp_path, newer, 640)
    session.look_for_checkpoints()
    about = session.state()["seats"][0]
    assert (about["step"], about["waiting"], about["checkpoints"]) == (320, 640, [320, 640])
    records = take(session, 20)
    (noted,) = [each for each in records if each["notes"]]
    assert noted["begins"] and noted["notes"] == ["the checkpoint at 640 steps plays on"]
    begun = next(each["step"] for each in records if each["begins"])
    assert noted["step"] == begun and session.state()["seats"][0]["step"] == 640
    assert torch.equal(session.seats[0].agent.policy.weight, newer.policy.weight)
    session.apply(UseCheckpoint(0, 320))
    assert not torch.equal(session.seats[0].agent.policy.weight, newer.policy.weight)
    with pytest.raises(Refused, match="no checkpoint at 999 steps"):
        session.apply(UseCheckpoint(0, 999))


def test_a_run_that_is_deleted_plays_on(tmp_path: Path, seed: int) -> None:
    session = make_session(save_run(tmp_path / "run", make_agent("rdn")))
    save_run(tmp_path / "run", make_agent("rdn"), 640)
    session.look_for_checkpoints()
    assert session.state()["seats"][0]["waiting"] == 640
    shutil.rmtree(tmp_path / "run")
    session.look_for_checkpoints()
    assert session.state()["seats"][0]["waiting"] is None
    assert "is gone; its agent plays on" in session.said and len(take(session, 20)) == 20
    assert "is gone; its agent plays on" in session.said
    with pytest.raises(Refused, match="no checkpoint at 320 steps"):
        session.apply(UseCheckpoint(0, 320))


@pytest.mark.parametrize(
    ("fault", "why"),
    [("other", "holds another agent"), ("damaged", "damaged"), ("gone", "no checkpoint at 640")],
)
def test_an_agent_plays_on_where_a_newer_checkpoint_cannot_be_loaded(
    fault: str, why: str, tmp_path: Path, seed: int
) -> None:
    save_run(tmp_path, make_agent("lstm"))
    session = make_session(tmp_path)
    take(session, 3)
    weights = session.seats[0].agent.policy.weight
    save_run(tmp_path, make_agent("lstm", hidden_size=9 if fault == "other" else 8), 640)
    session.look_for_checkpoints()
    (newer,) = (each.path for each in find_checkpoints(tmp_path) if each.step == 640)
    if fault == "gone":
        shutil.rmtree(newer)
    elif fault == "damaged":
        next(newer.glob("*.safetensors")).write_bytes(b"")
    records = take(session, 20)
    about = session.state()["seats"][0]
    assert any(each["begins"] for each in records) and not any(each["notes"] for each in records)
    assert why in session.said and (about["step"], about["waiting"]) == (320, None)
    assert session.seats[0].agent.policy.weight is weights


def test_runs_are_told_apart_by_their_last_parts(tmp_path: Path, seed: int) -> None:
    runs = [save_run(tmp_path / core / "seed-1", make_agent(core)) for core in ("rdn", "lstm")]
    session = make_session(*runs)
    assert [seat["run"] for seat in session.state()["seats"]] == ["rdn/seed-1", "lstm/seed-1"]
    a, b = Path("/r/a/seed-1"), Path("/r/a/seed-2")
    assert short_names([a]) == ["seed-1"] and short_names([a, a]) == ["seed-1", "seed-1"]
    assert short_names([a, b]) == ["seed-1", "seed-2"] and short_names([Path("/a/b"), Path("b")])[0] == "a/b"


def test_a_history_is_bounded_by_its_bytes(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = make_session(save_run(tmp_path, make_agent("feedforward")))
    monkeypatch.setattr("deltabeast.launch.watching.seat.seen", lambda _: {"png": "x" * 1_500_000})
    records = take(session, 9)
    assert [step[0] for step in session.history()] == records[-5:]  # at most 8 MB
    monkeypatch.setattr("deltabeast.launch.watching.seat.seen", lambda _: {"png": "x" * 9_000_000})
    assert [step[0] for step in session.history()] != take(session, 1) and len(session.history()) == 1
    monkeypatch.setattr("deltabeast.launch.watching.seat.seen", lambda _: {"png": "x" * 1_500_000})
    session.apply(Restart(8))
    records = take(session, 7)
    assert [step[0] for step in session.history()] == records[-5:]


def test_a_history_is_bounded_by_its_steps(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deltabeast.launch.watching.session.HISTORY", 4)
    session = make_session(save_run(tmp_path, make_agent("feedforward")))
    records = take(session, 3)
    assert [step[0] for step in session.history()] == records
    records += take(session, 6)
    assert [step[0] for step in session.history()] == records[-4:]


@pytest.mark.parametrize(
    ("core", "has"),
    [
        ("feedforward", set()),
        ("lstm", {"wiped", "kl", "layers"}),
        ("softmax_attention", {"wiped", "kl", "layers", "reading"}),
        ("delta_lstm", {"wiped", "kl", "layers", "reading"}),
    ],
)
def test_every_agent_shows_what_it_has(core: str, has: set[str], tmp_path: Path, seed: int) -> None:
    session = make_session(save_run(tmp_path, make_agent(core)))
    record = take(session, 3)[-1]
    text = json.dumps([record, session.state()], allow_nan=False)
    assert json.loads(text)[0] == record
    assert {name for name in ("wiped", "kl", "layers", "reading") if record.get(name)} == has
    if core == "feedforward":
        for command in (Wipe(0), Undo(0)):
            with pytest.raises(Refused, match="feedforward has no memory"):
                session.apply(command)
    elif core == "lstm":
        assert [list(layer) for layer in record["layers"]] == [["norm"]]
        session.apply(Undo(0))
        session.apply(Wipe(0))
    elif core == "softmax_attention":
        assert all(layer == {} for layer in record["layers"])
        session.apply(Undo(0))
        assert take(session, 1)[0]["reading"]["shares"][2] == 0


def test_weights_that_are_nan_are_shown_as_null(tmp_path: Path, seed: int) -> None:
    agent = make_agent("rdn")
    with torch.no_grad():
        agent.baseline.weight.fill_(torch.nan)
    session = make_session(save_run(tmp_path, agent))
    assert take(session, 1)[0]["value"] is None


def test_commands_are_parsed_or_refused() -> None:
    assert parse_command(b'{"do": "checkpoint", "seat": 1, "step": 320}') == UseCheckpoint(1, 320)
    assert parse_command(b'{"do": "speed", "factor": 2}') == Speed(2)
    for wrong, why in (
        (b"", "no JSON"),
        (b"\xff", "no JSON"),
        (b"[" * 500, "no JSON"),
        (b"[]", "one of pause, step"),
        (b'{"do": []}', "one of pause, step"),
        (b'{"do": "rm"}', "one of pause, step"),
        (b'{"do": "wipe"}', r"wipe: give seat \(a whole number"),
        (b'{"do": "wipe", "seat": true}', r"wipe: give seat \(a whole number"),
        (b'{"do": "wipe", "seat": -1}', r"wipe: give seat \(a whole number"),
        (b'{"do": "wipe", "seat": 0, "path": "/"}', r"wipe: give seat \(a whole number"),
        (b'{"do": "restart", "seed": 2147483648}', r"seed \(a whole number from 0 to 2,147,483,647\)"),
        (b'{"do": "step", "seat": 0}', "step: give nothing else"),
        (b'{"do": "speed", "factor": NaN}', "speed: give factor|no JSON"),
        (b'{"do": "pause", "on": 1}', r"pause: give on \(true or false\)"),
    ):
        with pytest.raises(Refused, match=why):
            parse_command(wrong)


def test_a_speed_is_one_of_those_shown(tmp_path: Path, seed: int) -> None:
    session = make_session(save_run(tmp_path, make_agent("lstm")))
    session.apply(Speed(2.0))
    assert session.seconds_per_step == pytest.approx(0.1)
    with pytest.raises(Refused, match=r"choose one of 0\.25, 0\.5, 1, 2, 4"):
        session.apply(Speed(1e9))
    assert session.speed == 2.0


def test_two_agents_play_from_one_seed(tmp_path: Path, seed: int) -> None:
    agent: Agent = make_agent("rdn")
    session = make_session(save_run(tmp_path / "a", agent), save_run(tmp_path / "b", agent), greedy=False)
    for _ in range(30):
        one, other = session.step()
        assert one == other
    assert [session.apply(Wipe(n)) for n in (0, 1)] == [
        "a: step 30: memory wiped",
        "b: step 30: memory wiped",
    ]
    alike = make_session(tmp_path / "a", tmp_path / "a")
    assert alike.apply(Wipe(1)) == "second agent: step 0: memory wiped"
