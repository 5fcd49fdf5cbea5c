"""Run Sample Factory and RLlib on this machine, one after the other; print their agent steps a second.

Usage: peers.py SAMPLE_FACTORY_PYTHON RLLIB_PYTHON [SECONDS], with the interpreters of environments that hold
sample-factory==2.1.1 gymnasium==0.29.1 numpy==1.26.4 ale-py==0.12.1, and ray[rllib]==2.60.0 gymnasium==1.2.2
ale-py==0.12.1 opencv-python-headless.
"""

import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path

HERE = Path(__file__).parent
TUNED = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "20000000000",
    "MALLOC_TOP_PAD_": "67108864",
    "MALLOC_ARENA_MAX": "1",
}
"""glibc keeps freed memory, which these trainers do not ask for themselves."""

SAMPLE_FACTORY = [
    "--algo=APPO", "--env=atari_pong", "--device=cpu", "--with_vtrace=True", "--use_rnn=True",
    "--rnn_type=lstm", "--rnn_size=256", "--rollout=50", "--recurrence=50", "--batch_size=1600",
    "--num_batches_per_epoch=1", "--num_epochs=1", "--normalize_returns=False",
    "--normalize_input=False", "--encoder_conv_mlp_layers", "256", "--shuffle_minibatches=False",
]  # fmt: skip
SERIAL = [
    "--serial_mode=True", "--async_rl=False", "--batched_sampling=True", "--num_workers=1",
    "--num_envs_per_worker=32", "--worker_num_splits=1",
]  # fmt: skip
ASYNCHRONOUS = [
    "--async_rl=True", "--num_workers=2", "--num_envs_per_worker=16", "--worker_num_splits=2",
]  # fmt: skip
WARM_UP = 20.0


def sample_factory(python, encoder, mode, threads, tuned, seconds):
    arguments = [*SAMPLE_FACTORY, *mode, f"--encoder_conv_architecture={encoder}", "--experiment=pong"]
    script = str(HERE / "sample_factory_atari.py")
    marks = []
    with tempfile.TemporaryDirectory() as folder:
        process = start([python, script, *arguments, f"--train_dir={folder}"], threads, tuned)
        for line in process.stdout:
            found = re.search(r"\[(\d{4}-\S+ [\d:,]+)\].*Total num frames: (\d+)", line)
            if found and int(found[2]) and int(found[2]) != (marks[-1][1] if marks else 0):
                when = datetime.strptime(found[1], "%Y-%m-%d %H:%M:%S,%f").timestamp()
                marks.append((when, int(found[2])))  # 4 frames an agent step
                if when - marks[0][0] > WARM_UP + seconds:
                    break
        stop(process)
    marks = [mark for mark in marks if mark[0] - marks[0][0] > WARM_UP]
    return (marks[-1][1] - marks[0][1]) / 4 / (marks[-1][0] - marks[0][0]) if len(marks) > 1 else float("nan")


def rllib(python, model, tuned, seconds):
    process = start([python, str(HERE / "rllib_pong.py"), model, str(seconds)], 2, tuned)
    output = process.communicate()[0]
    found = re.search(r"agent steps/s: (\d+) learned, (\d+) sampled", output)
    if not found:
        print(output[-2000:], file=sys.stderr)
    return float(found[1]) if found else float("nan")


def start(command, threads, tuned):
    environment = {**os.environ, **(TUNED if tuned else {}), "OMP_NUM_THREADS": str(threads)}
    return subprocess.Popen(
        command,
        env=environment,
        cwd=tempfile.gettempdir(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def stop(process):
    os.killpg(process.pid, 15)
    time.sleep(5)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, 9)
    process.wait()


def main(sample_factory_python, rllib_python, seconds=40.0):
    print("| system | network | mode | allocator | agent steps/s |\n|---|---|---|---|---|", flush=True)

    def row(system, network, mode, tuned, speed):
        allocator = "tuned" if tuned else "as it comes"
        print(f"| {system} | {network} | {mode} | {allocator} | {speed:,.0f} |", flush=True)

    for network, encoder in (("residual", "resnet_impala"), ("small", "convnet_atari")):
        for name, mode, threads in (("serial", SERIAL, 2), ("asynchronous", ASYNCHRONOUS, 1)):
            for tuned in (False, True):
                speed = sample_factory(sample_factory_python, encoder, mode, threads, tuned, seconds)
                row("Sample Factory 2.1.1", network, name, tuned, speed)
    for network in ("residual", "small"):
        for tuned in (False, True):
            row("RLlib 2.60 IMPALA", network, "2 x 16", tuned, rllib(rllib_python, network, tuned, seconds))


if __name__ == "__main__":
    main(*sys.argv[1:3], *(float(seconds) for seconds in sys.argv[3:]))
