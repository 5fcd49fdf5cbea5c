#!/usr/bin/env bash
# Agents that turn as the last cue said, trained with and without replay: their memory's state as stored, or after a burn-in.
# Those without keep a milestone every four updates, for staleness.py. One core of a CPU, one to four minutes a run; finished runs
# are skipped, killed ones resumed.
# Usage: results/reuse/run.sh RUNS_DIR [PART/PARTS]   (DELTABEAST=path/to/deltabeast if it is not on the PATH)
set -euo pipefail
runs=${1:?directory for the runs} part=${2:-1/1}
number=0
for seed in ${SEEDS:-1 2 3}; do
	for core in ${CORES:-lstm delta_net rdn}; do
		for replay in none 0 16 64; do
			number=$((number + 1))
			[ $((number % ${part#*/})) = $((${part%/*} % ${part#*/})) ] || continue
			run=$runs/$replay/$core/seed-$seed options=(--milestone-steps 1024)
			[ ! -d "$run/eval" ] || continue
			[ "$replay" = none ] || options=(--replay-ratio 3 --burn-in "$replay")
			"${DELTABEAST:-deltabeast}" train --env deltabeast/EndlessTMaze-v0 --core "$core" --core-options hidden_size 32 \
				--steps "${STEPS:-400k}" --discount 0.97 --preset none --observations plain --reward-clip 1 --truncation terminal \
				--num-envs 16 --batch-size 16 --unroll-length 16 --entropy-cost 0.001 --learning-rate 2e-3 "${options[@]}" \
				--num-workers 1 --log-seconds 1 --seed "$seed" --run-dir "$run"
			"${DELTABEAST:-deltabeast}" eval "$run" --episodes 20 --repeats 5 --sample
		done
	done
done
