"""Which pictures are meant: files, folders, standard input; as a split that a loader reads.

Needs no MXNet: what is no picture is found before it is loaded.
"""

from __future__ import annotations

import os
import stat
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from gluonlab.data.fetching.data_folders import readable
from gluonlab.data.images.decoder_pool import SLOTS, Decoders
from gluonlab.data.images.image_locations import ENDINGS, is_image_name
from gluonlab.data.sets.dataset import Reading
from gluonlab.data.sets.image_files import AT_ONCE, MOST_DECODERS, FileSplit
from gluonlab.data.sets.image_folder import is_hidden
from gluonlab.engine.local_processes import cores_per_process
from gluonlab.errors import DataError

if TYPE_CHECKING:
    from gluonlab.data.sets.dataset import Images, Indices, Labels

STDIN, STDIN_NAME = "-", "standard input"
MOST_BYTES = 2**28  # of standard input: ten times a large photograph
FORMS = "give image files, folders with such files, or - for standard input"
# Pillow's weights of red, green and blue in grey (ITU-R 601-2), of 2**16
GREY = (19595, 38470, 7471)


class Picture(NamedTuple):
    """A picture as it was named, and where it is read."""

    name: str
    path: str


def find_pictures(asked: Sequence[str]) -> List[Picture]:
    """The pictures in these files and folders, folders in them included, sorted in each.

    In a folder only what ends as a picture does is looked at, nothing hidden and no links to
    folders. Raises DataError for what is missing, a folder without pictures, or what would be
    waited for.
    """
    found: List[Picture] = []
    for name in asked:
        if not name:
            raise DataError(f"an image's name is empty, as that of an unset variable: {FORMS}")
        if name == STDIN:
            if any(picture.name == STDIN for picture in found):
                raise DataError("- is given twice, and standard input has one image: give - once")
            found.append(Picture(STDIN, _standard_input()))
            continue
        with readable(Path(name), "file or folder"):
            if os.path.isdir(name):
                found += _in_folder(name)
                continue
            _check_file(name)
        found.append(Picture(name, name))
    return found


def _check_file(name: str) -> None:
    try:
        kind = Path(name).stat().st_mode
    except FileNotFoundError:
        raise DataError(f"{name} does not exist: {FORMS}") from None
    except ValueError:
        raise DataError(f"{name!r} is no name for a file: {FORMS}") from None
    if not stat.S_ISREG(kind):  # a pipe would be waited for
        raise DataError(f"{name} is not a regular file: {FORMS}")


def _in_folder(folder: str) -> List[Picture]:
    def fail(error: OSError) -> None:
        raise error

    paths = []
    for inside, folders, files in os.walk(folder, onerror=fail):
        folders[:] = sorted(each for each in folders if not is_hidden(each))
        pictures = sorted(each for each in files if is_image_name(each))
        paths += [os.path.join(inside, each) for each in pictures if not is_hidden(each)]
    if not paths:
        raise DataError(f"{folder} holds no pictures ({ENDINGS}): {FORMS}")
    for path in paths:
        _check_file(path)
    return [Picture(path, path) for path in paths]


def _standard_input() -> str:
    """A path for the bytes of standard input, for as long as this process lives."""
    if sys.stdin is None or sys.stdin.isatty():
        raise DataError("- is an image on standard input: write ... - < picture.png")
    content = sys.stdin.buffer.read(MOST_BYTES + 1)
    if not content:
        raise DataError(f"{STDIN_NAME} is empty: give the bytes of an image file")
    if len(content) > MOST_BYTES:
        raise DataError(f"{STDIN_NAME} has more than {MOST_BYTES:,} bytes: give one image")
    # has no name in any folder: nothing is left behind; those that decode open it by this one
    file = os.memfd_create("gluonlab-picture")
    with open(file, "wb", closefd=False) as whole:
        whole.write(content)
    return f"/proc/{os.getpid()}/fd/{file}"


@contextmanager
def by_their_names(pictures: Sequence[Picture]) -> Iterator[None]:
    """What is wrong with a picture is said of its name, not of where it is read."""
    try:
        yield
    except DataError as error:
        raise DataError(_named(str(error), pictures)) from None


def _named(message: str, pictures: Sequence[Picture]) -> str:
    for picture in pictures:
        if picture.name == STDIN:
            message = message.replace(picture.path, STDIN_NAME)
    return message


class GreySplit:
    """A split of files in one channel, as Pillow makes grey of red, green and blue."""

    def __init__(self, split: FileSplit) -> None:
        self.split = split

    def __len__(self) -> int:
        return len(self.split)

    @property
    def image_shape(self) -> Tuple[int, int, int]:
        """(1, height, width)"""
        return (1, *self.split.image_shape[1:])

    def batch(self, indices: "Indices") -> "Tuple[Images, Labels]":
        """The images (n, 1, H, W) uint8 and labels (n,) int32 at these n indices."""
        return self.begin(indices).result()

    def begin(self, indices: "Indices", seeds: Optional[Sequence[int]] = None) -> Reading:
        """Have these n images decoded."""
        return _Grey(self.split.begin(indices, seeds))


class _Grey(NamedTuple):
    colour: Reading

    def result(self) -> "Tuple[Images, Labels]":
        images, labels = self.colour.result()
        return as_grey(images), labels

    def cancel(self) -> None:
        self.colour.cancel()


def as_grey(images: "Images") -> "Images":
    """(n, 3, H, W) -> (n, 1, H, W), as Pillow's convert("L")."""
    red, green, blue = (images[:, channel].astype(np.uint32) for channel in range(3))
    grey = red * GREY[0] + green * GREY[1] + blue * GREY[2] + 0x8000
    return np.asarray((grey >> 16).astype(np.uint8)[:, None])


def split_of(
    pictures: Sequence[Picture],
    shape: Tuple[int, int, int],
    decoders: Optional[int] = None,
    skip_bad: bool = False,
    resizer: Optional[str] = None,
) -> "Tuple[FileSplit | GreySplit, List[Picture], List[str]]":
    """The pictures as images of this ``shape``, which of them are in it, and why others are not.

    With ``skip_bad`` all are tried first. Raises DataError where networks take what no picture
    has, and if none is left.
    """
    channels, height, width = shape
    if channels not in (1, 3) or height != width:
        raise DataError(
            f"the run's images are {'x'.join(map(str, shape))}, and pictures become squares in "
            "grey or three colours: give arrays of that shape, in Python, to load_run(RUN).predict"
        )
    count = min(decoders or min(cores_per_process(), MOST_DECODERS), -(-len(pictures) // SLOTS))
    processes, wrong = Decoders(width, count, resizer), {}
    if skip_bad:
        paths = [picture.path for picture in pictures]
        for number, (_, bad) in enumerate(processes.in_turns(paths, AT_ONCE)):
            wrong.update({number * AT_ONCE + place: reason for place, reason in bad.items()})
    good = [picture for place, picture in enumerate(pictures) if place not in wrong]
    reasons = [_named(reason, pictures) for _, reason in sorted(wrong.items())]
    if not good:
        raise DataError(f"no picture is left: {reasons[0]}")
    labels = np.zeros(len(good), np.int32)
    split = FileSplit([picture.path for picture in good], labels, processes)
    return (split if channels == 3 else GreySplit(split)), good, reasons
