"""What `deltabeast train` can be told. Standard library only, so that --help is quick."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal


@dataclass
class TrainConfig:
    """Train an agent; a run that exists is resumed."""

    game: str | None = None
    """ALE game, for example gopher (`deltabeast games` lists them)."""
    env: str | None = None
    """Any Gymnasium environment with discrete actions instead of --game, for example CartPole-v1 or
    popgym:popgym-RepeatPreviousEasy-v0."""
    core: str = "rdn"
    """Recurrent core (`deltabeast cores` lists them), or package.module:Class of your own."""
    core_options: dict[str, int] = field(default_factory=dict)
    """Options of the core as name value pairs, for example: --core-options hidden_size 64 num_layers 1."""
    steps: str = "200M"
    """Agent steps to train for in all (one is 4 emulator frames): 200M, 30k, 1600."""
    seed: int = 1
    """Seed of weights, actions and environments."""
    stem: Literal["auto", "residual", "nature", "mlp"] = "auto"
    """Network before the core; auto: residual (15 layers, published) for images, mlp for the rest."""
    protocol: Literal["paper-code", "paper-text", "ale-standard"] | None = None
    """How a game of --game is played and what an episode is, paper-code unless told; envs/README.md compares
    them."""
    device: str = "auto"
    """auto, cpu or cuda."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Arithmetic of the stem; memory, heads and losses are float32. auto: bf16 where the hardware has it.
    The publication used fp32."""
    num_envs: int = 32
    """Environments stepped together by each actor."""
    num_actors: int = 1
    """Actors, each with --num-envs environments. The publication ran 48 actors of one environment; one
    actor of many chooses their actions in one batch."""
    overlap: Literal["auto", "on", "off"] = "auto"
    """Whether actors act while the learner learns. auto: yes with a GPU, no on CPUs, where both would
    fight for the same cores."""
    unroll_length: int = 50
    """Agent steps an actor takes before it hands over to the learner."""
    batch_size: int = 32
    """Unrolls in one update; a multiple of --num-envs or a divisor of it."""
    bptt: Literal["full", "per_step"] = "full"
    """full: gradients flow through the whole unroll. per_step: no gradient crosses a time step of the
    core, as in the published code."""
    learning_rate: float = 6e-4
    """RMSProp's learning rate, annealed linearly to zero over --steps. The published value is for batches of
    50 x 32 steps; small batches, as short runs need them, want less (2e-4 for 20 x 8)."""
    discount: float = 0.99
    """Discount per agent step."""
    entropy_cost: float = 0.01
    """Weight of the entropy bonus."""
    baseline_cost: float = 0.5
    """Weight of the value loss."""
    rmsprop_eps: float = 0.01
    """Added to the root of RMSProp's mean square."""
    max_grad_norm: float = 40.0
    """Gradients are scaled down to this global norm."""
    deterministic: bool = False
    """Actor and learner in lock-step: the same seed gives the same weights bit for bit, also across a
    kill and a resume."""
    run_dir: Path | None = None
    """Where the run is kept; default runs/<game>/<core>/seed-<n>."""
    resume: Literal["auto", "never", "must"] = "auto"
    """auto: go on if the run directory has a checkpoint. never: refuse to touch an existing run.
    must: refuse to start afresh."""
    checkpoint_minutes: float = 10.0
    """Minutes between checkpoints."""
    milestone_steps: str = "50M"
    """Agent steps between checkpoints that are kept for good."""
    log_seconds: float = 10.0
    """Seconds between rows of the log."""
