"""Search with Optuna (pip install optuna): python examples/optuna_search.py --game pong --steps 1M

Options go to `deltabeast train`; each set of them is a study of its own, in runs/search: rerun, or run in
parallel, to continue the same study.
"""

import statistics
import subprocess
import sys
from pathlib import Path

import optuna

from deltabeast.launch.runs.log import read_rows


def objective(trial: optuna.Trial) -> float:
    rate = trial.suggest_float("learning_rate", 1e-4, 5e-3, log=True)
    entropy = trial.suggest_float("entropy_cost", 1e-4, 2e-2, log=True)
    run = runs / f"trial-{trial.number}"
    options = ["--learning-rate", str(rate), "--entropy-cost", str(entropy), "--run-dir", str(run)]
    subprocess.run([*train, *options], check=True)
    returns = [row["game_return"] for row in read_rows(run / "logs.csv") if "game_return" in row]
    return statistics.fmean(returns[-5:] or [float("-inf")])


train = [str(Path(sys.executable).with_name("deltabeast")), "train", *sys.argv[1:]]
if {"-h", "--help"} & {*train}:
    sys.exit(__doc__)
if failed := subprocess.run([*train, "--show-config"], stdout=subprocess.DEVNULL).returncode:
    sys.exit(failed)  # wrong options are said once, not by every trial
name = "-".join(word.strip("-").replace("/", "-") for word in sys.argv[1:])
runs = Path("runs", "search", name)
runs.mkdir(parents=True, exist_ok=True)
study = optuna.create_study(
    storage=f"sqlite:///{runs}/study.db", study_name=name, direction="maximize", load_if_exists=True
)
study.optimize(objective, n_trials=20, catch=subprocess.CalledProcessError)
print(f"best: {study.best_value:.3g} with {study.best_params}")
