#!/usr/bin/env bash
# Pong from one screen, where the ball's motion must be remembered, and from four: memories and none, three seeds;
# each run trained, evaluated with sampled actions and greedy, and exported.
# Exported runs are skipped, and what ../keep.py has kept; killed ones are resumed.
# Usage: results/atari/run.sh RUNS_DIR [PART/PARTS]   (DELTABEAST=path/to/deltabeast if it is not on the PATH)
# 1/2 and 2/2 share the runs between two processes. STACKS=1 CORES="lstm rdn" SEEDS="1 2": those alone.
set -euo pipefail
runs=${1:?where runs are kept} part=${2:-1/1}
number=0

# screens, core
rows=(
	"1 feedforward" "1 lstm" "1 rdn" "1 delta_net" "1 gated_delta_net"
	"4 feedforward" "4 lstm" "4 rdn"
)

for seed in ${SEEDS:-1 2 3}; do
	for row in "${rows[@]}"; do
		read -r stack core <<<"$row"
		[[ " ${STACKS:-$stack} " = *" $stack "* && " ${CORES:-$core} " = *" $core "* ]] || continue
		number=$((number + 1))
		[ $((number % ${part#*/})) = $((${part%/*} % ${part#*/})) ] || continue
		run=$runs/pong-$stack/$core/seed-$seed
		export=${runs%/}-agents/pong-$stack/$core/seed-$seed
		[[ -e $run/config.json && ! -d $run/checkpoints || -d $export ]] && continue
		"${DELTABEAST:-deltabeast}" train --game pong --frame-stack "$stack" --core "$core" --preset laptop --steps 3.5M \
			--precision fp32 --num-workers 1 --seed "$seed" --run-dir "$run"
		"${DELTABEAST:-deltabeast}" eval "$run" --episodes 10 --sample
		"${DELTABEAST:-deltabeast}" eval "$run" --episodes 10
		"${DELTABEAST:-deltabeast}" export "$run" "$export" --half
	done
done
