"""Where a watched agent comes from: a run, whose newer checkpoints it takes up as training goes on."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from gymnasium.vector import VectorEnv

from ...agents import Agent, Checkpoint, CheckpointError, find_checkpoints, load_agent
from ...agents.manifest import weights_digest
from ...envs import DEFAULT_PROTOCOL, find_protocol
from ..config import WatchConfig
from ..errors import UsageError, one_line
from ..evaluation.environments import action_names, check_fit, choose_protocol, env_maker
from ..evaluation.loading import load
from ..evaluation.recording import game, title_of
from ..evaluation.video import EMULATOR_FRAMES_PER_SECOND
from ..runs.consent import check_env
from ..sharing.hub import run_here
from .commands import Refused

SLOW_STEPS = 5.0
"""Steps a second in environments that have no speed of their own."""


class Source:
    """A run, the checkpoint of it that plays, and the environments that it plays in."""

    def __init__(self, config: WatchConfig, run: Path, which: str, say: Callable[[str], None]) -> None:
        """Load the agent of a run, or of one checkpoint. Raises UsageError or RunError, in one line."""
        loaded = load(run_here(run), which, config.trust_core, say)
        self.agent, self.step = loaded.agent, loaded.step
        self.weights = weights_digest(loaded.checkpoint)
        self.run = loaded.run_dir
        self.follows = which == "latest" and loaded.checkpoint != run
        """Whether newer checkpoints are taken up."""
        self._trust_core = config.trust_core
        spec = self.spec = loaded.agent.spec
        if spec.game is None:
            check_env(spec.env_id or "", spec.env_options, config.trust_env, loaded.checkpoint)
        try:
            self.protocol = choose_protocol(spec, config.protocol, config.flicker, config.blink)
            self._make_env = env_maker(spec, self.protocol, num_threads=1)
            with closing(self._make_env(1)) as env:
                check_fit(spec, env)
                self.actions = list(action_names(env))
        except (ValueError, FileNotFoundError) as error:
            raise UsageError(str(error)) from error

    @property
    def title(self) -> str:
        return title_of(self.spec)

    @property
    def steps_per_second(self) -> float:
        """The game's own speed."""
        if self.protocol is None:
            return SLOW_STEPS
        return EMULATOR_FRAMES_PER_SECOND / find_protocol(self.protocol).frame_skip

    def make_envs(self) -> tuple[VectorEnv, VectorEnv | None]:
        """Make the environment and, of an Atari game, the same in colour."""
        if self.spec.game is None:
            return self._make_env(1), None
        protocol = self.protocol or DEFAULT_PROTOCOL
        return game(self.spec, protocol, colour=False), game(self.spec, protocol, colour=True)

    def saved_steps(self) -> list[int]:
        """List the checkpoints that there are now, oldest first; none if the run is gone."""
        return [checkpoint.step for checkpoint in self._checkpoints()]

    def load(self, step: int) -> Agent:
        """Load another checkpoint. Raises Refused, and the agent plays on."""
        found = {each.step: each.path for each in self._checkpoints()}
        if step not in found:
            raise Refused(f"there is no checkpoint at {step:,} steps any more; choose another")
        try:
            agent = load_agent(found[step], trust_core=self._trust_core)
        except (CheckpointError, OSError, ValueError) as error:
            raise Refused(one_line(error)) from error
        if agent.spec != self.spec:
            raise Refused(f"the checkpoint at {step:,} steps holds another agent; watch its run")
        self.step, self.weights = step, weights_digest(found[step])
        return agent

    def _checkpoints(self) -> list[Checkpoint]:
        try:
            return find_checkpoints(self.run)
        except OSError:
            return []
