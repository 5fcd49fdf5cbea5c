"""The seed of a test run: the same each time, unless DELTABEAST_TEST_SEED gives another or says `new`."""

import os
import random


def _seed(given: str | None) -> int:
    if given == "new":
        return random.SystemRandom().randrange(2**31)
    return int(given) if given else 1


SEED = _seed(os.environ.get("DELTABEAST_TEST_SEED"))
os.environ["DELTABEAST_TEST_SEED"] = str(SEED)  # whatever process imports this next
