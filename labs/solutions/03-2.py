from itertools import accumulate

import numpy as np


def compare(first, second):
    """The accuracy of the second run minus that of the first, by three clocks.

    A run is what `run` returns: (updates so far, seconds of this epoch, accuracy) of each epoch.
    {"epochs": d, "updates": d, "seconds": d}: each at the last place that both runs reached.
    Between two measurements accuracy grows evenly; where a run has none so early, d is None.
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
