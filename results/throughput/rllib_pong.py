"""RLlib 2.60's IMPALA on Pong with the deep residual network and an LSTM, for `peers.py`.

Usage: rllib_pong.py MODEL SECONDS; MODEL is "residual" or "small". Prints the agent steps a second that were
sampled and learned from, after 20 seconds of warming up.
"""

import sys
import time

import gymnasium
import torch
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.apis import ValueFunctionAPI
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.core.rl_module.torch import TorchRLModule
from ray.rllib.env.wrappers.atari_wrappers import wrap_atari_for_new_api_stack
from ray.tune.registry import register_env
from torch import nn
from torch.nn import functional as F


def make_env(_):
    import ale_py

    gymnasium.register_envs(ale_py)
    env = gymnasium.make("ale_py:ALE/Pong-v5", frameskip=1, repeat_action_probability=0.0)
    return wrap_atari_for_new_api_stack(env, dim=84, framestack=4)


class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x):
        return x + self.second(F.relu(self.first(F.relu(x))))


class DeepResidualLSTM(TorchRLModule, ValueFunctionAPI):
    """IMPALA's deep network and an LSTM of 256 units, channels-last as ours."""

    def setup(self):
        layers, last = [], 4
        for channels in (16, 32, 32):
            layers += [
                nn.Conv2d(last, channels, 3, padding=1),
                nn.MaxPool2d(3, 2, 1),
                Block(channels),
                Block(channels),
            ]
            last = channels
        self.trunk = nn.Sequential(*layers, nn.ReLU(), nn.Flatten(), nn.Linear(3872, 256), nn.ReLU())
        self.trunk = self.trunk.to(memory_format=torch.channels_last)
        self.lstm = nn.LSTM(256, 256, batch_first=True)
        self.policy, self.value = nn.Linear(256, 6), nn.Linear(256, 1)

    def get_initial_state(self):
        return {"h": torch.zeros(256).numpy(), "c": torch.zeros(256).numpy()}

    def _features(self, batch):
        frames, state = batch[Columns.OBS], batch[Columns.STATE_IN]
        B, T = frames.shape[:2]
        x = frames.flatten(0, 1).permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last)
        y, (h, c) = self.lstm(
            self.trunk(x).unflatten(0, (B, T)), (state["h"].unsqueeze(0), state["c"].unsqueeze(0))
        )
        return y, {"h": h.squeeze(0), "c": c.squeeze(0)}

    def _forward(self, batch, **kwargs):
        y, state = self._features(batch)
        return {Columns.ACTION_DIST_INPUTS: self.policy(y), Columns.STATE_OUT: state}

    def _forward_train(self, batch, **kwargs):
        y, state = self._features(batch)
        return {Columns.ACTION_DIST_INPUTS: self.policy(y), Columns.EMBEDDINGS: y, Columns.STATE_OUT: state}

    def compute_values(self, batch, embeddings=None):
        y = self._features(batch)[0] if embeddings is None else embeddings
        return self.value(y).squeeze(-1)


def main(model, seconds):
    register_env("pong", make_env)
    config = (
        IMPALAConfig()
        .environment("pong")
        .env_runners(num_env_runners=2, num_envs_per_env_runner=16, rollout_fragment_length=50)
        .learners(num_learners=0)
        .training(train_batch_size_per_learner=1600, lr=6e-4, vf_loss_coeff=0.5, entropy_coeff=0.01)
    )
    if model == "residual":
        config.rl_module(
            rl_module_spec=RLModuleSpec(module_class=DeepResidualLSTM, model_config={"max_seq_len": 50})
        )
    else:
        config.rl_module(
            model_config=DefaultModelConfig(
                conv_filters=[[32, 8, 4], [64, 4, 2], [64, 3, 1]],
                use_lstm=True,
                lstm_cell_size=256,
                max_seq_len=50,
            )
        )
    algorithm = config.build_algo()
    marks, start = [], time.time()
    while time.time() - start < 20 + seconds:
        result = algorithm.train()
        learned = result.get("learners", {}).get("default_policy", {})
        sampled = result.get("env_runners", {})
        if learned and sampled:  # the first results may have neither
            steps = learned["num_module_steps_trained_lifetime"], sampled["num_env_steps_sampled_lifetime"]
            marks.append((time.time(), *steps))
    warm = [mark for mark in marks if mark[0] - start > 20]
    (begin, *first), (end, *last) = warm[0], warm[-1]
    learned, sampled = ((b - a) / (end - begin) for a, b in zip(first, last, strict=True))
    print(f"agent steps/s: {learned:.0f} learned, {sampled:.0f} sampled, in {end - begin:.0f} s")
    algorithm.stop()


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
