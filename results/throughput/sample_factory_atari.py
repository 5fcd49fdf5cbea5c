"""Sample Factory 2.1.1 on Atari, for `peers.py` and `time_to_score.py`: its own trainer.

Two things keep it from running as released. Its Atari names are not registered beside ale-py 0.12 and
gymnasium 0.29, so they are here; and its summaries read advantages, which V-trace lacks: they get a zero.
"""

import re

import gymnasium
import torch
from sample_factory.algo.learning.learner import Learner
from sf_examples.atari.atari_utils import ATARI_ENVS
from sf_examples.atari.train_atari import main

for spec in ATARI_ENVS:
    name = spec.env_id.removesuffix("NoFrameskip-v4")  # SpaceInvaders is the game space_invaders
    game = re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
    gymnasium.register(
        spec.env_id,
        entry_point="ale_py.env:AtariEnv",
        kwargs={
            "game": game,
            "frameskip": 1,
            "repeat_action_probability": 0.0,
            "max_num_frames_per_episode": 108_000,
            "obs_type": "rgb",
        },
    )
record_summaries = Learner._record_summaries


def with_advantages(self, variables):
    variables.mb["advantages"] = torch.zeros(1)
    return record_summaries(self, variables)


Learner._record_summaries = with_advantages  # also in its learner's process, which imports this file

if __name__ == "__main__":
    main()
