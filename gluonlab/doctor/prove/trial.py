"""How a trial's process ends: with all told, or with the error that ended it."""

from __future__ import annotations

import gc
import os
import sys
from typing import TYPE_CHECKING, Callable, List, Sequence

from gluonlab.devices import devices
from gluonlab.gpu.process import message_of, tell

if TYPE_CHECKING:
    import mxnet as mx

LONGEST_REASON = 300  # letters; MXNet's traces name files of the machine, and go on for pages


def run(trial: "Callable[[List[mx.Context]], None]", argv: Sequence[str] = ()) -> None:
    """Run ``trial`` on the devices that the arguments name, and end the process."""
    gc.disable()
    try:
        trial(devices((argv or sys.argv[1:])[0]))
    except Exception as error:
        tell(error=reason_of(error))
    sys.stdout.flush()
    # all is told, and what libraries do while Python ends, some crash, is of no interest
    os._exit(0)


def reason_of(error: BaseException) -> str:
    """The first line of an error, without the folders of this machine."""
    words = message_of(error).strip().split("\n")[0].split()
    return " ".join(word.rpartition("/")[2] for word in words)[:LONGEST_REASON]
