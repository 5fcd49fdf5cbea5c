#!/usr/bin/env bash
# The command that a newcomer types, of an LSTM and of RDN, three seeds by default: trained on one core, then 100 greedy games.
# Evaluated runs are skipped, and killed ones are resumed.
# Usage: results/first-hour/run.sh RUNS_DIR [PART/PARTS]   (DELTABEAST=path/to/deltabeast if it is not on the PATH)
# 1/2 and 2/2 share the runs between two processes, the first on core 0. ENVS="CartPole-v1" CORES=lstm SEEDS="4 5": those alone.
set -euo pipefail
runs=${1:?where runs are kept} part=${2:-1/1}
number=0

envs=(
	Acrobot-v1
	CartPole-v1
	popgym:popgym-RepeatPreviousEasy-v0
	minigrid:MiniGrid-Empty-8x8-v0
	minatar:MinAtar/Breakout-v1
)
for seed in ${SEEDS:-1 2 3}; do
	for env in ${ENVS:-"${envs[@]}"}; do
		for core in ${CORES:-lstm rdn}; do
			number=$((number + 1))
			[ $((number % ${part#*/})) = $((${part%/*} % ${part#*/})) ] || continue
			run=$runs/${env//[:\/]/-}/$core/seed-$seed
			[ ! -d "$run/eval" ] || continue
			alone="taskset -c $((${part%/*} - 1)) ${DELTABEAST:-deltabeast}"
			$alone train --env "$env" --core "$core" --seed "$seed" --run-dir "$run"
			$alone eval "$run" --episodes 20 --repeats 5
		done
	done
done
