"""What --json prints: one JSON document that every reader of JSON takes."""

from __future__ import annotations

import json
import math
from typing import Any


def json_text(value: Any) -> str:
    """A document of plain values, on one line. NaN and infinity, which JSON has not, are null.

    >>> json_text({"loss": float("nan"), "rates": (1, 0.5)})
    '{"loss": null, "rates": [1, 0.5]}'
    """
    return json.dumps(_finite(value), allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, (list, tuple)) else value
