"""Options of each command. Nothing here imports torch, so that --help is quick."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Annotated, Final, Literal, Union

from tyro.conf import Positional, arg, subcommand

ProtocolName = Literal["paper-code", "paper-text", "ale-standard"]
"""The names in `envs.PROTOCOLS`, whose import takes a while."""


class Scope(Enum):
    """What an option of `train` affects; see runs/options.py for how runs are resumed and compared."""

    AGENT = "the agent and its environment; stored in its checkpoints"
    SEED = "the repetition of an experiment"
    LEARNING = "learning: another value is another experiment"
    CONDITIONS = "budget, policy lag or rounding: affects learning, but may change on resume"
    SPEED = "hardware and speed, not what is learned"
    RECORD = "where a run is stored and what it logs"
    INVOCATION = "one invocation of train, not the run"


@dataclass(frozen=True)
class Only:
    """Marks an option that the other engine would silently ignore."""

    engine: Literal["local", "ray"]


@dataclass(frozen=True)
class Formerly:
    """Marks an option whose default is not the behaviour of runs that predate this option."""

    value: object
    """behaviour of runs that predate this option, also when resumed"""


@dataclass
class TrainConfig:
    """Train an agent; a run that exists is resumed."""

    game: Annotated[str | None, Scope.AGENT] = None
    """ALE game, for example gopher (`deltabeast games` lists them), or paper20: a sweep over the published
    twenty."""
    env: Annotated[str | None, Scope.AGENT] = None
    """Any Gymnasium environment with discrete actions instead of --game, for example CartPole-v1 or
    popgym:popgym-RepeatPreviousEasy-v0, or my_envs:make_it, a function of your own that makes one."""
    env_options: Annotated[dict[str, str | int | float | bool], Scope.AGENT] = field(default_factory=dict)
    """Options of the environment's constructor as name value pairs, for example: --env FrozenLake-v1
    --env-options is_slippery false map_name 8x8; of a game, its mode and difficulty."""
    core: Annotated[str, Scope.AGENT] = "rdn"
    """Recurrent core (`deltabeast cores` lists them), or package.module:Class of your own."""
    cores: Annotated[tuple[str, ...], Scope.INVOCATION] = ()
    """Several cores instead of --core: a sweep, whose runs queue up on a cluster (--engine ray)."""
    core_options: Annotated[dict[str, str | int | float | bool], Scope.AGENT] = field(default_factory=dict)
    """Options of the core as name value pairs, for example: --core-options hidden_size 64 num_layers 1;
    `deltabeast cores CORE` lists them."""
    config: Annotated[Path | None, Scope.INVOCATION] = None
    """Read options from a JSON or YAML file, or from a run. Command-line options override the file:
    --core-options replaces its whole mapping, --preset overrides every option that the preset sets, and
    another --core discards its core_options. From a run, its run_dir is not taken. ray_address, track and
    run_dir in a file that this user did not write must be repeated on the command line."""
    show_config: Annotated[bool, Scope.INVOCATION] = False
    """Print the resulting configuration, in the form that --config reads, and exit."""
    # RECORD, because the preset's options are compared one by one.
    preset: Annotated[
        Literal["published", "laptop", "laptop-2026-11", "gymnasium", "none"] | None, Scope.RECORD
    ] = None
    """Settings to begin from, listed in launch/runs/presets.py; other options override them. published:
    those of Irie et al. 2021 and its code. laptop: 1.5M steps, some 12 to 25 minutes on two CPU cores.
    laptop-2026-11: what laptop was before. All three for games. gymnasium: 3M steps, some minutes; --env
    begins from it. none: the defaults listed here."""
    steps: Annotated[str, Scope.CONDITIONS] = "200M"
    """Agent steps to train for in all (one is 4 emulator frames): 200M, 30k, 1600. Rounded up to a whole
    update."""
    seed: Annotated[int, Scope.SEED] = 1
    """Seed of weights, actions and environments."""
    seeds: Annotated[int | None, Scope.INVOCATION] = None
    """Number of seeds, 1 and up, instead of --seed: a sweep (--engine ray)."""
    stem: Annotated[Literal["auto", "residual", "nature", "shallow", "small", "mlp"], Scope.AGENT] = "auto"
    """Network before the core; auto: residual (15 layers, published) for images, small for those of less than
    32 pixels a side, mlp for the rest. nature, three convolutions, and shallow, two, are faster on a CPU."""
    protocol: Annotated[ProtocolName | None, Scope.AGENT] = None
    """How a game of --game is played and what an episode is; default: paper-code. envs/README.md compares
    them."""
    frame_stack: Annotated[int, Scope.AGENT] = 4
    """Screens of a game that an agent sees at once, 1 to 4. Each is the maximum of the last two frames, so
    that 1 leaves almost no motion to see."""
    flicker: Annotated[float, Scope.AGENT] = 0.0
    """Probability that a screen of a game is black, which asks for memory (Hausknecht & Stone 2015)."""
    blink: Annotated[float, Scope.AGENT] = 0.0
    """Probability that the ball of Pong or Breakout is invisible on a screen, unless at a paddle or among the
    bricks."""
    num_actions: Annotated[Literal[6] | None, Scope.AGENT] = None
    """6: only the first six actions of a game's own set under any protocol, which the published agents of
    Amidar and James Bond had (TorchBeast's default). Default: all that the protocol has."""
    observations: Annotated[Literal["auto", "picture", "vector", "plain"], Scope.AGENT, Formerly("plain")] = (
        "auto"
    )
    """What observations of --env are read as. auto: a picture where they look like one, else a vector
    scaled by its bounds. plain: as version 0.1 did, unscaled (envs/README.md)."""
    normalise_observations: Annotated[Literal["auto", "on", "off"], Scope.AGENT, Formerly("off")] = "auto"
    """Whether the entries of a vector, or the pixels of a picture, are normalised by their running mean and
    standard deviation, which are then part of the agent. auto: entries of a vector whose bounds are infinite
    or more than 1e4 apart; none with --observations plain."""
    engine: Annotated[Literal["local", "ray"], Scope.CONDITIONS] = "local"
    """local: this machine. ray: a cluster, or several processes here (launch/training/ray/README.md)."""
    device: Annotated[str, Scope.SPEED] = "auto"
    """auto, cpu, cuda or cuda:N."""
    precision: Annotated[Literal["auto", "fp32", "bf16"], Scope.CONDITIONS] = "auto"
    """Arithmetic of the stem; memory, heads and losses are float32, without TF32 on a GPU. auto: bf16 for
    image stems where the hardware has it, else fp32. The publication used fp32."""
    fused: Annotated[Literal["auto", "off"], Scope.SPEED] = "auto"
    """Use the fused C kernels (agents/cpu) on a CPU. auto: every component that is unedited and equals eager
    PyTorch on the run's first observations. off: eager modules; kernels/ still dispatches to C."""
    num_envs: Annotated[int, Scope.CONDITIONS] = 32
    """Environments stepped together by each actor; with a GPU in two halves, so that the games of one go on
    while actions are chosen for the other."""
    num_actors: Annotated[int, Scope.CONDITIONS] = 1
    """Actors, each with --num-envs environments: threads with --overlap, else in turns; under --engine ray
    processes. The publication ran 48 actors of one environment; one actor of many chooses their actions in
    one batch."""
    # SPEED, as for num_learners: gradients are summed over workers; results differ by rounding only.
    num_workers: Annotated[int | None, Scope.SPEED, Only("local")] = None
    """Processes that act and learn side by side on a CPU, each with its share of the environments and of
    every batch; default: one per core, as far as --num-envs and --batch-size (or --minibatch-size) can be
    divided."""
    threads: Annotated[int | None, Scope.SPEED, Only("local")] = None
    """Threads of the run in all, divided among its processes, and beside a GPU cores where environments are
    stepped; default: number of usable cores (the least of CPU set, container quota and SLURM_CPUS_PER_TASK),
    in each process at most OMP_NUM_THREADS."""
    ray_address: Annotated[str | None, Scope.SPEED, Only("ray")] = None
    """The Ray cluster to train on: auto (the one this machine belongs to) or HOST:PORT; default: one that
    starts here and ends with the run."""
    actor_cpus: Annotated[float, Scope.SPEED, Only("ray")] = 1.0
    """CPU cores that each actor reserves under --engine ray, and the threads it uses."""
    actor_gpus: Annotated[float, Scope.SPEED, Only("ray")] = 0.0
    """Share of a GPU that each actor reserves under --engine ray; without one it acts on the CPU."""
    num_learners: Annotated[int, Scope.SPEED, Only("ray")] = 1
    """Learners under --engine ray, each with its share of every batch, one GPU each if available."""
    learner_cpus: Annotated[float, Scope.SPEED, Only("ray")] = 1.0
    """CPU cores that each learner reserves under --engine ray, and the threads it uses."""
    # CONDITIONS: actors that act meanwhile act with older weights.
    overlap: Annotated[Literal["auto", "on", "off"], Scope.CONDITIONS, Only("local")] = "auto"
    """Whether actors act while the learner learns. auto: yes with a GPU, no on CPUs, where both would
    fight for the same cores."""
    compile: Annotated[Literal["auto", "on", "off"], Scope.SPEED] = "auto"
    """Whether torch.compile fuses the learner's loss, gradients and step; the first update waits for it.
    auto: yes with a GPU but for games, for which the learner waits anyway; no on CPUs, where it does not
    help."""
    unroll_length: Annotated[int, Scope.LEARNING] = 50
    """Agent steps in each environment before an actor hands over to the learner."""
    batch_size: Annotated[int, Scope.LEARNING] = 32
    """Trajectories in one batch, each the --unroll-length steps of one environment; a multiple of --num-envs
    or a divisor of it."""
    passes: Annotated[int, Scope.LEARNING] = 1
    """Times that the learner learns from each batch; V-trace corrects for what it has learned meanwhile."""
    minibatch_size: Annotated[int | None, Scope.LEARNING] = None
    """Trajectories in each step of the optimizer, drawn without repetition in each pass; a divisor of
    --batch-size; default: all of the batch. Each of --num-workers (or --num-learners) draws from its share,
    so that their number changes which are drawn together."""
    replay_ratio: Annotated[float, Scope.LEARNING] = 0.0
    """Replayed trajectories for each fresh one in a step of the optimizer, drawn uniformly from a replay
    buffer and corrected by V-trace (Espeholt et al. 2018; Schmitt et al. 2019); 0: no replay. --batch-size
    and --minibatch-size count the fresh ones."""
    replay_buffer: Annotated[str, Scope.LEARNING] = "100k"
    """Agent steps that the replay buffer holds: 100k, 1M. It is in the learner's memory; under
    --deterministic it is part of each checkpoint."""
    replay_max_age: Annotated[int, Scope.LEARNING] = 0
    """Trajectories are not replayed once the weights that acted are more than so many updates old; 0: no
    limit."""
    replay_max_kl: Annotated[float, Scope.LEARNING] = 0.0
    """Steps at which KL(policy that acted || newest policy) is above this, in nats, get no policy gradient,
    and returns are bootstrapped there: a trust region as LASER's; 0: none."""
    burn_in: Annotated[int, Scope.LEARNING] = 0
    """Agent steps before a replayed trajectory through which the newest weights carry the core's state
    (Kapturowski et al. 2019), as far as the buffer has them; a multiple of --unroll-length. 0: the state as
    the actor had it."""
    bptt: Annotated[Literal["full", "per_step"], Scope.LEARNING] = "full"
    """full: gradients flow through the whole unroll. per_step: no gradient crosses a time step of a
    fast-weight or attention core, as in the published code; for other cores both are the same."""
    learning_rate: Annotated[float, Scope.LEARNING] = 6e-4
    """Learning rate of the optimizer, annealed linearly to zero over --steps. The published value is for
    batches of 50 x 32 steps; small batches, as short runs need them, want less (2e-4 for 20 x 8)."""
    discount: Annotated[float, Scope.LEARNING] = 0.99
    """Discount per agent step."""
    reward_scale: Annotated[float, Scope.LEARNING] = 1.0
    """Factor of each reward, for the loss and the core that reads it; returns are not scaled."""
    reward_clip: Annotated[float, Scope.LEARNING] = 1.0
    """Rewards, once scaled, are clipped to this on both sides of zero, for loss and core, as is usual for
    Atari; 0: not at all, which the preset of --env sets."""
    truncation: Annotated[Literal["bootstrap", "terminal"], Scope.LEARNING, Formerly("terminal")] = (
        "bootstrap"
    )
    """Where a time limit cuts an episode. bootstrap: from V(final observation). terminal: as if the episode
    had terminated, with no return to come, as in the published code."""
    normalise_rewards: Annotated[bool, Scope.LEARNING] = False
    """Whether the loss divides rewards by the running standard deviation of discounted returns (Engstrom et
    al. 2020), before any clip."""
    normalise_advantages: Annotated[bool, Scope.LEARNING] = False
    """Whether the advantages of each step of the optimizer get mean 0 and standard deviation 1 in the policy
    gradient (Andrychowicz et al. 2021): then its size does not depend on how common rewards are."""
    normalise_values: Annotated[bool, Scope.AGENT] = False
    """Whether the value head predicts values normalised by the running mean and standard deviation of their
    targets, which are then part of the agent, and advantages are divided by the latter (PopArt, Hessel et al.
    2019)."""
    entropy_cost: Annotated[float, Scope.LEARNING] = 0.01
    """Weight of the entropy bonus."""
    baseline_cost: Annotated[float, Scope.LEARNING] = 0.5
    """Weight of the value loss."""
    vtrace_lambda: Annotated[float, Scope.LEARNING] = 1.0
    """λ of V-trace (Espeholt et al. 2018, remark 2), as of generalised advantages: below 1 targets have less
    variance and trust the value function more."""
    clip_ratio: Annotated[float, Scope.LEARNING] = 0.0
    """ε of PPO's clipped surrogate (Schulman et al. 2017), which takes the place of V-trace's policy
    gradient; 0: none."""
    optimizer: Annotated[Literal["rmsprop", "adam"], Scope.LEARNING] = "rmsprop"
    """RMSProp, as published, or Adam (Kingma & Ba 2015)."""
    adam_eps: Annotated[float, Scope.LEARNING] = 1e-5
    """Added to the root of Adam's mean square."""
    rmsprop_eps: Annotated[float, Scope.LEARNING] = 0.01
    """Added to the root of RMSProp's mean square."""
    rmsprop_corrected: Annotated[bool, Scope.LEARNING] = True
    """Whether RMSProp's first steps are corrected for the mean square's start from zero, as Adam's are. The
    publication's are not: they are up to ten times as long."""
    max_grad_norm: Annotated[float, Scope.LEARNING] = 40.0
    """Gradients are scaled down to this global norm."""
    # SPEED: affects reproducibility, not learning.
    deterministic: Annotated[bool, Scope.SPEED] = False
    """Actor and learner in lock-step: the same seed gives the same weights bit for bit, also across a
    kill and a resume, which replays games in progress."""
    run_dir: Annotated[Path | None, Scope.RECORD] = None
    """Directory of the run; default runs/<game>/<core>/seed-<n>."""
    resume: Annotated[Literal["auto", "never", "must"], Scope.INVOCATION] = "auto"
    """auto: go on if the run directory has a checkpoint. never: refuse to touch an existing run.
    must: refuse to start afresh."""
    checkpoint_minutes: Annotated[float, Scope.RECORD] = 10.0
    """Minutes between checkpoints."""
    milestone_steps: Annotated[str, Scope.RECORD] = "50M"
    """Agent steps between checkpoints that are never removed."""
    log_seconds: Annotated[float, Scope.RECORD] = 10.0
    """Seconds between rows of the log."""
    eval_every: Annotated[str | None, Scope.RECORD] = None
    """Agent steps between evaluations while it trains (500k): 20 greedy episodes of a checkpoint, which
    stays, in a process of its own at low priority; a curve in TensorBoard and `compare`."""
    video: Annotated[bool, Scope.RECORD] = False
    """Record a game of each checkpoint of --eval-every."""
    profile: Annotated[int, Scope.INVOCATION, Only("local")] = 0
    """Write a trace of N updates to RUN/profile.json, for Perfetto or chrome://tracing; on a CPU with
    --num-workers 1 it shows all that is done."""
    track: Annotated[Literal["wandb", "mlflow"] | None, Scope.RECORD] = None
    """Also send the log to Weights & Biases or MLflow; their own environment variables say where."""


@dataclass
class ProbeConfig:
    """Train a memory on one of the source papers' small tasks; a run that exists is resumed."""

    task: Literal["retrieval", "swap", "code", "listops", "dag", "text", "snr"]
    """retrieval: pairs of keys and values, then a key. swap: a row whose places are exchanged. code: what a
    program prints. listops: the value of a nested list. dag: which nodes descend from the first. text: the
    next byte or word of a file. snr: noise of retrieval by kernel and size of keys, without training."""
    task_options: dict[str, str | int | float | bool] = field(default_factory=dict)
    """Options of the task as name value pairs, for example: --task-options size 60 setting 2."""
    variant: Literal["code", "text"] = "code"
    """Follow the released code or the paper where they differ."""
    core: str = "rdn"
    """Recurrent core (`deltabeast cores` lists them), or package.module:Class of your own; in retrieval also
    fast_weight_memory, a rule alone."""
    core_options: dict[str, str | int | float | bool] = field(default_factory=dict)
    """Options of the core as name value pairs."""
    config: Path | None = None
    """Read options from a JSON or YAML file, or from a run. Command-line options override the file;
    --core-options replaces its whole mapping."""
    show_config: bool = False
    """Print the resulting configuration, in the form that --config reads, and exit."""
    seed: int = 1
    """Seed of the weights, and of what is drawn or in which order it is read."""
    updates: int | None = None
    """Maximum number of updates; default: as published."""
    batch_size: int | None = None
    """Sequences in one update; default: as published."""
    learning_rate: float | None = None
    """Adam's learning rate; default: as published."""
    max_grad_norm: float | None = None
    """Gradients are scaled down to this global norm, 0 for never; default: as published."""
    dropout: float | None = None
    """Share of the hidden units that is dropped while training; default: as published."""
    shell: Literal["auto", "on", "off"] = "auto"
    """Put the memory into a backbone: norm, projection and feedforward layers around it. auto: as published,
    with bare rules in retrieval and swap."""
    evaluate_every: int | None = None
    """Updates between evaluations; default: as published."""
    patience: int | None = None
    """Early-stopping patience, in evaluations (curricula: only at full length); default: as published."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    run_dir: Path | None = None
    """Directory of the run; default runs/probe/<task>/<core>/seed-<n>, options behind task and core."""
    checkpoint_minutes: float = 10.0
    """Maximum number of minutes between checkpoints; one is also written after each evaluation."""
    track: Literal["wandb", "mlflow"] | None = None
    """Also send the log to Weights & Biases or MLflow; their own environment variables say where."""


@dataclass
class CardConfig:
    """Try memories on small tasks and draw what each can do; runs that exist are not trained again."""

    runs: Positional[Annotated[tuple[str, ...], arg(metavar="[RUN ...]")]] = ()
    """Existing runs to draw instead of training; must match the budget's tasks and updates; also runs
    of train. Directories, folders of them, or globs."""
    cores: tuple[str, ...] = ()
    """Cores to try."""
    budget: Literal["quick", "full"] = "quick"
    """quick: 2 to 3 minutes a core on two CPU cores. full: hours."""
    seed: int = 1
    """Seed of all runs."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    out: Path = Path("runs/card")
    """Folder of the card and of the runs behind it."""


@dataclass
class EvalConfig:
    """Evaluate a saved agent; the result is printed and stored in RUN/eval."""

    run: Positional[Annotated[Path, arg(metavar="RUN")]]
    """Directory of a run, for example runs/gopher/rdn/seed-1, or one checkpoint in it, or
    hub:OWNER/NAME[@COMMIT]: an agent that was pushed to a hub."""
    checkpoint: str = "latest"
    """latest, a number of agent steps (50M: the first checkpoint at or after it), or a checkpoint's path."""
    protocol: ProtocolName | None = None
    """How the game is played and what an episode is; default: as the agent was trained."""
    flicker: float | None = None
    """Probability that a screen of the game is black; default: as the agent was trained."""
    blink: float | None = None
    """Probability that the ball is invisible on a screen; default: as the agent was trained."""
    episodes: int = 30
    """Consecutive episodes in each environment."""
    repeats: int = 5
    """Independent repeats, one environment each."""
    sample: bool = False
    """Sample actions from the policy instead of taking the most likely one."""
    random: bool = False
    """Evaluate random play as well and print both side by side."""
    forget_every: tuple[int, ...] = ()
    """State-reset ablation: evaluate the agent again with its state reset every N agent steps, for example
    1 2 4 8. The smallest N without loss is how far back it uses its memory."""
    memory: Annotated[tuple[str, ...], arg(metavar="OP [OP ...]")] = ()
    """Evaluate the agent again, from the same seeds, with each of these operations on its memory. T is an
    agent step of each episode. freeze@T: what steps from T on write is taken back. undo@T: what step T
    writes is taken back. scale:X, scale:X@T: what steps write, from T on, is scaled by X. noise:X, noise:X@T:
    after each step, from T on, fast weights get Gaussian noise of X times their root mean square. erase@T,
    erase:S@T: after step T, what is stored under the keys of step T, or S, is erased. insert:S@T: what step S
    wrote is put under the keys of step T. restore:S@T: after step T the memory is again as after step S.
    transplant:RUN@T: it is that of another run's agent, of the same core, which saw the same. wipe@T: the
    state is reset at step T. wipe-every:N: the same as --forget-every N."""
    seed: int = 1
    """Seed of environments and sampling."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    fused: Literal["auto", "off"] = "auto"
    """Use the fused C kernels (agents/cpu) on a CPU where they equal eager PyTorch."""
    trust_core: str | None = None
    """A core of your own that the checkpoint may import: package.module:Class, as it was trained with."""
    trust_env: str | None = None
    """An environment of your own that the checkpoint may import: module:Id-v0, or module:make_it."""
    video: int = 0
    """Afterwards, record N whole Atari games as MP4 in RUN/videos, with what the memory does beside them."""
    why: int = 0
    """Afterwards, write a page in RUN/eval of the N moments of the first 2,000 steps of play at which the
    memory mattered most: what it drew on, and the policy without it. Needs fast weights or attention."""
    certificate: bool = False
    """Say whether the memory works as the core promises, whether the agent uses it (what its return loses
    with the memory wiped at each step), how far back it reads, and how soon it recovers from a wrong one."""
    max_episode_steps: int = 1_000_000
    """Abort longer episodes, in agent steps; finished ones are still scored."""


@dataclass
class WatchConfig:
    """Watch a saved agent play in a browser, beside what its memory does, and operate on that memory."""

    run: Positional[Annotated[Path, arg(metavar="RUN")]]
    """Directory of a run, whose newest checkpoint plays, newer ones from their next episode on; or one
    checkpoint in it, or hub:OWNER/NAME[@COMMIT]."""
    beside: Path | None = None
    """Another run, or checkpoint, to play beside it from the same seed."""
    checkpoint: str = "latest"
    """latest, a number of agent steps (50M: the first checkpoint at or after it), or a checkpoint's path."""
    protocol: ProtocolName | None = None
    """How the game is played and what an episode is; default: as the agent was trained."""
    flicker: float | None = None
    """Probability that a screen of the game is black; default: as the agent was trained."""
    blink: float | None = None
    """Probability that the ball is invisible on a screen; default: as the agent was trained."""
    sample: bool = False
    """Sample actions from the policy instead of taking the most likely one."""
    seed: int = 1
    """Seed of environments and sampling."""
    port: int = 8722
    """Port of the page; 0: any that is free."""
    host: str = "127.0.0.1"
    """Address to listen on. Any but this machine's own makes a token, and serves only whoever has it."""
    open: bool = True
    """Open the page in a browser; one with a token is yours to open."""
    record: Path | None = None
    """Instead of serving, write a game, or several short ones, as the same page in a single new file that
    needs no server, for example game.html."""
    steps: int = 2_000
    """Most agent steps that --record writes."""
    trust_core: str | None = None
    """A core of your own that the checkpoint may import: package.module:Class, as it was trained with."""
    trust_env: str | None = None
    """An environment of your own that the checkpoint may import: module:Id-v0, or module:make_it."""


@dataclass
class CompareConfig:
    """Compare runs: curves, scores, statistics and memory as a report to publish; loads no weights."""

    runs: Positional[Annotated[tuple[str, ...], arg(metavar="[RUN ...]")]] = ()
    """Run directories, folders of them, globs, agents of a hub: runs, 'runs/*/rdn/seed-*', hub:OWNER/NAME."""
    out: Path | None = None
    """Folder of report.html, report.md, plots/ and tables/; default: comparison/ beside the runs, where
    TensorBoard's layout is kept in any case."""
    published: bool = False
    """Redraw the published bar charts of every pair of cores, from the published table; needs no runs."""


@dataclass
class GamesConfig:
    """List the Atari games."""


@dataclass
class CoresConfig:
    """List the recurrent cores, what each does and costs, or the options of one."""

    core: Positional[Annotated[str | None, arg(metavar="[CORE]")]] = None
    """Core whose options to list: a name, or package.module:Class of your own."""
    measure: bool = False
    """Time every core on this machine: an actor's step of 32 rows, a learner's unroll of 50 steps of them."""


@dataclass
class InfoConfig:
    """Say what a run is, how far it came, what it scored, and the command that goes on with it."""

    run: Positional[Annotated[Path, arg(metavar="RUN")]]
    """Directory of a run, for example runs/gopher/rdn/seed-1, or hub:OWNER/NAME[@COMMIT]."""


@dataclass
class ExportConfig:
    """Write a saved agent as a folder to share: weights, scores, a card. eval, info and compare read it as a
    run."""

    run: Positional[Annotated[Path, arg(metavar="RUN")]]
    """Directory of a run, or one checkpoint in it."""
    folder: Positional[Annotated[Path, arg(metavar="DIR")]]
    """Where to write it: a new folder, or that of an earlier export."""
    checkpoint: str = "latest"
    """latest, a number of agent steps (50M: the first checkpoint at or after it), or a checkpoint's path."""
    half: bool = False
    """Store numbers in 16 bits: half the size, scores hardly change."""
    note: str | None = None
    """Extra text for the card, for example how this agent was chosen among seeds."""
    recording: Path | None = None
    """A game that `deltabeast watch RUN --record FILE` wrote: it goes with the agent, as game.html, to which
    the card links."""
    trust_core: str | None = None
    """A core of your own that the checkpoint may import: package.module:Class, as it was trained with."""


@dataclass
class PushConfig:
    """Send an exported agent to a hub of models, where `eval hub:OWNER/NAME` finds it."""

    folder: Positional[Annotated[Path, arg(metavar="DIR")]]
    """Folder that `deltabeast export` wrote."""
    repo: Positional[Annotated[str, arg(metavar="OWNER/NAME")]]
    """Repository of the hub, made if it is not there."""
    private: bool = False
    """Make a repository that only you can read."""


@dataclass
class ImportConfig:
    """Make a run of a checkpoint of TorchBeast's PolyBeast or of the recurrent-fwp code."""

    model: Positional[Annotated[Path, arg(metavar="MODEL")]]
    """Their checkpoint: model.tar or model_extra.tar. Nothing in it is executed."""
    game: str
    """The game it was trained on; the file may not say."""
    run_dir: Path
    """Where to put the run."""
    core: str | None = None
    """What it should hold (lstm, rdn, ...); refused if the tensors say otherwise."""
    num_heads: int | None = None
    """Heads of a Linear Transformer whose file has no flags: its tensors do not show them. Default: each
    is 32 wide, as published."""


@dataclass
class BenchKernelsConfig:
    """Check every kernel against float64, then time it; a kernel that is wrong gets no time."""

    rules: tuple[str, ...] = ()
    """Rules and memories to check and time; default: all."""
    steps: int = 50
    """Unroll length, T."""
    batch_size: int = 32
    """Rows, B."""
    heads: int = 4
    """Heads, H."""
    head_size: int = 32
    """Width of keys and values; the LSTM has twice the width of all heads, as published."""
    reset_share: float = 0.02
    """Share of the steps that begin an episode."""
    repeats: int = 20
    """Repetitions per backend, interleaved; the median is reported."""
    seed: int = 1
    """Seed of the numbers."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    json: Path | None = None
    """Write the result there as well, with hardware, versions and commit."""


@dataclass
class BenchEnvConfig:
    """Time the emulation of games alone, with random actions."""

    games: tuple[str, ...] = ("pong", "breakout", "gopher", "seaquest")
    """Games to time."""
    num_envs: tuple[int, ...] = (8, 32, 128)
    """Numbers of environments stepped together."""
    threads: tuple[int, ...] = ()
    """Numbers of emulator threads; default: 1 and as many as there are cores, none with --processes."""
    processes: tuple[int, ...] = ()
    """Numbers of processes of one thread each; default: as many as there are cores, none with --threads."""
    seconds: float = 2.0
    """Total seconds per setting, split over three measurements; the median is reported."""
    json: Path | None = None
    """Write the result there as well, with hardware, versions and commit."""


@dataclass
class BenchThroughputConfig:
    """Time emulation, inference and learning alone, and end-to-end training, in one run."""

    game: str | None = None
    """ALE game; pong if there is no --env."""
    env: str | None = None
    """Any Gymnasium environment with discrete actions instead."""
    core: str = "rdn"
    """Recurrent core."""
    stem: Literal["auto", "residual", "nature", "shallow", "small", "mlp"] = "auto"
    """Network before the core, as of `train`."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Arithmetic of the stem."""
    bptt: Literal["full", "per_step"] = "full"
    """Whether gradients cross the time steps of fast weights."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    num_envs: int = 32
    """Environments stepped together by each actor."""
    num_actors: int = 1
    """Actors."""
    num_workers: int | None = None
    """Processes that act and learn side by side on a CPU; default: one per core."""
    overlap: Literal["auto", "on", "off"] = "auto"
    """Whether actors act while the learner learns."""
    compile: Literal["auto", "on", "off"] = "auto"
    """Whether torch.compile fuses the learner's work, as in train."""
    unroll_length: int = 50
    """Agent steps of an unroll."""
    batch_size: int = 32
    """Trajectories in one update."""
    seconds: float = 10.0
    """Seconds of each measurement."""
    rounds: int = 3
    """Repetitions of all measurements, interleaved; the medians are reported."""
    json: Path | None = None
    """Write the result there as well, with hardware, versions and commit."""


@dataclass
class BenchConfig:
    """Measure this machine: kernels, env or throughput."""

    what: Union[  # noqa: UP007  # tyro wants it so
        Annotated[BenchKernelsConfig, subcommand("kernels")],
        Annotated[BenchEnvConfig, subcommand("env")],
        Annotated[BenchThroughputConfig, subcommand("throughput")],
    ]
    """What to measure."""


COMMANDS: Final[Mapping[str, type]] = {
    "train": TrainConfig,
    "probe": ProbeConfig,
    "card": CardConfig,
    "eval": EvalConfig,
    "watch": WatchConfig,
    "compare": CompareConfig,
    "games": GamesConfig,
    "cores": CoresConfig,
    "info": InfoConfig,
    "export": ExportConfig,
    "push": PushConfig,
    "import-torchbeast": ImportConfig,
    "bench": BenchConfig,
}
"""Every command and its options."""
