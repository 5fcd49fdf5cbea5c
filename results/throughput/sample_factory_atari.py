"""Sample Factory 2.1.1 on Pong with V-trace and an LSTM, for `peers.py`: its own trainer.

Two things keep it from running as released. Its Atari names are not registered beside ale-py 0.12 and
gymnasium 0.29, so they are here; and its summaries read advantages, which V-trace lacks: they get a zero.
"""

import gymnasium
import torch
from sample_factory.algo.learning.learner import Learner
from sf_examples.atari.train_atari import main

gymnasium.register(
    "PongNoFrameskip-v4",
    entry_point="ale_py.env:AtariEnv",
    kwargs={"game": "pong", "frameskip": 1, "repeat_action_probability": 0.0, "obs_type": "rgb"},
)
record_summaries = Learner._record_summaries


def with_advantages(self, variables):
    variables.mb["advantages"] = torch.zeros(1)
    return record_summaries(self, variables)


Learner._record_summaries = with_advantages  # also in its learner's process, which imports this file

if __name__ == "__main__":
    main()
