#!/usr/bin/env bash
# Four cores, three seeds each, on a memory task, trained and evaluated one after the other on one core.
# Usage: results/compare/run.sh [RUNS_DIR]   (DELTABEAST=path/to/deltabeast if it is not on the PATH)
set -euo pipefail
runs=${1:-runs/repeat-previous}
deltabeast=${DELTABEAST:-deltabeast}
for seed in 1 2 3; do
	for core in feedforward lstm delta_net rdn; do
		$deltabeast train --env popgym:popgym-RepeatPreviousEasy-v0 --core $core --seed $seed \
			--preset none --observations plain --reward-clip 1 --truncation terminal \
			--steps 300k --precision fp32 --num-envs 16 --batch-size 16 --unroll-length 26 --discount 0.5 \
			--entropy-cost 0.001 --learning-rate 2e-3 --log-seconds 3 --run-dir "$runs/$core/seed-$seed"
		$deltabeast eval "$runs/$core/seed-$seed" --episodes 20 --repeats 5
	done
done
