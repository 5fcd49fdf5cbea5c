"""On which cores emulators' threads run."""

import os
from collections.abc import Iterator
from contextlib import closing

import pytest

from deltabeast.envs import make_vector_env
from deltabeast.envs.spread import FEW_GAMES


@pytest.fixture
def cores() -> Iterator[set[int]]:
    """All of the machine's, where tests that run side by side have one each."""
    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("threads cannot be pinned here")
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
    all_cores = os.sched_getaffinity(0)
    if len(all_cores) < 2:
        pytest.skip("needs two cores")
    yield all_cores
    os.sched_setaffinity(0, before)


def _affinities() -> dict[str, set[int]]:
    return {thread: os.sched_getaffinity(int(thread)) for thread in os.listdir("/proc/self/task")}


@pytest.mark.parametrize(
    ("games", "threads", "spread"), [(1, 0, True), (1, -1, False), (FEW_GAMES, 0, False)]
)
def test_threads_that_take_all_cores_for_few_games_are_spread(
    cores: set[int], games: int, threads: int, spread: bool
) -> None:
    """`games` are of each thread; `threads` is how many more there are than cores."""
    count = len(cores) + threads
    before = _affinities()
    with closing(make_vector_env("pong", num_envs=games * count, num_threads=count)):
        after = _affinities()
    assert {thread: after[thread] for thread in before} == before, "threads that were there"
    new = [after[thread] for thread in after.keys() - before.keys()]
    assert len(new) == count
    expected = [{core} for core in sorted(cores)] if spread else [cores] * count
    assert sorted(new, key=sorted) == expected
