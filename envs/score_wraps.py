"""Scores that pass what their counter can show start again at zero: a reward near minus a power of ten."""

import numpy as np
import numpy.typing as npt

# Counters that wrap unnoticed by the emulator have five digits or more; ALE corrects the shorter ones itself.
MODULI = np.array([10.0**digits for digits in range(5, 10)])


def unwrap_scores(rewards: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """Return the rewards without the fall of a wrapped score, and a mask of where there was one.

    A step earns far less than a tenth of what the counter shows, so a wrap by 10^k leaves a reward between
    -10^k and -0.9 * 10^k. No game takes that many points at once: the largest loss is Skiing's, some -10^4.
    """
    wrapped = np.zeros(rewards.shape, bool)
    if (rewards <= -0.9 * MODULI[0]).any():
        falls = (rewards[..., None] >= -MODULI) & (rewards[..., None] <= -0.9 * MODULI)
        wrapped |= falls.any(axis=-1)
        rewards = rewards + falls @ MODULI
    return rewards, wrapped
