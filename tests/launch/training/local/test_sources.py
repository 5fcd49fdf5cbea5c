"""How unrolls become batches, and what threads of actors may never do: pile up, fall behind, hang, vanish."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator

import pytest
import torch

from deltabeast.agents import Episodes, Unroll
from deltabeast.agents.stopwatch import Stopwatch
from deltabeast.launch.training.engine import ActorError
from deltabeast.launch.training.local import sources
from deltabeast.launch.training.local.sources import Lockstep, Threads, batches

T = 3


class FakeActor:
    """Column c of its unroll n holds 1000 * name + 10 * n + c everywhere; every column reports an episode."""

    def __init__(self, name: int, num_envs: int, seconds: float = 0.0, fails_at: int | None = None) -> None:
        self.name, self.num_envs, self.seconds, self.fails_at = name, num_envs, seconds, fails_at
        self.stopwatch = Stopwatch()
        self.collected = 0
        self.version = 0
        self.hold: threading.Event | None = None

    def collect(self) -> Unroll:
        if self.collected == self.fails_at:
            raise KeyError("the emulator broke")
        with self.stopwatch("emulation"):
            time.sleep(self.seconds)
            if self.hold is not None:
                self.hold.wait(30)
        value = 1000 * self.name + 10 * self.collected + torch.arange(self.num_envs)
        self.collected += 1
        return make_unroll(value.float(), self.version)


def make_unroll(value: torch.Tensor, version: int = 0) -> Unroll:
    B = len(value)
    scores = value.tolist()
    return Unroll(
        observation=value[None, :, None].expand(T + 1, B, 2).clone(),
        reward=value.expand(T + 1, B).clone(),
        done=(value % 2 == 0).expand(T + 1, B).clone(),
        action=value.long().expand(T, B).clone(),
        behavior_logits=value[None, :, None].expand(T, B, 4).clone(),
        forced=(value % 3 == 0).expand(T, B).clone(),
        truncation_bootstrap=value.expand(T, B).clone(),
        state=(value[:, None].clone(), value[:, None, None].clone()),
        version=version,
        episodes=Episodes(scores, scores, [int(s) for s in scores], score_wraps=B),
    )


def columns(unroll: Unroll) -> list[float]:
    """The value of each column, after checking that the whole column has it."""
    value = unroll.reward[0]
    expected = make_unroll(value, unroll.version)
    for name in ("observation", "reward", "done", "action", "behavior_logits", "forced"):
        assert torch.equal(getattr(unroll, name), getattr(expected, name)), name
    for part, wanted in zip(unroll.state, expected.state, strict=True):
        assert torch.equal(part, wanted)
    return list(value.tolist())


@pytest.mark.parametrize(("num_envs", "batch_size"), [(4, 4), (1, 6), (2, 6), (6, 2), (6, 1), (1, 1)])
def test_batches_keep_every_column_and_every_episode_once(num_envs: int, batch_size: int) -> None:
    actor = FakeActor(1, num_envs)
    unrolls = [actor.collect() for _ in range(12)]
    made = list(batches(iter(unrolls), batch_size))
    assert all(batch.num_envs == batch_size and batch.num_steps == T * batch_size for batch in made)
    expected = [value for unroll in unrolls for value in columns(unroll)]
    assert [value for batch in made for value in columns(batch)] == expected
    for name in ("life_returns", "game_returns", "game_lengths"):
        assert [v for batch in made for v in getattr(batch.episodes, name)] == expected
    assert sum(batch.episodes.score_wraps for batch in made) == len(expected)


def test_a_joined_batch_is_as_old_as_its_oldest_part() -> None:
    parts = [make_unroll(torch.arange(2.0), version) for version in (7, 5, 9)]
    assert [batch.version for batch in batches(iter(parts), 6)] == [5]
    assert [batch.version for batch in batches(iter(parts), 1)] == [7, 7, 5, 5, 9, 9]


def test_lockstep_takes_turns_and_goes_on_with_the_turn_it_left() -> None:
    def first(turn: int, count: int) -> tuple[list[int], int]:
        actors = [FakeActor(name, 2) for name in range(3)]
        source = Lockstep(actors, 4, turn)  # type: ignore[arg-type]
        made = iter(source)
        names = [int(value) // 1000 for _ in range(count) for value in columns(next(made))[::2]]
        return names, source.turn

    assert first(0, 3) == ([0, 1, 2, 0, 1, 2], 0)
    names, turn = first(0, 2)
    assert (names, turn) == ([0, 1, 2, 0], 1)
    assert first(turn, 1)[0] == [1, 2]


def test_lockstep_knows_when_an_unroll_is_half_learned() -> None:
    source = Lockstep([FakeActor(0, 6)], 2)  # type: ignore[list-item]
    made = iter(source)
    boundaries = [next(made) and source.at_boundary() for _ in range(6)]
    assert boundaries == [False, False, True, False, False, True]


def test_an_update_is_waited_for_only_where_there_is_no_other_batch() -> None:
    """In turns, once for an unroll of three batches; with threads, not while unrolls lie in the queue."""
    calls: list[int] = []
    actors = [FakeActor(name, 6) for name in range(2)]
    made = iter(Lockstep(actors, 2, 0, lambda: calls.append(0)))  # type: ignore[arg-type]
    assert [next(made) and len(calls) for _ in range(7)] == [1, 1, 1, 2, 2, 2, 3]

    calls.clear()
    source = Threads([FakeActor(0, 2)], 2, threading.Event(), before_waiting=lambda: calls.append(0))  # type: ignore[list-item]
    for number in range(4):
        source._queue = queue.Queue()
        source._queue.put(make_unroll(torch.arange(2.0) + number))
        next(iter(source))
    assert not calls
    source._stop.set()
    assert list(source) == [] and calls == [0]


def test_lockstep_says_which_actor_failed() -> None:
    actors = [FakeActor(0, 2), FakeActor(1, 2, fails_at=1)]
    made = iter(Lockstep(actors, 2))  # type: ignore[arg-type]
    for _ in range(3):
        next(made)
    with pytest.raises(ActorError, match=r"actor 1 failed: KeyError\('the emulator broke'\)") as raised:
        next(made)
    assert isinstance(raised.value.__cause__, KeyError)


@pytest.fixture
def no_thread_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    left = set(threading.enumerate()) - before
    assert not left, left


def threads(actors: list[FakeActor], batch_size: int, **kwargs: object) -> Threads:
    return Threads(actors, batch_size, threading.Event(), **kwargs)  # type: ignore[arg-type]


@pytest.mark.usefixtures("no_thread_left")
@pytest.mark.parametrize(("num_envs", "batch_size", "actors"), [(2, 2, 1), (2, 6, 3), (6, 2, 2), (4, 4, 3)])
def test_a_stalled_learner_stalls_the_actors(num_envs: int, batch_size: int, actors: int) -> None:
    made = [FakeActor(name, num_envs) for name in range(actors)]
    with threads(made, batch_size) as source:
        batch = next(iter(source))
        assert batch.num_envs == batch_size
        time.sleep(0.3)
        count = sum(actor.collected for actor in made)
        time.sleep(0.3)
        assert sum(actor.collected for actor in made) == count, "the actors went on"
        per_batch = max(1, batch_size // num_envs)
        assert count <= per_batch + per_batch + actors, "handed over, in the queue, and one in each hand"


@pytest.mark.usefixtures("no_thread_left")
@pytest.mark.parametrize(("num_envs", "batch_size", "actors"), [(2, 2, 1), (2, 6, 3), (6, 2, 1), (2, 2, 3)])
def test_policy_lag_is_bounded_with_a_slow_learner(num_envs: int, batch_size: int, actors: int) -> None:
    made = [FakeActor(name, num_envs) for name in range(actors)]
    lags = []
    with threads(made, batch_size) as source:
        for version, batch in enumerate(source):
            lags.append(version - batch.version)
            time.sleep(0.01)
            for actor in made:
                actor.version = version + 1
            if version == 40:
                break
    per_unroll = max(1, num_envs // batch_size)
    assert max(lags) <= 3 * per_unroll + actors, lags
    assert max(lags) > 0, "nothing overlapped"


@pytest.mark.usefixtures("no_thread_left")
def test_every_actor_contributes_and_nothing_is_lost_or_doubled() -> None:
    made = [FakeActor(name, 2, seconds=0.002) for name in range(3)]
    got: list[float] = []
    with threads(made, 4) as source:
        for index, batch in enumerate(source):
            got += columns(batch)
            assert batch.episodes.game_returns == columns(batch)
            if index == 30:
                break
    assert len(set(got)) == len(got)
    for name in range(3):
        own = [int(value) % 1000 for value in got if value // 1000 == name]
        assert own == [10 * n + c for n in range(len(own) // 2) for c in range(2)] and own


@pytest.mark.usefixtures("no_thread_left")
@pytest.mark.parametrize("error", [KeyError("the emulator broke"), SystemExit(3)])
def test_a_failing_actor_reaches_the_learner_after_what_was_collected(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    actor = FakeActor(0, 2)
    collect = actor.collect

    def failing() -> Unroll:
        if actor.collected == 4:
            raise error
        return collect()

    monkeypatch.setattr(actor, "collect", failing)
    got: list[float] = []
    with threads([actor], 2) as source, pytest.raises(ActorError, match="actor 0 failed") as raised:
        got.extend(batch.num_steps for batch in source)
    assert len(got) == 4 and raised.value.__cause__ is error


@pytest.mark.usefixtures("no_thread_left")
def test_a_thread_that_cannot_start_its_work_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise OSError("no cores")

    with (
        threads([FakeActor(0, 2)], 2, on_start=broken) as source,
        pytest.raises(ActorError, match="no cores"),
    ):
        next(iter(source))


def test_stop_ends_the_batches_though_an_actor_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_PATIENCE", 0.2)
    actor = FakeActor(0, 2)
    stop = threading.Event()
    with Threads([actor], 2, stop) as source:  # type: ignore[list-item]
        made = iter(source)
        next(made)
        actor.hold = threading.Event()
        for _ in range(2):  # at most one in the queue and one on its way
            if actor.stopwatch.stage == "emulation":
                break
            next(made)
        assert source.stage() == "actor 0: emulation"
        stop.set()
        began = time.monotonic()
        assert len(list(made)) <= 2
        assert time.monotonic() - began < 3.0
    actor.hold.set()
    for thread in source._threads:
        thread.join(5)
        assert not thread.is_alive()


def test_stage_names_what_every_actor_does() -> None:
    actors = [FakeActor(0, 1), FakeActor(1, 1)]
    with actors[1].stopwatch("inference"):
        for source in (Lockstep(actors, 1), threads(actors, 1)):  # type: ignore[arg-type]
            assert source.stage() == "actor 0: waiting, actor 1: inference"
