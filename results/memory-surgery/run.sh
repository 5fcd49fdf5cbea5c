#!/usr/bin/env bash
# Agents that turn as the last cue said, for turns.py and orthogonal.py: each core and seed trained, two minutes each on one core
# of a CPU. Finished runs are skipped, killed ones resumed.
# Usage: results/memory-surgery/run.sh RUNS_DIR   (DELTABEAST=path/to/deltabeast if it is not on the PATH)
# CORES="rdn kda" SEEDS="4 5" STEPS=1M: others. OPTIONS="feature_map unit normalise none": further options of the core.
set -euo pipefail
runs=${1:?directory for the runs}
for core in ${CORES:-delta_net rdn}; do
	for seed in ${SEEDS:-1 2 3}; do
		"${DELTABEAST:-deltabeast}" train --env deltabeast/EndlessTMaze-v0 --core "$core" --core-options hidden_size 32 ${OPTIONS:-} \
			--steps "${STEPS:-400k}" --discount 0.97 --preset none --observations plain --reward-clip 1 --truncation terminal \
			--num-envs 16 --batch-size 16 --unroll-length 52 --entropy-cost 0.001 --learning-rate 2e-3 \
			--num-workers 1 --seed "$seed" --run-dir "$runs/$core/seed-$seed"
	done
done
