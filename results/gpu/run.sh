#!/usr/bin/env bash
# Tests and times what needs a GPU, in ten minutes on 16 cores, what is most wanted first: `make gpu`, or by itself.
#
# Usage: [OUT=results/gpu/new] [PYTHON=python3] [WHEELS=folder] [LIMIT=570] [DEVICE=cuda] results/gpu/run.sh [PART]...
#
# Parts: acting (games by threads and by processes), start (from the start of a process to its first update), changed_tests, training
# (by both), kernels, cpu (1 to 16 processes), cell (a run that goes on if a call finds it in OUT/cell); not unless named: tests,
# all_kernels.
#
# Each part has a time limit, and all together have LIMIT seconds; a part that fails or is stopped does not stop the others, but
# the exit status is 1, except for the cell, which takes what time there is. SIGINT and SIGTERM end the part under way and the script,
# with status 130. OUT gets log.txt with everything, parts.txt with how each part ended, and the numbers as JSON.
# Without a network, carry WHEELS: this project's (`pip wheel --no-deps .`) and those that PYTHON lacks; they are unpacked into
# build/gpu. With fla-core among them, its kernels are timed beside ours. DEVICE=cpu tries the script, with tiny sizes.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
[ $# -gt 0 ] || set -- acting start changed_tests training kernels cpu cell
for name in "$@"; do
	[[ " acting start changed_tests training kernels cpu cell tests all_kernels " = *" $name "* ]] || { sed -n '/^# Usage/,/^# all_kernels/p' "$0" >&2; exit 2; }
done
DEVICE=${DEVICE:-cuda} OUT=${OUT:-results/gpu/new} PYTHON=${PYTHON:-python3} LIMIT=${LIMIT:-570}
mkdir -p "$OUT" && OUT=$(cd "$OUT" && pwd) || exit
exec > >(trap '' INT TERM; exec tee "$OUT/log.txt") 2>&1

if [ -n "${WHEELS:-}" ]; then
	"$PYTHON" -m pip install --quiet --no-index --no-deps --upgrade --target build/gpu "$WHEELS"/*.whl || exit
	make --silent links || exit
	export PYTHONPATH=$PWD/build/types:$PWD/build/gpu
fi
export PYTHONUNBUFFERED=1 TORCHINDUCTOR_COMPILE_THREADS=1
export TRITON_CACHE_AUTOTUNING=1 # fla tries many settings of each kernel: once, not in each process
DELTABEAST=("$PYTHON" -c 'from deltabeast.launch.cli import main; main()')
# as on so few cores that environments are stepped in the process of the actors
BY_THREADS=("$PYTHON" -c 'from deltabeast.launch.training import plan; plan.FEW_CORES = 1 << 20
from deltabeast.launch.cli import main; main()')
CORES=$(nproc)

failures=0 running=
: > "$OUT/parts.txt"
stop() {
	trap '' INT TERM
	if [ -n "$running" ]; then
		kill -INT "$running"
		wait "$running"
	fi 2> /dev/null
	echo "stopped by a signal after $SECONDS s" | tee -a "$OUT/parts.txt"
	exit 130
}
trap stop INT TERM
part() { # NAME SECONDS COMMAND...: runs it, for that long at most
	local name=$1 left=$((LIMIT - SECONDS)) start=$SECONDS status=0
	local limit=$(($2 < left ? $2 : left))
	shift 2
	if [ "$limit" -lt 10 ]; then
		echo "$name: left out, no time left" | tee -a "$OUT/parts.txt"
		return
	fi
	echo "=== $name: $*"
	# upon SIGINT pytest and the benchmark of kernels print what they have
	timeout --signal=INT --kill-after=10 "$limit" "$@" <&0 &
	running=$!
	wait "$running" || status=$? # a trap runs at once here, beside a command only after it
	running=
	[[ $status = 0 || $name-$status = cell-124 ]] || failures=$((failures + 1))
	echo "$name: exit status $status after $((SECONDS - start)) s of $limit" | tee -a "$OUT/parts.txt"
}
test_part() { # NAME SECONDS TESTS...
	part "$1" "$2" "$PYTHON" -m pytest -q --numprocesses "$((CORES < 16 ? CORES : 16))" --dist worksteal -m "not long" "${@:3}"
}
bench_part() { # NAME SECONDS ARGUMENTS...
	local program=("${DELTABEAST[@]}")
	[[ $1 != threads-* ]] || program=("${BY_THREADS[@]}")
	part "$1" "$2" "${program[@]}" bench "${@:3}" --device "$DEVICE" --json "$OUT/$1.json"
}

acting() {
	local many=(--games 256 --rounds 3 --seconds 3) few=(--games 16 --rounds 2 --seconds 2)
	[ "$DEVICE" != cpu ] || many=(--games 8 --rounds 1 --seconds 0.5) few=(--games 4 --rounds 1 --seconds 0.5)
	part acting 140 "$PYTHON" results/gpu/processes.py "${many[@]}" --json "$OUT/acting.json"
	part acting-few 45 "$PYTHON" results/gpu/processes.py "${few[@]}" --arms threads processes free --json "$OUT/acting-few.json"
}

start() { # one batch; the second time with what the first has left in caches
	local games=256 run began
	[ "$DEVICE" != cpu ] || games=8
	for run in 1 2; do
		began=$(date +%s.%N)
		part "start-$run" 60 "${DELTABEAST[@]}" train --game pong --core rdn --stem nature --num-envs "$games" --steps 1 \
			--device "$DEVICE" --run-dir "$OUT/start/$began"
		[ ! -e "$OUT/start/$began/logs.csv" ] ||
			awk -F, -v run="start-$run" -v began="$began" 'NR == 2 { printf "%s: first update after %.1f s\n", run, $2 - began }' \
				"$OUT/start/$began/logs.csv" | tee -a "$OUT/parts.txt"
	done
}

changed_tests() {
	test_part changed-tests 90 tests/launch/training/test_on_a_gpu.py tests/launch/processes/test_env_processes.py \
		tests/launch/training/local/test_in_processes.py tests/agents/cuda
}

tests() {
	test_part tests-of-kernels 160 tests/kernels/test_triton.py tests/launch/bench/test_fla.py
	test_part tests-of-agents 90 tests/agents/cuda tests/launch/training/test_on_a_gpu.py tests/agents/test_compiled.py \
		tests/kernels/test_fused.py tests/cores/test_own_rule.py tests/launch/bench/test_bench.py tests/launch/processes/test_machine.py
}

kernels() {
	local beside=(sum_rule delta_rule gated_delta kda gated_delta_net_2 delta_product rwkv7) sizes=(--repeats 10)
	[ "$DEVICE" != cpu ] || sizes=(--repeats 1 --steps 9 --batch-size 2 --heads 1 --head-size 8)
	if "$PYTHON" -c 'import fla' 2> /dev/null; then
		part settings-of-fla 75 xargs --max-procs "$CORES" --replace \
			"${DELTABEAST[@]}" bench kernels --device "$DEVICE" "${sizes[@]}" --rules {} < <(printf '%s\n' "${beside[@]}")
	fi
	bench_part kernels 60 kernels "${sizes[@]}" --rules "${beside[@]}"
}

all_kernels() {
	bench_part all-kernels 120 kernels --repeats 10
}

training() {
	local games=256 core options=(throughput --rounds 1 --seconds 3)
	[ "$DEVICE" != cpu ] || games=8 options=(throughput --rounds 1 --seconds 0.5 --unroll-length 5 --batch-size 4)
	for core in rdn lstm; do
		bench_part "processes-$core" 45 "${options[@]}" --num-envs "$games" --core "$core" --stem nature
		bench_part "threads-$core" 60 "${options[@]}" --num-envs "$games" --core "$core" --stem nature
	done
	bench_part processes-residual 45 "${options[@]}" --num-envs "$games"
}

cpu() {
	local count cpus sizes=(--num-envs 32 --seconds 2)
	[ "$DEVICE" != cpu ] || sizes=(--num-envs 16 --batch-size 16 --unroll-length 5 --seconds 0.5)
	cpus=$("$PYTHON" -c 'import os; print(*sorted(os.sched_getaffinity(0)), sep=",")') # a container's need not begin at 0
	for count in 1 2 4 8 16; do
		[ "$count" -le "$CORES" ] || break
		# one process alone takes 31 s of a Zen 4
		part "cpu-$count" 45 taskset --cpu-list "$(cut -d, -f "1-$count" <<< "$cpus")" "${DELTABEAST[@]}" bench throughput --device cpu --stem nature \
			"${sizes[@]}" --rounds 1 --json "$OUT/cpu-$count.json"
	done
}

cell() { # what the time that is left is good for
	local sizes=(--preset laptop-2026-11 --num-envs 256 --steps 50M)
	[ "$DEVICE" != cpu ] || sizes=(--preset laptop-2026-11 --steps 2000)
	part cell 570 "${DELTABEAST[@]}" train --game pong --core rdn "${sizes[@]}" --log-seconds 5 --device "$DEVICE" \
		--checkpoint-minutes 1 --run-dir "$OUT/cell"
}

git log -1 --format='commit %H' 2> /dev/null
"$PYTHON" -c 'import sys, torch; print(sys.version, torch.__version__, torch.cuda.is_available() and torch.cuda.get_device_name())'
for name in "$@"; do "$name"; done
exit "$((failures > 0))"
