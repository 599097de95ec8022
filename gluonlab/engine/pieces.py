"""How early sums of gradients can begin: MXNet queues backward in pieces of so many operators.

What a piece writes is ready when all of it has run, and, on a CPU device, when the next piece has,
too, which is queued already. In small pieces the gradients of the last layers leave while those of
the first are still computed; but each piece costs the host 5 to 10 us, and on a GPU MXNet waits for
the stream at its end, while nothing is queued.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Iterator, Optional, Union

from gluonlab.engine.setup import BACKWARD_PIECE, ENVIRONMENT, variable

OFF = "off"
WHOLE = 10**9  # operators: no graph has so many
# A ResNet-50 has 13 pieces of 15 operators instead of 22 of 8, and a bucket, a quarter of all
# gradients, waits for a thirteenth of backward at most.
ON_GPUS = 15

Overlap = Union[int, str]

_asked: "ContextVar[Optional[Overlap]]" = ContextVar("overlap", default=None)


@contextmanager
def overlapping(asked: Optional[Overlap]) -> Iterator[None]:
    """Graphs bound in this block, on this thread, run backward in pieces of so many operators.

    "off": in one, so no sum begins before its end. None: `usual_piece`.
    """
    token = _asked.set(asked)
    try:
        yield
    finally:
        _asked.reset(token)


def usual_piece(device_type: str) -> int:
    """The operators of a piece on such devices where nobody asks; the user's, by MXNet's variable.

    MXNet's variable: MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN_BWD.
    """
    exported, ours = os.environ.get(BACKWARD_PIECE), ENVIRONMENT[BACKWARD_PIECE]
    if exported in (None, ours):
        return ON_GPUS if device_type == "gpu" else int(ours)
    return int(exported) if exported.isdecimal() else int(ours)


@contextmanager
def backward_pieces(device_type: str) -> Iterator[None]:
    """A graph bound in this block has the pieces that are asked for."""
    asked = _asked.get()
    size = usual_piece(device_type) if asked is None else WHOLE if asked == OFF else int(asked)
    with variable(BACKWARD_PIECE, str(size)):
        yield
