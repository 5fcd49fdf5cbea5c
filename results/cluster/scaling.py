"""What 10, 100, 1,000 and 10,000 actors need so that none waits, from rates measured on one machine.

python results/cluster/scaling.py [--acting SPS] [--learning SPS] [--bytes-per-step B] ...

steps    = actors x acting                                            agent steps a second
learners = steps / learning
unrolls  = steps x bytes a step                                       into the learners
weights  = nodes x bytes x min(updates, unrolls that a node begins)   out of the first learner, a second
engine   = unrolls a second x its CPU seconds for one                 cores; it has one
"""

from __future__ import annotations

import argparse

ACTORS = (10, 100, 1_000, 10_000)


def row(n: int, given: argparse.Namespace) -> list[float]:
    steps = n * given.acting
    unrolls = steps / (given.unroll_length * given.num_envs)
    updates = steps / (given.unroll_length * given.batch_size)
    nodes = max(1.0, n / given.actors_per_node)
    pulled = nodes * min(updates, unrolls / nodes) * given.weights_mb * 1e6
    gigabits = 8 / 1e9
    return [steps, steps / given.learning, steps * given.bytes_per_step * gigabits, pulled * gigabits,
            unrolls * given.engine_ms / 1000]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--acting", type=float, default=1236.0, help="of an actor on one core")
    parser.add_argument("--learning", type=float, default=1485.0, help="of a learner")
    parser.add_argument("--bytes-per-step", type=float, default=862.0)
    parser.add_argument("--weights-mb", type=float, default=5.3)
    parser.add_argument("--engine-ms", type=float, default=10.0, help="CPU time of the engine, an unroll")
    parser.add_argument("--actors-per-node", type=int, default=30)
    parser.add_argument("--unroll-length", type=int, default=50)
    parser.add_argument("--num-envs", type=int, default=32)
    parser.add_argument("--batch-size", type=int, default=32)
    given = parser.parse_args()
    print("| actors | agent steps/s | learners | unrolls, Gbit/s | weights, Gbit/s | engine, cores |")
    print("|---|---|---|---|---|---|")
    for n in ACTORS:
        steps, learners, unrolls, weights, engine = row(n, given)
        print(f"| {n:,} | {steps:,.0f} | {learners:,.1f} | {unrolls:.2f} | {weights:.2f} | {engine:.2f} |")


if __name__ == "__main__":
    main()
