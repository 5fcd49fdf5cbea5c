#!/usr/bin/env bash
# Pong from single screens, each black with probability 0.5, so that what was seen must be remembered: memories and none, three seeds;
# each run trained, evaluated with sampled actions, also with its state reset every few steps, and exported. ../atari/plan.md has the costs.
# Exported runs are skipped, and what ../keep.py has kept; killed ones are resumed.
# Usage: results/flicker/run.sh RUNS_DIR [PART/PARTS]   (DELTABEAST=path/to/deltabeast if it is not on the PATH)
# 1/2 and 2/2 share the runs between two processes. CORES="lstm delta_net-conv" SEEDS="4 5": those alone. STEPS=9M: longer, into
# a RUNS_DIR of its own.
set -euo pipefail
runs=${1:?directory for the runs} part=${2:-1/1}
number=0

# most important first
cores=(
	feedforward lstm delta_net rdn
	gru transformer gated_delta_net kda
	"delta_net --core-options short_conv 4"
	"delta_net --core-options clock 4"
	"hybrid --core-options layers kda,gtrxl"
)

for seed in ${SEEDS:-1 2 3}; do
	for core in "${cores[@]}"; do
		folder=${core%% *}
		[[ $core != *clock* ]] || folder+=-clock
		[[ $core != *short_conv* ]] || folder+=-conv
		[[ " ${CORES:-$folder} " = *" $folder "* ]] || continue
		number=$((number + 1))
		[ $((number % ${part#*/})) = $((${part%/*} % ${part#*/})) ] || continue
		run=$runs/$folder/seed-$seed
		export=${runs%/}-agents/$folder/seed-$seed
		[[ -e $run/config.json && ! -d $run/checkpoints || -e $export/README.md ]] && continue
		forget=
		[ "$folder" = feedforward ] || forget="--forget-every 1 2 4 8 16 32 64"
		# shellcheck disable=SC2086  # options are words
		"${DELTABEAST:-deltabeast}" train --game pong --frame-stack 1 --flicker 0.5 --core $core --preset laptop \
			--steps "${STEPS:-6M}" --num-workers 1 --seed "$seed" --run-dir "$run"
		# shellcheck disable=SC2086
		"${DELTABEAST:-deltabeast}" eval "$run" --episodes 10 --sample $forget
		"${DELTABEAST:-deltabeast}" export "$run" "$export" --half
	done
done
