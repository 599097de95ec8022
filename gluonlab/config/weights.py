"""--device-weights and --class-weights: what devices get of a batch, and classes of the loss."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any, List, Union

from gluonlab.config.values import BALANCED, LARGEST_RATE, as_number
from gluonlab.errors import ConfigError

NUMBER = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?", re.ASCII)


def device_weights(name: str, value: Any) -> str:
    """Numbers above 0 as text, ``2,1`` or ``1.5,1``; a list of them becomes such a text."""
    value = _listed(value)
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


def _listed(value: Any) -> Any:
    """An array of NumPy or MXNet as a list, and anything else as it is."""
    if hasattr(value, "asnumpy"):
        value = value.asnumpy()
    return value.tolist() if hasattr(value, "tolist") else value


def read_weights(text: str) -> List[Fraction]:
    """What `device_weights` gave, one by one."""
    return [Fraction(part) for part in text.split(",")]


def class_weights(name: str, value: Any) -> str:
    """Check class weights, ``balanced`` or numbers from 0 up (text or list); return the text."""
    value = _listed(value)
    several = isinstance(value, (list, tuple)) and len(value) > 0
    parts = [str(each).strip() for each in (value if several else str(value).split(","))]
    if not several and parts == [BALANCED]:
        return BALANCED
    numbers = [as_number(part) for part in parts]
    if isinstance(value, bool) or not all(0 <= number < LARGEST_RATE for number in numbers):
        shown = ",".join(parts)
        raise ConfigError(
            f"{name} {shown.strip() or repr(shown)}: give {BALANCED}, or a number from 0 up for "
            "each class, such as 1,2.5"
        )
    if not any(numbers):
        raise ConfigError(
            f"{name} {','.join(parts)}: the network learns nothing if every class has weight 0: "
            "give at least one of them more than 0"
        )
    # one text for the same weights, since a run that goes on compares it
    return ",".join(str(int(each) if each.is_integer() else each) for each in numbers)


def read_class_weights(text: str) -> Union[str, List[float]]:
    """Parse the text from `class_weights`: ``balanced``, or the numbers."""
    return text if text == BALANCED else [as_number(part) for part in text.split(",")]
