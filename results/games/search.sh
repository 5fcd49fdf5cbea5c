#!/usr/bin/env bash
# Settings for all games: those of the preset `laptop`, and with one changed at a time (and advantages normalised at two entropy
# costs, and with a longer discount), on four games with the LSTM; `deltabeast compare RUNS_DIR` has the table. Runs that
# ../keep.py has stripped are skipped, killed ones resumed.
# Usage: results/games/search.sh RUNS_DIR [PART/PARTS]   (DELTABEAST=path/to/deltabeast if it is not on the PATH)
# 1/2 and 2/2 share the runs between two processes. GAMES="qbert" CORES="rdn" SETTINGS="laptop nature" SEEDS="2": those alone.
set -euo pipefail
runs=${1:?directory for the runs} part=${2:-1/1}
number=0

# name, options
settings=(
	"laptop"
	"entropy-0.01 --entropy-cost 0.01"
	"nature --stem nature"
	"discount-0.995 --discount 0.995"
	"unroll-40 --unroll-length 40"
	"advantages --normalise-advantages --entropy-cost 0.02"
	"advantages-alone --normalise-advantages"
	"advantages-discount --normalise-advantages --entropy-cost 0.02 --discount 0.995"
)

for seed in ${SEEDS:-1}; do
	for core in ${CORES:-lstm}; do
		for game in ${GAMES:-breakout freeway space_invaders qbert}; do
			for setting in "${settings[@]}"; do
				read -r name options <<<"$setting"
				[[ " ${SETTINGS:-$name} " = *" $name "* ]] || continue
				number=$((number + 1))
				[ $((number % ${part#*/})) = $((${part%/*} % ${part#*/})) ] || continue
				run=$runs/$name/$game/$core/seed-$seed
				[[ -e $run/config.json && ! -d $run/checkpoints ]] && continue
				# shellcheck disable=SC2086  # options are words
				"${DELTABEAST:-deltabeast}" train --game "$game" --core "$core" --preset laptop --steps 1M $options \
					--num-workers 1 --seed "$seed" --run-dir "$run"
			done
		done
	done
done
