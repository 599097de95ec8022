"""Parses message sizes, such as ``46MB``, ``1KiB,1MiB`` or ``1KiB:64MiB:4``.

This module does not import MXNet.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import List

from gluonlab.config.option_checks import whole_number_check
from gluonlab.errors import ConfigError
from gluonlab.plain_text import UNITS

DEFAULT_DEVICES, DEFAULT_SIZES = "cpu*2", "1KiB:64MiB"  # of ``allreduce bench``
DRAWN_DEVICES = 4  # the default number of devices of ``allreduce draw``
COST_SIZES = "1KiB,1MiB,100MB"  # sizes whose predicted times ``allreduce draw`` and ``solve`` show
DEFAULT_FACTOR = 4
_SIZE_PATTERN = re.compile(r"\s*([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*([a-z]*)\s*")
_SIZE_HELP = (
    "use a size such as 46MB, a list such as 1KiB,1MiB, or a range such as 1KiB:64MiB:4 "
    "(units: B, KB, MB, GB, KiB, MiB, GiB)"
)


def parse_sizes(text: str, option: str = "--bytes") -> List[int]:
    """Return the sizes in bytes that ``text`` names, ascending and without duplicates.

    ====================  ==================================================================
    text                  sizes
    ====================  ==================================================================
    ``46MB``              46,000,000 bytes; ``46MiB``: 46 * 2**20; ``46`` and ``46B``: 46
    ``1KiB:64MiB``        from 1 KiB by factors of 4 to at most 64 MiB
    ``1KiB:64MiB:2``      the same by factors of 2
    ``1KiB:1MiB,46MB``    sizes and ranges together
    ====================  ==================================================================

    Upper and lower case are equivalent. Raises ConfigError for other text and for sizes below one
    byte. ``option``: the name of the option, for the error message.
    """
    option_text = f"{option} {text if text.strip() else repr(text)}"
    return sorted({size for part in text.split(",") for size in _parse_range(part, option_text)})


def _parse_range(text: str, option_text: str) -> List[int]:
    """Parse a size or a range, such as ``1KiB:64MiB:4``. Errors begin with ``option_text``."""
    first_text, *further_texts = text.split(":")
    if len(further_texts) > 2:
        raise ConfigError(f"{option_text}: {_SIZE_HELP}")
    size, factor = _parse_size(first_text, option_text), DEFAULT_FACTOR
    if not further_texts:
        return [size]
    end_text, *factor_text = further_texts
    end = _parse_size(end_text, option_text)
    if factor_text:
        factor = whole_number_check(2)(f"{option_text}, factor", factor_text[0])
    if end < size:
        raise ConfigError(
            f"{option_text}: the smaller size must come first: use {end_text.strip()}:{first_text.strip()}"
        )
    sizes = []
    while size <= end:
        sizes.append(size)
        size *= factor
    return sizes


def _parse_size(part: str, option_text: str) -> int:
    """Parse a size such as ``46MB``, and return it in bytes. Errors begin with ``option_text``."""
    match = _SIZE_PATTERN.fullmatch(part.lower())
    if not match or match[2] not in UNITS:
        raise ConfigError(f"{option_text}: {_SIZE_HELP}")
    size = int(Fraction(match[1]) * UNITS[match[2]])
    if size < 1:
        raise ConfigError(f"{option_text}: {part.strip()} is less than one byte: {_SIZE_HELP}")
    return size
