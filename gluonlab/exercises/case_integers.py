"""Draw the integers of NumPy's legacy random generator without NumPy.

The exercises about schedules also run in a browser, where NumPy is missing. Their cases must be the
same there.

Source: Matsumoto, Nishimura, "Mersenne Twister" (1998), with the seeding of mt19937ar.c (2002).
"""

from __future__ import annotations

import random
from typing import Any, List, Optional, Sequence, Union

_STATE_SIZE = 624
_MAX_UINT32 = 2**32 - 1


class CaseIntegers:
    """A generator whose `randint` returns the integers of ``numpy.random.RandomState(seed)``.

    ``seed``: an integer from 0 to 2**32 - 1, or a sequence of such integers.
    """

    def __init__(self, seed: Union[int, Sequence[int]]) -> None:
        key = _seed_by_integer(seed) if isinstance(seed, int) else _seed_by_sequence(seed)
        self._random = random.Random()
        self._random.setstate((3, (*key, _STATE_SIZE), None))

    def randint(self, low: int, high: Optional[int] = None, size: Optional[int] = None) -> Any:
        """Return an integer from ``low`` to ``high - 1``, or a list of ``size`` integers.

        Without ``high``, the integers are from 0 to ``low - 1``.
        """
        if high is None:
            low, high = 0, low
        if size is not None:
            return [self.randint(low, high) for _ in range(size)]
        largest = high - 1 - low
        if not 0 <= largest < _MAX_UINT32:
            raise ValueError(f"randint({low}, {high}): use a range of 1 to {_MAX_UINT32} integers")
        mask, drawn = (1 << largest.bit_length()) - 1, largest + 1
        while drawn > largest:
            drawn = self._random.getrandbits(32) & mask if largest else 0
        return low + drawn


def _seed_by_integer(seed: int) -> List[int]:
    key = [seed]
    for number in range(1, _STATE_SIZE):
        key.append((1812433253 * (key[-1] ^ (key[-1] >> 30)) + number) & _MAX_UINT32)
    return key


def _seed_by_sequence(seeds: Sequence[int]) -> List[int]:
    key, place = _seed_by_integer(19650218), 1
    for number in range(max(_STATE_SIZE, len(seeds))):
        mixed = (key[place - 1] ^ (key[place - 1] >> 30)) * 1664525
        key[place] = ((key[place] ^ mixed) + seeds[number % len(seeds)] + number % len(seeds)) & _MAX_UINT32
        place = _next_place(key, place)
    for _ in range(_STATE_SIZE - 1):
        mixed = (key[place - 1] ^ (key[place - 1] >> 30)) * 1566083941
        key[place] = ((key[place] ^ mixed) - place) & _MAX_UINT32
        place = _next_place(key, place)
    key[0] = 2**31
    return key


def _next_place(key: List[int], place: int) -> int:
    if place + 1 < _STATE_SIZE:
        return place + 1
    key[0] = key[-1]
    return 1
