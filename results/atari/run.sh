#!/usr/bin/env bash
# Pong from one screen, from one of which half are black, so that what was seen must be remembered, and from four:
# memories and none, three seeds; each run trained, evaluated with sampled actions and greedy, and exported.
# Exported runs are skipped, and what ../keep.py has kept; killed ones are resumed.
# Usage: results/atari/run.sh RUNS_DIR [PART/PARTS]   (DELTABEAST=path/to/deltabeast if it is not on the PATH)
# 1/2 and 2/2 share the runs between two processes. SCREENS=1 CORES="lstm rdn" SEEDS="1 2": those alone.
set -euo pipefail
runs=${1:?directory for the runs} part=${2:-1/1}
number=0

# screens, core
rows=(
	"1 feedforward" "1 lstm" "1 rdn"
	"1-flicker feedforward" "1-flicker lstm" "1-flicker rdn"
	"1 delta_net" "1 gated_delta_net"
	"4 feedforward" "4 lstm" "4 rdn"
)

for seed in ${SEEDS:-1 2 3}; do
	for row in "${rows[@]}"; do
		read -r screens core <<<"$row"
		[[ " ${SCREENS:-$screens} " = *" $screens "* && " ${CORES:-$core} " = *" $core "* ]] || continue
		number=$((number + 1))
		[ $((number % ${part#*/})) = $((${part%/*} % ${part#*/})) ] || continue
		run=$runs/pong-$screens/$core/seed-$seed
		export=${runs%/}-agents/pong-$screens/$core/seed-$seed
		seen=(--frame-stack "${screens%-*}")
		[[ $screens = *flicker ]] && seen+=(--flicker 0.5)
		[[ -e $run/config.json && ! -d $run/checkpoints || -e $export/README.md ]] && continue
		"${DELTABEAST:-deltabeast}" train --game pong "${seen[@]}" --core "$core" --preset laptop-2026-11 --steps 3.5M \
			--precision fp32 --num-workers 1 --seed "$seed" --run-dir "$run"
		"${DELTABEAST:-deltabeast}" eval "$run" --episodes 10 --sample
		"${DELTABEAST:-deltabeast}" eval "$run" --episodes 10
		"${DELTABEAST:-deltabeast}" export "$run" "$export" --half
	done
done
