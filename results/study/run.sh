#!/usr/bin/env bash
# Why the Delta Net stalls where others learn: one change at a time, two tasks, three seeds.
# Finished runs are skipped, and those that scores.csv has (remove it to make all anew); killed ones are resumed.
# Usage: results/study/run.sh RUNS_DIR [PART/PARTS]   (DELTABEAST=path/to/deltabeast if it is not on the PATH)
# 1/2 and 2/2 share the runs between two processes.
set -euo pipefail
runs=${1:?directory for the runs} part=${2:-1/1}
number=0 scores=$(dirname "$0")/scores.csv

train() { # TASK ROW SEED OPTIONS...: one run, if it is in this part
	local task=$1 row=$2 seed=$3 of_task
	number=$((number + 1))
	[ $((number % ${part#*/})) = $((${part%/*} % ${part#*/})) ] || return 0
	! grep -qs "^$task,$row,$seed," "$scores" || return 0
	of_task=(--env popgym:popgym-RepeatPreviousEasy-v0 --steps 1M --discount 0.5)
	[ "$task" = overwrite ] && of_task=(--env deltabeast/EndlessTMazeLong-v0 --steps 1M --discount 0.97)
	"${DELTABEAST:-deltabeast}" train "${of_task[@]}" --preset none --observations plain --reward-clip 1 --truncation terminal \
		--precision fp32 --num-envs 16 --batch-size 16 --unroll-length 26 \
		--entropy-cost 0.001 --learning-rate 2e-3 --log-seconds 10 --seed "$seed" \
		--run-dir "$runs/$task/$row/seed-$seed" "${@:4}"
}

unit="feature_map unit normalise none"
rows=(
	"lstm --core lstm"
	"lstm-unroll-52 --core lstm --unroll-length 52"
	"lstm-chrono --core lstm --core-options chrono 64"
	"lstm-slower --core lstm --learning-rate 5e-4"
	"lstm-unroll-104 --core lstm --unroll-length 104"
	"gru --core gru"
	"gru-chrono --core gru --core-options chrono 64"
	"linear_transformer --core linear_transformer"
	"rdn --core rdn"
	"delta_rnn --core delta_rnn"
	"delta_net --core delta_net"
	# keys
	"softmax-keys --core delta_net --core-options feature_map softmax normalise none"
	"dpfp-keys --core delta_net --core-options feature_map dpfp"
	"unit-keys --core delta_net --core-options $unit"
	"unit-keys-beta-2 --core delta_net --core-options $unit beta_max 2"
	"root2-keys --core delta_net --core-options feature_map root2 normalise none"
	"attention-normaliser --core delta_net --core-options normalise attention"
	# forgetting
	"decay --core gated_delta_net --core-options feature_map elu normalise sum"
	"decay-unit-keys --core gated_delta_net"
	"decay-nothing-erased --core gated_linear_attention --core-options $unit"
	# where it begins
	"beta-0.1 --core delta_net --core-options beta_start 0.1"
	"beta-0.9 --core delta_net --core-options beta_start 0.9"
	"unit-keys-beta-0.9 --core delta_net --core-options $unit beta_start 0.9"
	# time
	"clock --core delta_net --core-options clock 4"
	"unit-keys-clock --core delta_net --core-options $unit clock 4"
	# the shell and the learner
	"gates --core delta_net --core-options residual gate"
	"unit-keys-gates --core delta_net --core-options $unit residual gate"
	"rmsprop-eps-1e-5 --core delta_net --rmsprop-eps 1e-5 --learning-rate 5e-4"
	"unroll-52 --core delta_net --unroll-length 52"
	"per-step --core delta_net --bptt per_step"
	"unit-keys-per-step --core delta_net --bptt per_step --core-options $unit"
	"rdn-per-step --core rdn --bptt per_step"
)
for task in overwrite delay; do
	for seed in 1 2 3; do
		for row in "${rows[@]}"; do
			# shellcheck disable=SC2086  # options are words
			train $task ${row%% *} $seed ${row#* }
		done
	done
done
