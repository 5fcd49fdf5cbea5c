#!/usr/bin/env bash
# Cores x two seeds on a memory task; finished runs are skipped, killed ones resumed.
# Usage: results/cores/run.sh RUNS_DIR [CORE...]   (DELTABEAST=path/to/deltabeast if it is not on the PATH)
set -euo pipefail
runs=${1:?directory for the runs}
deltabeast=${DELTABEAST:-deltabeast}
shift
cores=("$@")
if [ $# = 0 ]; then mapfile -t cores < <($deltabeast cores | awk 'NF == 0 {exit} NR > 1 {print $1}'); fi
for seed in 1 2; do
	for core in "${cores[@]}"; do
		$deltabeast train --env popgym:popgym-RepeatPreviousEasy-v0 --core "$core" --seed "$seed" \
			--preset none --observations plain --reward-clip 1 --truncation terminal \
			--steps 1M --precision fp32 --num-envs 16 --batch-size 16 --unroll-length 26 --discount 0.5 \
			--entropy-cost 0.001 --learning-rate 2e-3 --log-seconds 10 --run-dir "$runs/$core/seed-$seed"
	done
done
