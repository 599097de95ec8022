"""The classes that a network's scores mean: noted with a run, compared before its evaluation."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Dict, Sequence

# that are written out; of more, their digest alone tells whether they are the same
MOST_NAMES = 1000


def noted(classes: Sequence[str]) -> Dict[str, Any]:
    """These classes in this order: ``count``, ``sha256``, and ``names`` of up to MOST_NAMES."""
    digest = hashlib.sha256(json.dumps(list(classes)).encode()).hexdigest()
    names = {"names": list(classes)} if len(classes) <= MOST_NAMES else {}
    return {"count": len(classes), "sha256": digest, **names}


def what_differs(before: Any, classes: Sequence[str]) -> str:
    """How ``classes`` differ from those `noted` ``before``, in words; empty if they do not."""
    now = noted(classes)
    # nothing was noted, or the same
    if not isinstance(before, dict) or before.get("sha256") == now["sha256"]:
        return ""
    if isinstance(before.get("count"), int) and before["count"] != now["count"]:
        return f"{now['count']} classes, not {before['count']}"
    names = before.get("names")
    for number, (was, name) in enumerate(zip(names if isinstance(names, list) else [], classes)):
        if was != name and isinstance(was, str):
            return f"class {number} is {name!r}, and was {was!r}"
    return "classes of other names"
