"""A seed that differs from run to run; TEST_SEED=n repeats one that failed."""

import os
import time

SEED = int(os.environ.get("TEST_SEED", time.time_ns() % 2**31))
