"""Atari games, many at once, under a protocol."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from ale_py import AtariVectorEnv
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from .checks import Seeds, check_actions, environment_seeds, rows_to_reset
from .consoles import Consoles, EmulatorSettings, check_choices
from .episodes import EpisodeStatistics
from .forced_actions import ForcedActions
from .frame_stack import repeat_first_frame
from .games import action_meanings, canonical_game, opening_frames, screen_size
from .limits import available_threads
from .occlusion import occlusions
from .protocols import DEFAULT_PROTOCOL, Protocol, find_protocol
from .score_wraps import unwrap_scores
from .spread import spread

Frames = npt.NDArray[np.uint8]
Actions = npt.NDArray[np.int64]
Step = tuple[Frames, npt.NDArray[np.float32], npt.NDArray[np.bool_], npt.NDArray[np.bool_], dict[str, Any]]


class AtariGames(VectorEnv[Frames, Actions, npt.NDArray[Any]]):
    """A vector environment around ALE's own, which steps the emulators in C++ threads.

    ALE plays; this class adds what the protocol asks for and ALE lacks (README.md, "Who resets what"), and
    the returns and lengths of lives and games. It works on whole arrays: nothing but what hides screens or
    balls loops over environments.

    colour: observations are the emulator's whole screen instead, `[N, 1, height, width, 3]`, with nothing
    hidden, for people to look at. The same seed and actions give the same games either way.
    """

    def __init__(
        self,
        game: str,
        num_envs: int,
        protocol: str = DEFAULT_PROTOCOL,
        num_threads: int | None = None,
        full_action_set: bool | None = None,
        colour: bool = False,
        options: Mapping[str, Any] | None = None,
        num_actions: int | None = None,
    ) -> None:
        """Make the games.

        Args:
            game: name of the game, in any usual spelling.
            num_envs: number of games.
            protocol: name of the protocol.
            num_threads: threads of the emulators; by default one a core.
            full_action_set: overrides the protocol's.
            colour: whether observations are whole screens in colour.
            options: the game's mode and difficulty, where they are not the usual ones.
            num_actions: only the first so many actions of the set.

        Raises:
            ValueError: for an unknown game, protocol or option, or more actions than the set has.
        """
        self.game = canonical_game(game)
        self.protocol = protocol
        self.rules: Protocol = find_protocol(protocol)
        full = self.rules.full_action_set if full_action_set is None else full_action_set
        action_set = action_meanings(self.game, full)
        if num_actions is not None and not 1 <= num_actions <= len(action_set):
            raise ValueError(
                f"{self.game} has {len(action_set)} actions; it cannot be played with {num_actions}"
            )
        self.action_meanings = action_set[:num_actions]

        height, width = screen_size(self.game) if colour else (84, 84)
        stack = 1 if colour else self.rules.frame_stack
        hidden = occlusions(self.game, num_envs, stack, self.rules.flicker, self.rules.blink)
        threads = min(num_threads or available_threads(), num_envs)
        choices = check_choices(self.game, options or {})
        settings = EmulatorSettings(
            game=self.game,
            img_height=height,
            img_width=width,
            grayscale=not colour,
            stack_num=stack,
            frameskip=self.rules.frame_skip,
            maxpool=self.rules.max_pool,
            repeat_action_probability=self.rules.sticky_probability,
            noop_max=self.rules.noop_frames[1] + 1,  # ALE draws from 0 to noop_max - 1
            full_action_space=full,
            max_num_frames_per_episode=self.rules.frame_limit(self.game),
            life_loss_info=self.rules.life_ends_episode,
        )
        self._ale: AtariVectorEnv | Consoles | None
        with spread(num_envs, threads):
            self._ale = (
                Consoles(settings, choices, num_envs, threads)
                if choices
                else AtariVectorEnv(
                    **settings._asdict(),
                    num_envs=num_envs,
                    num_threads=threads,
                    autoreset_mode=AutoresetMode.SAME_STEP,
                    episodic_life=False,  # would start the whole game again
                    use_fire_reset=False,  # presses FIRE before the no-ops, not after, and never after a life
                    reward_clipping=False,
                )
            )
        self.num_envs = num_envs
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP, "reset_mask": True}
        self.single_observation_space = Box(0, 255, (stack, height, width, 3)[: 4 if colour else 3], np.uint8)
        self.single_action_space = Discrete(len(self.action_meanings))
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

        least = self.rules.noop_frames[0]
        self._first_frame = least and opening_frames(self.game, frozenset(choices.items())) + least
        """The emulator's frame count after the fewest no-ops; 0 where there may be none."""
        self._seeded = False
        self._statistics = EpisodeStatistics(num_envs)
        self._forced = (
            ForcedActions(num_envs, action_meanings(self.game), action_set) if self.rules.press_fire else None
        )
        self._occlusions = [] if colour else hidden
        self._age = np.zeros(num_envs, np.int64)  # frames since the first one of the agent's episode
        self._game_start = np.zeros(num_envs, np.int64)  # the emulator's frame count when the game began

    def reset(
        self, *, seed: Seeds | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Frames, dict[str, Any]]:
        unknown = sorted(set(options or {}) - {"reset_mask"})
        if unknown:
            raise ValueError(f"Atari games take no reset options but reset_mask, got {unknown}")
        rows = rows_to_reset(options, self.num_envs)
        if seed is None and not self._seeded:
            # ALE's own default seeds the sticky actions of every game with the same clock.
            seed = int(np.random.SeedSequence().generate_state(1)[0])
        ale = self._open()
        seeds = None if seed is None else environment_seeds(seed, self.num_envs)[rows]
        obs, ale_info = ale.reset(seed=seeds, options=None if rows.all() else {"reset_mask": rows})
        self._seeded = True
        self._start_games(obs, ale_info, rows)
        self._age[rows] = 0
        if seeds is not None:
            for each in self._occlusions:
                each.seed(seeds, rows)
        self._fill_stack(obs, self._age, rows)
        if self._forced is not None:
            self._forced.reset(rows)
        infos = self._statistics.reset(rows)
        infos["forced"] = np.zeros(self.num_envs, bool)
        return obs, {**infos, **_emulator_infos(ale_info)}

    def step(self, actions: npt.ArrayLike) -> Step:
        checked = check_actions(actions, self.num_envs, len(self.action_meanings))
        ale = self._open()
        if self._forced is None:
            forced = np.zeros(self.num_envs, bool)
        else:
            checked, forced = self._forced.override(checked)

        obs, ale_rewards, terminated, truncated, ale_info = ale.step(checked)

        done = terminated | truncated
        game_over = ale_info["frame_number"] - ale_info["episode_frame_number"] != self._game_start
        rewards, wraps = unwrap_scores(ale_rewards.astype(np.float64))
        rewards[forced] = 0.0  # points of these steps are nobody's, as in the published code
        infos = self._statistics.update(rewards, ~forced, wraps, done, game_over)

        if (cut := truncated & ~terminated).any():
            last = self._last_observations(ale_info["final_obs"], np.where(forced, 0, self._age + 1), cut)
            infos |= {"final_obs": last, "_final_obs": cut}
        if game_over.any():
            self._start_games(obs, ale_info, game_over)
        if self._forced is not None:
            self._forced.advance(done, game_over)
        self._age = np.where(done | forced, 0, self._age + 1)
        self._fill_stack(obs, self._age, np.ones(self.num_envs, bool))
        infos["forced"] = forced
        infos |= _emulator_infos(ale_info)
        return obs, rewards.astype(np.float32), terminated, truncated, infos

    def close_extras(self, **kwargs: Any) -> None:
        self._ale = None  # its destructor joins the threads

    def _open(self) -> AtariVectorEnv | Consoles:
        if self._ale is None:
            raise RuntimeError("this environment is closed")
        return self._ale

    def _start_games(self, obs: Frames, ale_info: dict[str, Any], rows: npt.NDArray[np.bool_]) -> None:
        """Redraw the number of no-ops where it is too small, and note the frames at which the games begin.

        ALE draws from zero, the protocol may want one at least: drawing again leaves the rest equally likely.
        """
        while True:
            again = rows & (ale_info["episode_frame_number"] < self._first_frame)
            if not again.any():
                break
            new_obs, new_info = self._open().reset(options={"reset_mask": again})
            obs[again] = new_obs[again]
            ale_info.update(new_info)
        starts = ale_info["frame_number"] - ale_info["episode_frame_number"]
        self._game_start = np.where(rows, starts, self._game_start)

    def _last_observations(
        self, shown: Frames, age: npt.NDArray[np.int64], rows: npt.NDArray[np.bool_]
    ) -> Frames:
        """Return what the agent sees last of the games that were stopped in `rows`; black elsewhere."""
        last = np.where(rows[:, *[None] * (shown.ndim - 1)], shown, np.uint8(0))
        self._fill_stack(last, age, rows)
        return last

    def _fill_stack(self, obs: Frames, age: npt.NDArray[np.int64], rows: npt.NDArray[np.bool_]) -> None:
        if self.rules.repeat_first_frame:
            repeat_first_frame(obs, age)
        for each in self._occlusions:
            each.show(obs, age, rows)


def _emulator_infos(ale_info: dict[str, Any]) -> dict[str, Any]:
    """Return the emulator's infos, after the reset if there was one; game_frames include the no-ops."""
    return {"lives": ale_info["lives"], "game_frames": ale_info["episode_frame_number"]}
