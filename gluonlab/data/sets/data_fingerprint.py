"""What a run notes of its data, to compare it before it goes on or is evaluated.

The classes that a network's scores mean, and which images a split has.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, Iterator, Sequence

import numpy as np

from gluonlab.data.images.image_locations import FileSegment, ImageLocation
from gluonlab.data.sets.dataset import ArraySplit, PixelSplit, Split
from gluonlab.data.sets.image_files import FileSplit

if TYPE_CHECKING:
    from gluonlab.data.sets.dataset import Images

MAX_BYTES = 2**30  # bytes that are looked at; of more, evenly spaced images stand for all
SAMPLED_IMAGES = 4096
# that are written out; of more, their digest alone tells whether they are the same
MAX_NAMES = 1000


def classes_fingerprint(classes: Sequence[str]) -> Dict[str, Any]:
    """These classes in this order: ``count``, ``sha256``, and ``names`` of up to MOST_NAMES."""
    digest = hashlib.sha256(json.dumps(list(classes)).encode()).hexdigest()
    names = {"names": list(classes)} if len(classes) <= MAX_NAMES else {}
    return {"count": len(classes), "sha256": digest, **names}


def describe_class_changes(before: Any, classes: Sequence[str]) -> str:
    """How ``classes`` differ from those `classes_fingerprint` ``before``, in words; empty if they do not."""
    now = classes_fingerprint(classes)
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


def split_fingerprint(split: Split) -> str:
    """``60000 images, sha256 ...``: of pixels and labels, or of files' names, sizes and labels.

    Raises OSError for a file that has vanished.
    """
    found = hashlib.sha256()
    for part in _iterate_content(split):
        found.update(part)
    return f"{len(split)} images, sha256 {found.hexdigest()}"


def _iterate_content(split: Split) -> "Iterator[bytes | memoryview]":
    yield repr(split.image_shape).encode()
    if isinstance(split, FileSplit):
        yield from _iterate_files(split.paths)
        yield np.ascontiguousarray(split.targets).tobytes()
    elif isinstance(split, PixelSplit):
        yield np.ascontiguousarray(split.targets).tobytes()
        yield from _iterate_pixels(split)
    else:  # one of a user's own, whose images may be others each time
        yield repr(type(split)).encode()
        labels = getattr(split, "labels", None)
        yield b"" if labels is None else np.ascontiguousarray(labels).tobytes()


def _iterate_files(places: "Sequence[ImageLocation]") -> Iterator[bytes]:
    files = [place for place in places if isinstance(place, str)]
    above = os.path.commonpath(files) if files else ""
    for place in places:
        if isinstance(place, str):
            name = os.fsencode(os.path.relpath(place, above))
            yield name + b"\0%d\0" % Path(place).stat().st_size
        else:
            part = FileSegment(*place)
            yield os.fsencode(Path(part.path).name) + repr(part.ranges).encode()


def _iterate_pixels(split: PixelSplit) -> "Iterator[bytes | memoryview]":
    whole = isinstance(split, ArraySplit) and split.images.nbytes <= MAX_BYTES
    chosen: "Images" = split.images
    if not whole and len(split) > SAMPLED_IMAGES:
        chosen = split.images[np.linspace(0, len(split) - 1, SAMPLED_IMAGES).astype(int)]
    yield memoryview(np.ascontiguousarray(chosen).data).cast("B")
