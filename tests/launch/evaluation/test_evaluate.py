"""Evaluation against environments whose every episode is known beforehand."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import statistics
from collections.abc import Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import VectorEnv

from deltabeast.agents import AgentOutput
from deltabeast.envs import make_vector_env
from deltabeast.envs.checks import environment_seeds
from deltabeast.launch.errors import RunError
from deltabeast.launch.evaluation.evaluate import evaluate
from deltabeast.launch.evaluation.play import RandomAgent, Repeat
from deltabeast.launch.evaluation.returns import Evaluation, Summary, bootstrap_interval
from deltabeast.launch.evaluation.tables import evaluation_notes

Episode = tuple[int, float]
"""Length in steps, and the return, which is paid in the last of them."""


class ScriptedEnv(VectorEnv[Any, Any, Any]):
    """Row i plays script[i] over and over. A game is `lives` episodes. Observation: (row, episode, step)."""

    def __init__(
        self,
        script: Sequence[Sequence[Episode]],
        lives: int = 1,
        wrap_at: int | None = None,
        void_at: int | None = None,
    ) -> None:
        self.num_envs = len(script)
        self.script, self.lives, self.wrap_at, self.void_at = script, lives, wrap_at, void_at
        self.single_action_space = gymnasium.spaces.Discrete(3)
        self.single_observation_space = gymnasium.spaces.Box(-1e9, 1e9, (3,), np.float32)
        self.actions: list[np.ndarray] = []
        self.seed: int | None = None
        self.is_closed = False

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        if options is not None:
            self.episode[options["reset_mask"]] += 1
            self.at[options["reset_mask"]] = 0
            return self._observe(), {}
        self.seed = seed
        self.episode = np.zeros(self.num_envs, int)
        self.at = np.zeros(self.num_envs, int)
        self.game = np.zeros((self.num_envs, 2))  # return and length so far
        return self._observe(), {}

    def _observe(self) -> np.ndarray:
        return np.stack([np.arange(self.num_envs), self.episode, self.at], axis=1).astype(np.float32)

    def step(self, actions: Any) -> Any:
        self.actions.append(np.array(actions))
        n = self.num_envs
        names = ("life_return", "life_length", "game_return", "game_length")
        infos: dict[str, Any] = {name: np.zeros(n) for name in names}
        infos |= {f"_{name}": np.zeros(n, bool) for name in names}
        infos["score_wraps"] = np.zeros(n, int)
        rewards, over = np.zeros(n, np.float32), np.zeros(n, bool)
        self.at += 1
        for i in range(n):
            length, value = self.script[i][self.episode[i] % len(self.script[i])]
            if self.at[i] < length:
                continue
            rewards[i], over[i] = value, True
            self.game[i] += (value, length)
            wrapped = self.wrap_at == self.episode[i]
            infos["score_wraps"][i] = wrapped
            infos["life_return"][i], infos["life_length"][i] = value, length
            infos["_life_return"][i] = infos["_life_length"][i] = (
                not wrapped and self.void_at != self.episode[i]
            )
            self.episode[i] += 1
            self.at[i] = 0
            if self.episode[i] % self.lives == 0:
                infos["game_return"][i], infos["game_length"][i] = self.game[i]
                infos["_game_return"][i] = infos["_game_length"][i] = True
                self.game[i] = 0
        return self._observe(), rewards, over, np.zeros(n, bool), infos

    def close_extras(self, **_: Any) -> None:
        self.is_closed = True


class CountingAgent:
    """Its state counts steps since `done`, as a recurrent core's would; it plays the count modulo 3."""

    def __init__(self) -> None:
        self.seen: list[tuple[list[float], list[float], list[bool], list[float]]] = []

    def initial_state(self, batch_size: int, device: Any = None) -> tuple[torch.Tensor, ...]:
        return (torch.zeros(batch_size),)

    def act(
        self, frame: Any, reward: Any, done: Any, state: Any, greedy: bool = False, generator: Any = None
    ) -> Any:
        count = torch.where(done, 0.0, state[0]) + 1
        self.greedy = greedy
        self.seen.append((frame[:, -1].tolist(), reward.tolist(), done.tolist(), count.tolist()))
        logits = torch.zeros(len(reward), 3)
        return AgentOutput((count % 3).long(), logits, logits[:, 0]), (count,)


def play(
    script: Sequence[Sequence[Episode]], lives: int = 1, **options: Any
) -> tuple[Evaluation, ScriptedEnv]:
    env = ScriptedEnv(script, lives, options.pop("wrap_at", None), options.pop("void_at", None))

    def make(num_envs: int) -> ScriptedEnv:
        assert num_envs == len(script)
        return env

    env.metadata = {"reset_mask": options.pop("reset_mask", False)}
    agent = options.pop("agent", CountingAgent())
    return evaluate(agent, make, repeats=len(script), **options), env


def test_every_row_plays_its_own_episodes_whatever_their_length() -> None:
    """Long episodes are worth 100, short ones 1: the first to finish would all be short ones."""
    script = [[(1, 1.0)], [(40, 100.0)], [(3, 1.0), (60, 100.0)]]
    result, _ = play(script, episodes=4)
    assert result.life.returns == [[1.0] * 4, [100.0] * 4, [1.0, 100.0, 1.0, 100.0]]
    assert result.life.lengths == [[1] * 4, [40] * 4, [3, 60, 3, 60]]
    assert result.steps == 4 * 1 + 4 * 40 + 2 * 63


def test_the_statistics_are_those_of_the_publication() -> None:
    script = [[(1, 2.0), (3, 4.0)], [(2, 10.0), (2, 0.0)]]
    summary = play(script, episodes=2)[0].life.summary()
    assert summary == Summary(
        mean=4.0, std=1.0, repeat_means=[3.0, 5.0], overall_mean=4.0,
        interval=bootstrap_interval([2.0, 4.0, 10.0, 0.0]), minimum=0.0, maximum=10.0,
        mean_length=2.0, count=4,
    )  # fmt: skip
    means = summary.repeat_means
    assert summary.std == statistics.pstdev(means) != statistics.stdev(means)


def test_games_count_where_they_end_and_lives_apart() -> None:
    result, _ = play([[(2, 1.0), (3, 5.0)], [(1, 7.0)]], lives=2, episodes=5)
    assert result.life.returns == [[1.0, 5.0, 1.0, 5.0, 1.0], [7.0] * 5]
    assert result.game.returns == [[6.0, 6.0], [14.0, 14.0]]
    assert result.game.lengths == [[5, 5], [2, 2]]
    # The fifth life began a third game, which nobody finished.
    assert result.game.summary() is not None and result.game.summary().count == 4  # type: ignore[union-attr]


def test_without_a_whole_game_there_is_no_game_score() -> None:
    result, _ = play([[(2, 1.0)], [(1, 7.0)]], lives=9, episodes=3)
    assert result.game.summary() is None and result.life.summary() is not None


def test_a_repeat_without_a_game_does_not_make_the_others_nan() -> None:
    result, _ = play([[(2, 1.0)], [(1, -7.0), (1, 7.0)]], lives=3, episodes=2, discard_negative=True)
    summary = result.game.summary()
    assert result.game.returns == [[], [-7.0]]
    assert summary is not None and (summary.mean, summary.std, summary.repeat_means) == (-7.0, 0.0, [-7.0])


def test_negative_episodes_are_replaced_where_the_publication_did_so() -> None:
    script = [[(1, -9.0), (2, 0.0), (1, 4.0)], [(1, 4.0)]]
    result, _ = play(script, episodes=3, discard_negative=True)
    assert result.life.returns == [[0.0, 4.0, 0.0], [4.0] * 3]
    assert result.discarded_negative == 2
    kept, _ = play(script, episodes=3)
    assert kept.life.returns[0] == [-9.0, 0.0, 4.0] and kept.discarded_negative == 0


def test_an_episode_whose_score_wrapped_is_replaced_and_counted() -> None:
    result, _ = play([[(2, 5.0)]], episodes=3, wrap_at=1)
    assert result.life.returns == [[5.0] * 3] and result.steps == 8
    assert (result.score_wraps, result.discarded_wrapped, result.discarded_negative) == (1, 1, 0)


def test_an_episode_in_which_the_agent_never_acted_is_none() -> None:
    result, _ = play([[(2, 5.0)]], episodes=3, wrap_at=0, void_at=1)
    assert result.life.returns == [[5.0] * 3]
    assert (result.discarded_wrapped, result.discarded_negative) == (1, 0)


def test_the_state_is_carried_within_an_episode_and_reset_between() -> None:
    agent = CountingAgent()
    _, env = play([[(3, 2.0)], [(5, 7.0)]], episodes=2, agent=agent)
    steps, rewards, dones, counts = map(
        list, zip(*[(s[0], s[1], s[2], s[3]) for s in agent.seen], strict=True)
    )
    assert dones[0] == [True, True], "the very first frame begins an episode"
    for step, done, count in zip(steps, dones, counts, strict=True):
        assert count == [s + 1 for s in step] and done == [s == 0 for s in step]
    assert rewards[0] == [0.0, 0.0] and rewards[3] == [2.0, 0.0] and rewards[5] == [0.0, 7.0]
    assert [a.tolist() for a in env.actions[:4]] == [[1, 1], [2, 2], [0, 0], [1, 1]]


def test_each_environment_gets_its_own_seed_and_is_closed() -> None:
    _, env = play([[(1, 0.0)]] * 3, episodes=1, seed=17)
    assert env.seed == environment_seeds(17, 3).tolist() and env.is_closed


def test_sampled_actions_follow_the_policy_and_greedy_ones_the_agent() -> None:
    class Certain(CountingAgent):
        def act(self, *arguments: Any, **options: Any) -> Any:
            output, state = super().act(*arguments, **options)
            logits = torch.tensor([0.0, 0.0, math.log(2.0)]).expand(len(output.action), 3)
            return AgentOutput(output.action, logits, output.baseline), state

    _, env = play([[(900, 0.0)]] * 4, episodes=1, agent=Certain())
    assert np.array_equal(env.actions, [[t % 3] * 4 for t in range(1, 901)])
    _, env = play([[(900, 0.0)]] * 4, episodes=1, agent=Certain(), greedy=False)
    shares = np.bincount(np.ravel(env.actions), minlength=3) / 3600
    assert np.abs(shares - [0.25, 0.25, 0.5]).max() < 0.04  # standard deviation below 0.009
    assert len({tuple(row) for row in np.transpose(env.actions)}) == 4  # no two rows draw alike


SCRIPT = [[(1, 1.0)], [(40, 100.0)], [(3, 1.0), (60, -100.0)], [(2, 5.0)], [(7, -1.0), (9, 2.0)]]


class PartEnv(ScriptedEnv):
    """Rows of SCRIPT, known by their seeds; `reset` at the last seed fails, or kills the process."""

    def __init__(self, trouble: str, count: int) -> None:
        super().__init__(SCRIPT[:count])
        self.trouble = trouble

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        indices = [environment_seeds(5, 5).tolist().index(one) for one in seed]
        self.script = [SCRIPT[i] for i in indices]
        if 4 in indices and self.trouble == "fails":
            raise ValueError("a broken emulator")
        if 4 in indices and self.trouble == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if 0 in indices and self.trouble:
            self.script = [[(10**9, 0.0)] for _ in indices]  # must not be waited for
        return super().reset(seed=seed)

    def step(self, actions: Any) -> Any:
        *step, infos = super().step(actions)
        infos["game_return"] = infos["game_return"] + actions  # so that what was drawn shows
        return *step, infos


def play_parts(processes: int, trouble: str = "", **options: Any) -> Evaluation:
    options = {"greedy": False, "discard_negative": True, **options}
    return evaluate(RandomAgent(3), partial(PartEnv, trouble), 4, 5, seed=5, processes=processes, **options)


@pytest.mark.usefixtures("quick_children")
def test_processes_share_the_rows_and_change_nothing() -> None:
    heard: list[tuple[int, int, int]] = []
    alone = play_parts(1)
    shared = play_parts(3, progress=lambda *said: heard.append(said))
    assert alone == shared and alone.discarded_negative == 3 + 4
    assert heard[-1] == (20, 20, alone.steps)


@pytest.mark.usefixtures("quick_children")
@pytest.mark.parametrize(
    ("trouble", "message"),
    [("fails", "a broken emulator"), ("dies", r"^evaluation 2 \(process \d+\) died: killed by signal 9, ")],
)
def test_a_process_in_trouble_is_named_and_ends_the_others(trouble: str, message: str) -> None:
    with pytest.raises(RunError, match=message):
        play_parts(2, trouble, max_episode_steps=10**10)
    assert not [child for child in multiprocessing.active_children() if "evaluation" in child.name]


@pytest.mark.usefixtures("quick_children")
def test_a_limit_that_a_process_meets_is_one_as_ever() -> None:
    alone = play_parts(1, max_episode_steps=30)
    assert play_parts(2, max_episode_steps=30) == alone
    assert (alone.unfinished, alone.missing) == (2, 7)


def test_an_endless_episode_takes_nothing_from_what_ended() -> None:
    """It ends its repeat: nothing says that the next one would end."""
    script = [[(3, 1.0)], [(2, 5.0), (4, 7.0), (1000, 9.0)], [(1000, 1.0)]]
    result, _ = play(script, episodes=5, max_episode_steps=50)
    assert result.life.returns == [[1.0] * 5, [5.0, 7.0], []]
    assert (result.unfinished, result.missing, result.steps) == (2, 8, 15 + 56 + 50)
    assert result.life.summary() is not None and result.life.summary().count == 7  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("outcomes", "goes_on"),
    [
        ("", True),
        ("x", True),
        ("xx", False),
        (".x", True),
        (".xx", False),
        ("..xx", True),
        ("..xxx", False),
        ("....", True),
        (".....", False),
        ("...xx", False),
    ],
)
def test_a_repeat_goes_on_while_no_more_episodes_were_endless_than_ended(
    outcomes: str, goes_on: bool
) -> None:
    row = Repeat(0, 0, np.random.default_rng(0), life_returns=[1.0] * outcomes.count("."))
    for _ in range(outcomes.count("x")):
        row.give_up_episode()
    assert row.goes_on(5, can_begin_anew=True) == goes_on
    assert row.goes_on(5, can_begin_anew=False) == (goes_on and "x" not in outcomes)


def test_after_an_endless_episode_another_begins_in_its_environment_alone(seed: int) -> None:
    """Each third one is endless, the others have ten steps, and twelve are allowed."""

    class Still(CountingAgent):
        def act(self, *arguments: Any, **options: Any) -> Any:
            output, state = super().act(*arguments, **options)
            return AgentOutput(0 * output.action, output.policy_logits, output.baseline), state

    agent = Still()
    make = partial(make_vector_env, env_id="training_envs:SometimesEndless-v0")
    result = evaluate(agent, lambda n: make(num_envs=n), episodes=8, repeats=2, seed=3, max_episode_steps=12)
    assert [list(map(len, part)) for part in (result.life.returns, result.life.lengths)] == [[6, 6], [6, 6]]
    assert {length for row in result.life.lengths for length in row} == {10}
    assert (result.unfinished, result.missing, result.steps) == (4, 4, 2 * (6 * 10 + 2 * 12))
    begins = [step for step, (_, _, done, _) in enumerate(agent.seen) if done[0]]
    assert begins[:5] == [0, 10, 20, 32, 42], "the state of the agent begins anew with the episode"
    assert agent.seen[31][1] == [1, 1] and agent.seen[32][1] == [0, 0], "and what the last one paid is past"


def test_other_environments_go_on_where_one_begins_anew() -> None:
    script = [[(3, 1.0), (1000, 9.0)], [(5, 2.0)]]
    result, _ = play(script, episodes=4, max_episode_steps=10, reset_mask=True)
    assert result.life.returns == [[1.0, 1.0], [2.0] * 4]
    assert (result.unfinished, result.steps) == (2, 2 * 3 + 2 * 10 + 4 * 5)


def test_the_longest_episode_allowed_counts() -> None:
    result, _ = play([[(50, 1.0)]], episodes=2, max_episode_steps=50)
    assert result.life.returns == [[1.0, 1.0]], "the limit itself is allowed, and is one per episode"
    assert (result.unfinished, result.missing) == (0, 0)


def test_nothing_but_discarded_episodes_ends_with_a_message() -> None:
    with pytest.raises(RunError, match="not measurable"):
        play([[(1, -1.0)]], episodes=2, discard_negative=True)


def test_progress_counts_the_episodes_that_count() -> None:
    heard: list[tuple[int, int, int]] = []
    play([[(1, 1.0)], [(4, 1.0)]], episodes=2, progress=lambda *said: heard.append(said))
    assert [done for done, _, _ in heard] == [1, 2, 2, 3, 3, 3, 3, 4] and {said[1] for said in heard} == {4}
    assert [steps for _, _, steps in heard] == [2, 4, 5, 6, 7, 8, 9, 10]


def test_the_random_agent_plays_every_action_alike_and_repeats_with_its_seed() -> None:
    def actions(seed: int) -> np.ndarray:
        _, env = play([[(300, 1.0)]] * 10, episodes=1, agent=RandomAgent(3), greedy=False, seed=seed)
        return np.stack(env.actions)

    first = actions(5)
    assert np.array_equal(first, actions(5)) and not np.array_equal(first, actions(6))
    shares = np.bincount(first.ravel(), minlength=3) / first.size
    assert np.abs(shares - 1 / 3).max() < 0.03  # 3,000 draws: standard deviation 0.009


def test_lives_are_explained_where_they_are_not_whole_games() -> None:
    for lives, explained in ((2, True), (1, False)):
        result, _ = play([[(3, 1.0)]], lives, episodes=4)
        notes = evaluation_notes({"trained": result}, lives=True)
        assert any("one life here" in note for note in notes) is explained
