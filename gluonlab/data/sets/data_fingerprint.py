"""Computes fingerprints (digests) of a data set's classes and images.

A run records the fingerprints. To detect changed data, the fingerprints are compared before the run
is resumed or evaluated.
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
from gluonlab.data.sets.image_file_dataset import FileSplit

if TYPE_CHECKING:
    from gluonlab.data.sets.dataset import Images

MAX_BYTES = 2**30  # of a split's images in memory; of a larger split, only a sample is read
SAMPLED_IMAGES = 4096  # number of evenly spaced images in a sample
# If there are more classes, their names are not recorded, only their digest.
MAX_NAMES = 1000


def classes_fingerprint(classes: Sequence[str]) -> Dict[str, Any]:
    """Return the ``count`` and ``sha256`` of the classes, and up to MAX_NAMES ``names``."""
    digest = hashlib.sha256(json.dumps(list(classes)).encode()).hexdigest()
    names = {"names": list(classes)} if len(classes) <= MAX_NAMES else {}
    return {"count": len(classes), "sha256": digest, **names}


def describe_class_changes(recorded: Any, classes: Sequence[str]) -> str:
    """Return text about how ``classes`` differ from a recorded fingerprint; "" if they match.

    ``recorded``: the result of `classes_fingerprint`, as read from a file.
    """
    current = classes_fingerprint(classes)
    # nothing was recorded, or the same classes
    if not isinstance(recorded, dict) or recorded.get("sha256") == current["sha256"]:
        return ""
    if isinstance(recorded.get("count"), int) and recorded["count"] != current["count"]:
        return f"{current['count']} classes, not {recorded['count']}"
    names = recorded.get("names")
    for number, (previous, name) in enumerate(zip(names if isinstance(names, list) else [], classes)):
        if previous != name and isinstance(previous, str):
            return f"class {number} is {name!r}, and was {previous!r}"
    return "classes with other names"


def split_fingerprint(split: Split) -> str:
    """Return the fingerprint of a split, such as ``60000 images, sha256 ...``.

    The digest covers the labels and the pixels or, for image files, the names and sizes of the
    files. Raises OSError if a file is missing.
    """
    sha256 = hashlib.sha256()
    for content in _iterate_content(split):
        sha256.update(content)
    return f"{len(split)} images, sha256 {sha256.hexdigest()}"


def _iterate_content(split: Split) -> "Iterator[bytes | memoryview]":
    """Yield the bytes over which `split_fingerprint` computes the digest."""
    yield repr(split.image_shape).encode()
    if isinstance(split, FileSplit):
        yield from _iterate_files(split.paths)
        yield np.ascontiguousarray(split.targets).tobytes()
    elif isinstance(split, PixelSplit):
        yield np.ascontiguousarray(split.targets).tobytes()
        yield from _iterate_pixels(split)
    else:  # a class of the user, whose images may change between reads
        yield repr(type(split)).encode()
        labels = getattr(split, "labels", None)
        yield b"" if labels is None else np.ascontiguousarray(labels).tobytes()


def _iterate_files(locations: "Sequence[ImageLocation]") -> Iterator[bytes]:
    """Yield the name and size of each file, or the file name and byte ranges of each segment."""
    files = [location for location in locations if isinstance(location, str)]
    parent = os.path.commonpath(files) if files else ""
    for location in locations:
        if isinstance(location, str):
            name = os.fsencode(os.path.relpath(location, parent))
            yield name + b"\0%d\0" % Path(location).stat().st_size
        else:
            segment = FileSegment(*location)
            yield os.fsencode(Path(segment.path).name) + repr(segment.ranges).encode()


def _iterate_pixels(split: PixelSplit) -> "Iterator[bytes | memoryview]":
    """Yield the pixels of all images, or of a sample if the split is large or on disk."""
    use_all = isinstance(split, ArraySplit) and split.images.nbytes <= MAX_BYTES
    images: "Images" = split.images
    if not use_all and len(split) > SAMPLED_IMAGES:
        images = split.images[np.linspace(0, len(split) - 1, SAMPLED_IMAGES).astype(int)]
    yield memoryview(np.ascontiguousarray(images).data).cast("B")
