#!/usr/bin/env bash
# Train on the nodes of a Slurm job, with the options of `deltabeast train`:
#   sbatch --nodes 4 launch/training/ray/slurm.sh --game gopher --core rdn --num-actors 60
# Submit the same line again, or let it requeue, to go on. Submit it from a folder that all nodes share, with
# `deltabeast` and `ray` on the PATH (an activated environment).
#SBATCH --job-name=deltabeast
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --time=24:00:00
#SBATCH --signal=B:TERM@300
#SBATCH --requeue
# With GPUs: sbatch --gpus-per-node 1 ...
set -euo pipefail

mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
port=${RAY_PORT:-$((20000 + SLURM_JOB_ID % 10000))} # jobs that share a node each have their own
# What the node's name stands for: where that is 127.0.1.1 (Debian), write the address that others reach.
address=$(srun --nodes=1 --ntasks=1 --overlap -w "${nodes[0]}" hostname --ip-address | cut -d' ' -f1)
export RAY_USAGE_STATS_ENABLED=0 RAY_AUTH_MODE=token
RAY_AUTH_TOKEN=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n') # only this job's processes know it
export RAY_AUTH_TOKEN

join() { # join NODE OPTION...: a node of the cluster, as long as the job lives
    local cpus=${SLURM_CPUS_PER_TASK:-1} # a step does not take it from the job: all would share one core
    srun --nodes=1 --ntasks=1 --cpus-per-task="$cpus" --overlap -w "$1" ray start "${@:2}" --num-cpus="$cpus" \
        ${SLURM_GPUS_ON_NODE:+--num-gpus="$SLURM_GPUS_ON_NODE"} --block &
}
join "${nodes[0]}" --head --node-ip-address="$address" --port="$port" --include-dashboard=false
until ray health-check --address "$address:$port" 2>/dev/null; do
    kill -0 $! || exit 1 # what went wrong, ray has said
    sleep 1
done
for node in "${nodes[@]:1}"; do join "$node" --address="$address:$port"; done

# Slurm tells this script five minutes before the end: the run saves and ends, and the cluster with it.
deltabeast train --engine ray --ray-address "$address:$port" "$@" &
run=$!
trap 'kill -TERM $run' TERM INT
wait $run && code=0 || code=$?
if kill -0 $run 2>/dev/null; then wait $run && code=0 || code=$?; fi # a signal interrupts the first wait
jobs -p | xargs --no-run-if-empty kill 2>/dev/null || true
exit $code
