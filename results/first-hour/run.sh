#!/usr/bin/env bash
# The command that a newcomer types, of an LSTM and of RDN, three seeds by default: trained on one core, then 100 greedy games.
# Evaluated runs are skipped, and killed ones are resumed.
# Usage: results/first-hour/run.sh RUNS_DIR [CORE]    (DELTABEAST=path/to/deltabeast if it is not on the PATH)
# Several share the runs, each on a core of its own. ENVS="CartPole-v1" CORES=lstm SEEDS="4 5": those alone.
set -euo pipefail
runs=${1:?directory for the runs}
alone="taskset -c ${2:-0} ${DELTABEAST:-deltabeast}"

envs=(
	popgym:popgym-RepeatPreviousEasy-v0
	CartPole-v1
	Acrobot-v1
	minigrid:MiniGrid-Empty-8x8-v0
	minatar:MinAtar/Breakout-v1
	LunarLander-v3
	popgym:popgym-PositionOnlyCartPoleEasy-v0
	minatar:MinAtar/SpaceInvaders-v1
	flappy_bird_gymnasium:FlappyBird-v0
	minigrid:MiniGrid-MemoryS7-v0
)
declare -A options=([flappy_bird_gymnasium:FlappyBird-v0]="use_lidar false") # its 180 rays take a hundred times as long
for seed in ${SEEDS:-1 2 3}; do
	for env in ${ENVS:-"${envs[@]}"}; do
		for core in ${CORES:-rdn lstm}; do
			run=$runs/${env//[:\/]/-}/$core/seed-$seed
			mkdir -p "${run%/*}"
			exec 9>>"$run.lock"
			flock --nonblock 9 || continue
			[ ! -d "$run/eval" ] || continue
			$alone train --env "$env" ${options[$env]:+--env-options ${options[$env]}} --core "$core" --seed "$seed" --run-dir "$run"
			$alone eval "$run" --episodes 20 --repeats 5
		done
	done
done
