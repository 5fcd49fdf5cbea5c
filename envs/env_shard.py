"""A process's share of a run's environments, seeded as if one process had all of them."""

from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.vector import VectorEnv, VectorWrapper

from .checks import environment_seeds


class ShardedEnv(VectorWrapper):
    """Some of `total` environments, seeded as they would be beside all others: each plays the same games."""

    def __init__(self, env: VectorEnv[Any, Any, Any], indices: npt.NDArray[np.int64], total: int) -> None:
        """`indices` `[N]`: which of the `total` the N environments of `env` are."""
        super().__init__(env)
        self._indices, self._total = indices, total

    def reset(
        self, *, seed: Any = None, options: dict[str, Any] | None = None
    ) -> tuple[npt.NDArray[Any], dict[str, Any]]:
        """Begin new episodes; an integer `seed` is that of all `total`."""
        if isinstance(seed, int):
            seed = environment_seeds(seed, self._total)[self._indices].tolist()
        return self.env.reset(seed=seed, options=options)
