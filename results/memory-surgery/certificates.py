"""Is a certificate right? Of trained agents that need a memory, of such that need none, and of broken ones.

    python results/memory-surgery/certificates.py RUNS [--steps 40k]

An episode of the task shows a bit, then `delay` empty steps, and pays for saying the bit in the last one.
With `--env-options visible true` the last step shows the bit again, so that nobody needs to remember it. Each
of five cores is trained with six seeds where it must remember and with two where it need not; finished runs
are skipped. Then `eval --certificate` says of each agent whether its memory is correct and used. Last, each
fault of tests/planted_faults.py is planted around the core of the first agent of each core.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import gymnasium
import numpy as np

from deltabeast.launch.cli import main as deltabeast
from deltabeast.launch.evaluation.certificate import certify
from deltabeast.launch.evaluation.environments import env_maker
from deltabeast.launch.evaluation.examination import examine
from deltabeast.launch.evaluation.loading import load
from deltabeast.launch.evaluation.stretch import play_stretch

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from planted_faults import FAULTS

CORES = ("rdn", "delta_net", "kda", "transformer", "lstm")
SEEDS = {"remember": range(1, 7), "visible": range(1, 3)}
ENV = f"{Path(__file__).stem}:Cue"


class Cue(gymnasium.Env):
    """A bit is shown, and asked for `delay` + 1 steps later."""

    def __init__(self, delay: int = 2, visible: bool = False) -> None:
        self.observation_space = gymnasium.spaces.MultiDiscrete([3, 2])
        self.action_space = gymnasium.spaces.Discrete(2)
        self._delay, self._visible = delay, visible

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._bit, self._t = int(self.np_random.integers(2)), 0
        return self._see(), {}

    def step(self, action):
        asked = self._t == self._delay + 1
        self._t += 1
        return self._see(), float(asked and action == self._bit), asked, False, {}

    def _see(self):
        asked = self._t == self._delay + 1
        shown = self._t == 0 or (asked and self._visible)
        return np.array([self._bit if shown else 2, int(asked)])


def train(run: Path, core: str, seed: int, visible: bool, steps: str) -> None:
    sizes = "hidden_size 16" if core == "lstm" else "hidden_size 16 num_layers 1 num_heads 2"
    command = (
        f"train --env {ENV} --env-options visible {str(visible).lower()} --core {core} "
        f"--core-options {sizes} --steps {steps} --seed {seed} --preset none "
        "--num-envs 16 --batch-size 16 --unroll-length 16 --num-workers 1 "
        "--learning-rate 3e-3 --entropy-cost 0.003 --device cpu"
    )
    deltabeast([*command.split(), "--run-dir", str(run)])


def certificate(run: Path) -> tuple[dict, float]:
    """Return the newest certificate of a run, and the score beside it."""
    saved = json.loads(max((run / "eval").glob("*.json")).read_text())
    return saved["certificate"], saved["results"]["trained"]["summary"]["game"]["mean"]


def planted(run: Path) -> dict[str, list[str]]:
    """Return what is said of an agent with each fault, by the fault's name."""
    agent = load(run, "latest", None, print).agent.eval()
    play = play_stretch(agent, env_maker(agent.spec, None, None)(1), 1, True, 50)
    sound, found = agent.core, {}
    for fault in FAULTS:
        agent.core = fault(sound)
        try:
            found[fault.__name__] = certify(agent, examine(agent, play.inputs("cpu")), None, 0).violations
        except Exception as error:  # a broken core may break what looks at it, too
            found[fault.__name__] = [f"raised {error!r}"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", metavar="RUNS", type=Path)
    parser.add_argument("--steps", default="40k")
    options = parser.parse_args()
    rows = []
    for core in CORES:
        for kind, seeds in SEEDS.items():
            for seed in seeds:
                run = options.runs / kind / core / f"seed-{seed}"
                if not [*(run / "eval").glob("*.json")]:
                    train(run, core, seed, kind == "visible", options.steps)
                    deltabeast(
                        [
                            "eval",
                            str(run),
                            "--certificate",
                            "--episodes",
                            "25",
                            "--repeats",
                            "4",
                            "--trust-env",
                            ENV,
                        ]
                    )
                found, score = certificate(run)
                rows.append((core, kind, seed, score, found["correct"], found["used"]))
    print("\n| core | task | score | correct | used |\n|---|---|---|---|---|")
    for core in CORES:
        for kind in SEEDS:
            each = [row for row in rows if row[:2] == (core, kind)]
            scores = sum(row[3] for row in each) / len(each)
            correct, used = (sum(bool(row[i]) for row in each) for i in (4, 5))
            print(f"| {core} | {kind} | {scores:.2f} | {correct} of {len(each)} | {used} of {len(each)} |")
    print("\n| fault | found in |\n|---|---|")
    found = {core: planted(options.runs / "remember" / core / "seed-1") for core in CORES}
    for fault in FAULTS:
        by = [core for core in CORES if found[core][fault.__name__]]
        print(f"| {fault.__name__} | {len(by)} of {len(CORES)} |")
        for core in CORES:
            print(f"{fault.__name__} in {core}: {found[core][fault.__name__]}", file=sys.stderr)


if __name__ == "__main__":
    main()
