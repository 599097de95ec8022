"""Which images of a class are held out for validation: their names alone say it.

So the choice is the same for every seed, every number of devices and processes, in a run that goes
on, in an evaluation, and in what is packed. Images that are added later move hardly any of the
others from one side to the other.
"""

from __future__ import annotations

import hashlib
import math
import os
import unicodedata
from typing import List, Sequence


def held_out(names: Sequence[str], share: float) -> List[bool]:
    """Whether each of a class's images is held out; of two or more, one at least is on each side.

    ``names``: CLASS/FILE. ``share``: between 0 and 1.

    >>> held_out(["ant/1.jpg", "ant/2.jpg", "ant/3.jpg", "ant/4.jpg"], 0.25)
    [False, False, False, True]
    >>> held_out(["ant/1.jpg"], 0.25)
    [False]
    """
    count = 0
    if len(names) > 1:
        count = min(len(names) - 1, max(1, math.floor(share * len(names) + 0.5)))
    chosen = set(sorted(range(len(names)), key=lambda place: _rank(names[place]))[:count])
    return [place in chosen for place in range(len(names))]


def _rank(name: str) -> bytes:
    # file systems differ in how they compose letters with accents
    return hashlib.sha256(os.fsencode(unicodedata.normalize("NFC", name))).digest()
