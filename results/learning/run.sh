#!/usr/bin/env bash
# Is learning bought with speed? The same task in lock-step, shared by two processes, and with actors ahead of the
# learner, three seeds each; runs in DIR, default runs/learning.
set -euo pipefail
runs=${1:-runs/learning}
for seed in 1 2 3; do
	for mode in deterministic shared ahead; do
		case $mode in
		deterministic) options="--deterministic" ;;
		shared) options="--num-workers 2" ;;
		ahead) options="--overlap on" ;;
		esac
		deltabeast train --env popgym:popgym-RepeatPreviousEasy-v0 --core lstm --steps 200k --seed $seed \
			--preset none --observations plain --reward-clip 1 --truncation terminal \
			--num-envs 16 --batch-size 16 --unroll-length 26 --learning-rate 2e-3 --discount 0.5 \
			--entropy-cost 0.001 --log-seconds 2 --device cpu --run-dir "$runs/$mode/seed-$seed" $options
	done
done
