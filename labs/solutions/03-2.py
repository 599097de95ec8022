from itertools import accumulate

import numpy as np


def compare(first, second):
    """Return the difference of the accuracies, second run minus first run, in three comparisons.

    A run is what `run` returns: (updates so far, seconds of this epoch, accuracy) for each epoch.
    Return {"epochs": d, "updates": d, "seconds": d}, where each d compares the runs at the last
    point that both reached. Between two measurements, assume that the accuracy grows linearly. If
    one run ends before the first measurement of the other run, d is None.
    """
    clocks = {
        "epochs": lambda run: range(1, len(run) + 1),
        "updates": lambda run: [updates for updates, _, _ in run],
        "seconds": lambda run: list(accumulate(seconds for _, seconds, _ in run)),
    }
    found = {}
    for name, places_of in clocks.items():
        places = [places_of(run) for run in (first, second)]
        end = min(each[-1] for each in places)  # both have been there
        if end < max(each[0] for each in places):
            found[name] = None
            continue
        one, other = (
            np.interp(end, each, [accuracy for *_, accuracy in run]) for each, run in zip(places, (first, second))
        )
        found[name] = other - one
    return found
