"""A seed that differs from run to run; DELTABEAST_TEST_SEED=n repeats one that failed."""

import os
import time

SEED = int(os.environ.get("DELTABEAST_TEST_SEED", time.time_ns() % 2**31))
