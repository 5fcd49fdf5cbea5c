#!/usr/bin/env bash
# Every core x gradient span x seed on a memory task; finished runs are skipped, killed ones resumed.
# Usage: results/memory/run.sh [RUNS_DIR]   (DELTABEAST=path/to/deltabeast if it is not on the PATH)
set -euo pipefail
runs=${1:-runs/memory}
deltabeast=${DELTABEAST:-deltabeast}
train() { # core bptt seed
	$deltabeast train --env popgym:popgym-RepeatPreviousEasy-v0 --core "$1" --bptt "$2" --seed "$3" \
		--steps 200k --precision fp32 --num-envs 16 --batch-size 16 --unroll-length 26 --discount 0.5 \
		--entropy-cost 0.001 --learning-rate 2e-3 --log-seconds 5 --run-dir "$runs/$1/$2/seed-$3"
}
for seed in 1 2 3; do
	for core in feedforward gated_feedforward lstm; do train $core full $seed; done
	for core in linear_transformer delta_net delta_rnn rdn; do
		train $core full $seed
		train $core per_step $seed
	done
done
