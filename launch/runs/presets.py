"""Named sets of options to begin from: `--preset NAME`. Single options override them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ..config import Scope, TrainConfig
from .options import deciding

PURPOSES: Final[Mapping[str, str]] = {
    "published": "as in Irie et al. 2021",
    "laptop": "1.5M steps, some 12 to 25 minutes on two CPU cores",
    "laptop-2026-11": "what laptop was before: 5M steps, some 30 to 60 minutes on two CPU cores",
    "gymnasium": "small environments, 3M steps in some minutes on two CPU cores",
}
PRESETS: Final[Mapping[str, Mapping[str, Any]]] = {
    # Irie et al. (2021), section 4.4 and appendix C, and the released code where they leave something open.
    "published": {
        "stem": "residual",
        "precision": "fp32",
        "bptt": "per_step",
        "steps": "200M",
        "milestone_steps": "50M",
        "checkpoint_minutes": 10.0,
        "unroll_length": 50,
        "batch_size": 32,
        "learning_rate": 6e-4,
        "discount": 0.99,
        "reward_clip": 1.0,
        "truncation": "terminal",
        "entropy_cost": 0.01,
        "baseline_cost": 0.5,
        "rmsprop_eps": 0.01,
        "rmsprop_corrected": False,
        "max_grad_norm": 40.0,
    },
    # Found by a search (results/laptop): pixels normalised, so that what moves stands out; few steps an
    # update, as a short run needs many updates; less entropy than published, so that the policy can settle.
    "laptop": {
        "stem": "shallow",
        "normalise_observations": "on",
        "steps": "1500k",
        "num_envs": 16,
        "batch_size": 16,
        "unroll_length": 20,
        "learning_rate": 4e-4,
        "entropy_cost": 0.005,
        "rmsprop_eps": 1e-3,
    },
    # `laptop` until November 2026, which tables of before cite and runs of before go on with.
    "laptop-2026-11": {
        "stem": "nature",
        "steps": "5M",
        "num_envs": 16,
        "batch_size": 16,
        "unroll_length": 20,
        "learning_rate": 4e-4,
        "entropy_cost": 0.005,
        "rmsprop_eps": 1e-3,
    },
    # What --env begins from (results/first-hour): small batches, as for laptop; rewards and
    # advantages normalised, none clipped. It is over in minutes, so that a checkpoint each ten would be none.
    "gymnasium": {
        "steps": "3M",
        "checkpoint_minutes": 1.0,
        "num_envs": 16,
        "batch_size": 16,
        "unroll_length": 20,
        "learning_rate": 5e-4,
        "entropy_cost": 0.05,
        "baseline_cost": 0.1,
        "rmsprop_eps": 1e-3,
        "reward_clip": 0.0,
        "normalise_rewards": True,
        "normalise_advantages": True,
    },
}

FORMER_PRESETS: Final[Mapping[str, tuple[str, str]]] = {"laptop": ("laptop-2026-11", "replay_ratio")}
"""By a preset's name, the name that its former settings have now, and an option as new as the present ones:
runs whose config.json lacks it began with the former settings, and go on with them."""

NOT_PUBLISHED: Final[Mapping[str, str]] = {
    "actors": "one actor of 32 environments, in turns with the learner on a CPU, instead of 48 asynchronous "
    "ones of a single environment",
    "linear_transformer": "its query's gradient sees what is in memory, as it should; the published kernel "
    "computed it from the current step alone",
    "six_actions": "agents of Amidar and James Bond choose among all of the game's actions, not the first 6, "
    "unless told --num-actions 6",
    "environment": "the agent sees the 2 or 3 steps in which FIRE is pressed for it, though it does not "
    "choose in them; they are masked from the policy loss, but count as agent steps; frames turn gray before "
    "they are pooled; the first observation of a life comes with reward 0; the frame limit can come up to 30 "
    "frames later; emulator version and random numbers are others (envs/README.md)",
}
"""Every way in which training with `--preset published` still differs from the publication's."""


def preset_config(name: str | None) -> TrainConfig:
    """Return what `deltabeast train` begins from: the defaults, or those of a preset."""
    return TrainConfig(preset=name, **PRESETS[name]) if name in PRESETS else TrainConfig()  # type: ignore[arg-type, index]


def overridden(config: Mapping[str, Any]) -> list[str]:
    """List the options in which a run differs from its preset, as `name value`: those that the preset sets
    first, then others that decide what is learned. Empty without a preset."""
    preset = str(config.get("preset"))
    if preset not in PRESETS:
        return []
    values = vars(preset_config(preset))
    names = dict.fromkeys((*PRESETS[preset], *deciding(Scope.LEARNING)))
    return [f"{name} {config[name]}" for name in names if config.get(name, values[name]) != values[name]]


def begun_with(config: Mapping[str, Any]) -> str | None:
    """Return the preset that a run began from, by its name of today."""
    name: str | None = config.get("preset")
    former, newer_option = FORMER_PRESETS.get(str(name), (name, ""))
    return name if newer_option in config else former
