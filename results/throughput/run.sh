#!/usr/bin/env bash
# Every configuration of README.md's first table, into results/throughput/cpu/. Nothing else may run meanwhile.
set -euo pipefail
cd "$(dirname "$0")"
mkdir -p cpu
measure() { # STEM PRECISION CORE
	deltabeast bench throughput --device cpu --stem "$1" --precision "$2" --core "$3" --seconds 5 --rounds 2 \
		--json "cpu/$1-$2-$3.json"
}
for core in rdn lstm; do
	for stem in residual nature; do
		measure $stem fp32 $core
		measure $stem bf16 $core
	done
done
for core in feedforward linear_transformer delta_net delta_rnn; do
	measure nature fp32 $core
done
