"""The random numbers of a step, drawn for the whole batch from seed, epoch and step alone.

So any number of devices, workers and decoders sees the same.
"""

from __future__ import annotations

import numpy as np

# One for each thing that is drawn for a step.
CROPS_AND_FLIPS, MIXTURES, FILE_CROPS = 1, 2, 3


def chance(seed: int, epoch: int, step: int, stream: int) -> np.random.RandomState:
    """Random numbers of one of the streams above.

    NumPy freezes both SeedSequence with PCG64 and what RandomState makes of it; a RandomState of a
    list takes six times as long.
    """
    return np.random.RandomState(np.random.PCG64([seed, epoch, step, stream]))
