#!/usr/bin/env bash
# The source papers' small tasks; finished runs are skipped, killed ones resumed.
# Usage: results/probe/run.sh RUNS_DIR TASK [PART/PARTS]   (DELTABEAST=path/to/deltabeast if it is not on the PATH)
# TASK: retrieval-1 retrieval-2 retrieval-seeds retrieval-fwm swap swap-twice dag listops code, of a size for a CPU;
# published: all that the papers have, for a GPU.
# 1/2 and 2/2 share a task's runs between two processes.
set -euo pipefail
runs=${1:?directory for the runs} task=${2:?which task} part=${3:-1/1}
number=0
seed=1

probe() { # NAME SEED OPTIONS...: one run, if it is in this part
	local dir="$runs/$1/seed-$2" seed=$2
	number=$((number + 1))
	if [ $((number % ${part#*/})) = $((${part%/*} % ${part#*/})) ] && [ ! -e "$dir/scores.json" ]; then
		"${DELTABEAST:-deltabeast}" probe --seed "$seed" --run-dir "$dir" "${@:3}"
	fi
}

alone() { # SETTING SIZES CORE FEATURE_MAPS...: memories alone, each as name=options
	local setting=$1 sizes=$2 core=$3 size map folder=retrieval-$1
	[ "$task" = retrieval-seeds ] && folder=$task
	for size in $sizes; do
		for map in "${@:4}"; do
			# shellcheck disable=SC2086  # options are words
			probe "$folder/size-$size/$core-${map%%=*}" "$seed" --task retrieval --task-options size "$size" setting "$setting" \
				--core "$core" ${map#*=}
		done
	done
}

dpfp=(dpfp-1="--core-options feature_map dpfp" dpfp-2="--core-options feature_map dpfp dpfp_nu 2"
	dpfp-3="--core-options feature_map dpfp dpfp_nu 3")
favor="--core-options feature_map favor favor_features"
one=(hidden_size 64 num_layers 1 num_heads 4 ff_size 128)
small=(hidden_size 64 num_layers 2 num_heads 4 ff_size 256)

case $task in
retrieval-1)
	alone 1 "20 60 100 200 400" softmax_attention softmax=
	alone 1 "20 60 100 200 400" linear_transformer elu= "${dpfp[@]}" favor-64="$favor 64" favor-128="$favor 128"
	;;
retrieval-2)
	for core in linear_transformer delta_net; do
		alone 2 "20 60 100 200" $core elu= "${dpfp[@]}"
	done
	;;
retrieval-seeds)
	for seed in 1 2 3 4 5; do
		alone 1 60 linear_transformer elu=
		alone 1 20 linear_transformer favor-64="$favor 64" favor-128="$favor 128"
	done
	;;
swap)
	# As listed; and with heads of 8 instead of 3, for longer, with gradients that stay finite as sequences grow.
	for seed in 1 2 3; do
		for wide in "" "--max-grad-norm 1 --updates 8000 --core-options hidden_size 32"; do
			# shellcheck disable=SC2086  # options are words
			probe "swap${wide:+-wide}/attention" $seed --task swap --core softmax_attention $wide
			for kernels in "round softmax" "exp softmax" "linear linear"; do
				probe "swap${wide:+-wide}/deltaformer-${kernels/ /-}" $seed --task swap --core deltaformer \
					${wide:---core-options} first "${kernels% *}" second "${kernels#* }"
			done
		done
		probe swap/delta_net-sum $seed --task swap --core delta_net --core-options "${one[@]}"
		probe swap/delta_net-root2 $seed --task swap --core delta_net \
			--core-options "${one[@]}" feature_map root2 normalise none
	done
	;;
retrieval-fwm)
	alone 2 "20 60" fast_weight_memory dpfp-1="--core-options feature_map dpfp" tanh="--core-options feature_map tanh"
	;;
swap-twice) # two swaps a step; with swap's own learning rate DeltaProduct is at 32 steps after 8,000 updates
	for seed in 1 2 3; do
		twice=(--task swap --task-options swaps 2 --max-grad-norm 1 --learning-rate 3e-3)
		probe swap-twice/delta_product $seed "${twice[@]}" --core delta_product --core-options "${one[@]}"
		probe swap-twice/delta_net-sum $seed "${twice[@]}" --core delta_net --core-options "${one[@]}"
		probe swap-twice/delta_net-root2 $seed "${twice[@]}" --core delta_net \
			--core-options "${one[@]}" feature_map root2 normalise none
	done
	;;
dag)
	for seed in 1 2 3; do
		for core in softmax_attention transformer deltaformer delta_net; do
			probe dag/$core $seed --task dag --core $core --core-options "${one[@]}"
		done
	done
	;;
listops | code)
	options=(depth 3)
	[ "$task" = code ] && options=(variables 2 statements 10)
	for seed in 1 2; do
		for core in lstm delta_net delta_rnn rdn; do
			size=("${small[@]}")
			[ $core = lstm ] && size=(hidden_size 128)
			probe "$task/$core" $seed --task "$task" --task-options "${options[@]}" --updates 4710 \
				--core $core --core-options "${size[@]}"
		done
	done
	;;
published)
	sizes=$(seq -s ' ' 20 20 600)
	alone 1 "$sizes" softmax_attention softmax=
	alone 1 "$sizes" linear_transformer elu= "${dpfp[@]}" favor-64="$favor 64" favor-128="$favor 128" favor-512="$favor 512"
	sizes=$(seq -s ' ' 20 20 200)
	alone 2 "$sizes" linear_transformer "${dpfp[0]}"
	alone 2 "$sizes" delta_net elu= "${dpfp[@]::2}" favor-64="$favor 64" favor-128="$favor 128"
	for seed in 1 2 3; do
		for options in "code variables 3" "code variables 5" "listops depth 10" "listops depth 15"; do
			for core in lstm linear_transformer delta_net delta_rnn rdn; do
				# shellcheck disable=SC2086  # options are words
				probe "${options// /-}/$core" $seed --task ${options%% *} --task-options ${options#* } --core $core
			done
		done
	done
	;;
*)
	echo "$0: $task is none of the tasks that its first lines name" >&2
	exit 2
	;;
esac
