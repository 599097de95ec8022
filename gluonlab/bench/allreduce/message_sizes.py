"""Sizes as people write them: ``46MB``, ``1KiB,1MiB`` or ``1KiB:64MiB:4``.

Does not import MXNet.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import List

from gluonlab.config.option_types import whole_number_check
from gluonlab.errors import ConfigError
from gluonlab.plain_text import UNITS

DEVICES, SIZES = "cpu*2", "1KiB:64MiB"  # of bench allreduce, where none are given
DRAWN = 4  # and with --draw
FACTOR = 4
_SIZE = re.compile(r"\s*([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*([a-z]*)\s*")
_FORMS = (
    "give sizes such as 46MB, 1KiB,1MiB or 1KiB:64MiB:4 (B, KB, MB and GB, or KiB, "
    "MiB and GiB of 1024)"
)


def parse_sizes(text: str, option: str = "--sizes") -> List[int]:
    """The sizes in bytes that ``text`` names, in ascending order, each once.

    ====================  ===================================================================
    what is given         the sizes
    ====================  ===================================================================
    ``46MB``              46,000,000 bytes; ``46MiB`` are 46 * 2**20, ``46`` and ``46B`` are 46
    ``1KiB:64MiB``        from 1 KiB by factors of 4 to at most 64 MiB
    ``1KiB:64MiB:2``      the same by factors of 2
    ``1KiB:1MiB,46MB``    sizes and ranges together
    ====================  ===================================================================

    Upper and lower case are the same. Raises ConfigError for anything else, and for sizes below one
    byte.
    """
    given = f"{option} {text if text.strip() else repr(text)}"
    return sorted({size for part in text.split(",") for size in _range(part, given)})


def _range(part: str, given: str) -> List[int]:
    begin_text, *rest = part.split(":")
    if len(rest) > 2:
        raise ConfigError(f"{given}: {_FORMS}")
    begin = _size(begin_text, given)
    if not rest:
        return [begin]
    end = _size(rest[0], given)
    factor = whole_number_check(2)(f"{given}, factor", rest[1]) if len(rest) == 2 else FACTOR
    if end < begin:
        raise ConfigError(
            f"{given}: write the smaller size first, {rest[0].strip()}:{begin_text.strip()}"
        )
    sizes = []
    while begin <= end:
        sizes.append(begin)
        begin *= factor
    return sizes


def _size(part: str, given: str) -> int:
    match = _SIZE.fullmatch(part.lower())
    if not match or match[2] not in UNITS:
        raise ConfigError(f"{given}: {_FORMS}")
    size = int(Fraction(match[1]) * UNITS[match[2]])
    if size < 1:
        raise ConfigError(f"{given}: there is nothing to sum in {part.strip()}, {_FORMS}")
    return size
