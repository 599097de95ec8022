"""What a process of a group tells its launcher of itself: how far it has come."""

from __future__ import annotations

import os
from contextlib import suppress

TELL = "GLUONLAB_TELL"  # the descriptor over which it does, which its agent gives it
# of a worker: it runs; the group stands; it trains, and a signal ends all after the same step; it
# needs no server any more
ARRIVED, JOINED, BEGUN, LEFT = "arrived", "joined", "begun", "left"
TAKEN = "taken"  # of the scheduler, which then ends: somebody else has its port


def tell(what: str) -> None:
    """Tell the launcher; a process that has none tells nobody."""
    if TELL in os.environ:
        with suppress(OSError, ValueError):
            os.write(int(os.environ[TELL]), f"{what}\n".encode())
