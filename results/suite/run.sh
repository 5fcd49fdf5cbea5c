#!/usr/bin/env bash
# The memory suite: tasks that ask for one ability each, twenty-one memories, three seeds by default; each run trained, then evaluated
# with sampled actions, as it was trained; delay and overwrite also with the state reset every few steps.
# Evaluated runs are skipped, and what ../keep.py has kept; killed ones are resumed.
# Usage: results/suite/run.sh RUNS_DIR [PART/PARTS]   (DELTABEAST=path/to/deltabeast if it is not on the PATH)
# 1/2 and 2/2 share the runs between two processes. TASKS="overwrite" CORES="lstm rdn" SEEDS="4 5": those alone.
# BPTT=per_step: as published, without gradients through the memory; STEPS=3M: longer; LEARNING_RATE=5e-4: another; CORE="rdn
# --core-options clock 4": that one instead of all; each into a RUNS_DIR of its own.
set -euo pipefail
runs=${1:?directory for the runs} part=${2:-1/1}
number=0

# name, environment, discount
tasks=(
	"delay popgym:popgym-RepeatPreviousEasy-v0 0.5"
	"long-delay popgym:popgym-RepeatPreviousMedium-v0 0.5"
	"hold popgym:popgym-RepeatFirstEasy-v0 0.5"
	"reverse popgym:popgym-AutoencodeEasy-v0 0.5"
	"count popgym:popgym-CountRecallEasy-v0 0.5"
	"associate popgym:popgym-ConcentrationEasy-v0 0.9"
	"overwrite deltabeast/EndlessTMazeLong-v0 0.97"
	"navigate minigrid:MiniGrid-MemoryS7-v0 0.97"
)
cores=(
	feedforward lstm gru linear_transformer delta_net gated_delta_net delta_rnn rdn
	"delta_net --core-options feature_map unit normalise none beta_max 2"
	"delta_net --core-options feature_map unit normalise none clock 4"
	kda gated_delta_net_2 delta_product rwkv7
	"delta_net --core-options short_conv 4"
	"gated_delta_net --core-options short_conv 4"
	"rdn --core-options short_conv 4"
	"feedforward --core-options short_conv 7" # what two layers of short_conv 4 see
	gtrxl transformer
	"hybrid --core-options layers kda,gtrxl"
)
[ -z "${CORE:-}" ] || cores=("$CORE")

for seed in ${SEEDS:-1 2 3}; do
	for task in "${tasks[@]}"; do
		read -r name env discount <<<"$task"
		[[ " ${TASKS:-$name} " = *" $name "* ]] || continue
		for core in "${cores[@]}"; do
			folder=${core%% *}
			[[ $core != *unit* ]] || folder+=-unit
			[[ $core != *clock* ]] || folder+=-clock
			[[ $core != *short_conv* ]] || folder+=-conv
			[[ ! $core =~ layers\ ([^ ]+) ]] || folder+=-${BASH_REMATCH[1]//,/-}
			[[ " ${CORES:-$folder} " = *" $folder "* ]] || continue
			number=$((number + 1))
			[ $((number % ${part#*/})) = $((${part%/*} % ${part#*/})) ] || continue
			run=$runs/$name/$folder/seed-$seed
			[ ! -d "$run/eval" ] || continue
			forget=
			[[ " delay overwrite " != *" $name "* || $core = feedforward* ]] || forget="--forget-every 1 2 4 8 16 32 64"
			# shellcheck disable=SC2086  # options are words
			"${DELTABEAST:-deltabeast}" train --env "$env" --core $core --steps "${STEPS:-1M}" --discount "$discount" \
				--preset none --observations plain --reward-clip 1 --truncation terminal \
				--num-envs 16 --batch-size 16 --unroll-length 52 --entropy-cost 0.001 --learning-rate "${LEARNING_RATE:-2e-3}" \
				--precision fp32 --bptt "${BPTT:-full}" --num-workers 1 --log-seconds 10 --seed "$seed" --run-dir "$run"
			# shellcheck disable=SC2086
			"${DELTABEAST:-deltabeast}" eval "$run" --episodes 20 --repeats 5 --sample $forget
		done
	done
done
