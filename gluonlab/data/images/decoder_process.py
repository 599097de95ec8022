"""The child's end of `gluonlab.data.images.decoder_pool`.

Started as ``python -m gluonlab.data.images.decoder_process FD SLOTS SIZE QUICK RESIZER``.

FD is a file in memory with SLOTS images of SIZE. For every line ``{"paths": [...], "seeds": [...],
"first": 0}`` on standard input it decodes these files into the slots from ``first`` on, and answers
with one line ``{"wrong": [[position, message], ...]}``; ``seeds`` are those of random crops, or
null. QUICK: 1 where `gluonlab.data.images.turbojpeg` may be used. RESIZER: one of
`gluonlab.data.images.resize_image`. It ends with standard input, so it does not outlive its parent.
"""

from __future__ import annotations

import itertools
import json
import mmap
import os
import sys
import warnings

import numpy as np

from gluonlab.data.images.decode_image import CHANNELS, decode
from gluonlab.errors import DataError


def main(fd: int, slots: int, size: int, quick: int, resizer: str) -> None:
    """Decode what is asked for until standard input ends."""
    warnings.simplefilter("ignore")
    shape = (slots, CHANNELS, size, size)
    memory = np.frombuffer(mmap.mmap(fd, 0), np.uint8).reshape(shape)
    for line in sys.stdin:
        wrong = []
        request = json.loads(line)
        seeds = request["seeds"] or itertools.repeat(None)
        for position, (path, seed) in enumerate(zip(request["paths"], seeds)):
            try:
                pixels = decode(path, size, seed, bool(quick), resizer)
                memory[request["first"] + position] = pixels
            except DataError as error:
                wrong.append([position, str(error)])
        print(json.dumps({"wrong": wrong}), flush=True)


if __name__ == "__main__":
    try:
        *numbers, resizer = sys.argv[1:]
        fd, slots, size, quick = map(int, numbers)
        main(fd, slots, size, quick, resizer)
    except BrokenPipeError:  # the parent is gone, with nobody to read the answer
        # else Python complains when it ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
