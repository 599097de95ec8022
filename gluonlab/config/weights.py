"""--device-weights: how many images of a batch each device gets, relatively."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any, List

from gluonlab.errors import ConfigError

NUMBER = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?", re.ASCII)


def device_weights(name: str, value: Any) -> str:
    """Numbers above 0 as text, ``2,1`` or ``1.5,1``; a list of them becomes such a text."""
    shown = ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
    parts = [part.strip() for part in shown.split(",")]
    if isinstance(value, bool) or not all(
        NUMBER.fullmatch(part) and Fraction(part) > 0 for part in parts
    ):
        raise ConfigError(
            f"{name} {shown.strip() or repr(shown)}: give a number above 0 for each device, such "
            "as 2,1 or 1.5,1"
        )
    return ",".join(parts)


def read_weights(text: str) -> List[Fraction]:
    """What `device_weights` gave, one by one."""
    return [Fraction(part) for part in text.split(",")]
