"""Worker process of a decoder pool, which decodes image files to shared memory.

Command: ``python -m gluonlab.data.images.decoder_process FD SLOTS SIZE TURBOJPEG RESIZER``.

FD         file descriptor of shared memory with SLOTS images of SIZE x SIZE pixels
TURBOJPEG  1 to use `gluonlab.data.images.turbojpeg`, otherwise 0
RESIZER    one of RESIZERS in `gluonlab.data.images.resize_image`

Each line on standard input is a request, ``{"paths": [...], "seeds": [...], "first": 0}``. The
process decodes these files into the slots from ``first`` on. Then it prints the errors, ``{"wrong":
[[position, message], ...]}``. ``seeds`` contains one seed per file for random crops, or is null.
The process ends when standard input ends, so it does not outlive its parent.
"""

from __future__ import annotations

import itertools
import json
import mmap
import os
import sys
import warnings

import numpy as np

from gluonlab.data.images.decode_image import CHANNELS, decode_image
from gluonlab.errors import DataError


def main(fd: int, slots: int, size: int, use_turbojpeg: int, resizer: str) -> None:
    """Decode the files of each request until standard input ends.

    The module's docstring explains the arguments.
    """
    warnings.simplefilter("ignore")
    shape = (slots, CHANNELS, size, size)
    memory = np.frombuffer(mmap.mmap(fd, 0), np.uint8).reshape(shape)
    for line in sys.stdin:
        errors = []
        request = json.loads(line)
        seeds = request["seeds"] or itertools.repeat(None)
        for position, (path, seed) in enumerate(zip(request["paths"], seeds)):
            try:
                pixels = decode_image(path, size, seed, bool(use_turbojpeg), resizer)
                memory[request["first"] + position] = pixels
            except DataError as error:
                errors.append([position, str(error)])
        print(json.dumps({"wrong": errors}), flush=True)


if __name__ == "__main__":
    try:
        *numbers, resizer = sys.argv[1:]
        fd, slots, size, quick = map(int, numbers)
        main(fd, slots, size, quick, resizer)
    except BrokenPipeError:  # the parent has ended
        # otherwise Python prints an error at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
