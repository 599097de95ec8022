"""A launcher's patience with ranks that do not come: the seconds are given, not waited for."""

import asyncio

import pytest

from gluonlab.launch.attempt import Attempt
from gluonlab.launch.connections import Connection, Way
from gluonlab.launch.hosts import Host
from gluonlab.launch.inbox import Inbox
from gluonlab.launch.parts import RANK, Part

LATE = "did not start within {0:g} s: where the machine is only busy, --patience {1:g} gives them"
CUT_OFF = "found no way to the others: is a port closed?"


def fails_after(seconds, patience, told):
    """The failures of an attempt that is so old. ``told``: by rank, what each has said."""

    async def look():
        connection, inbox = Connection(Host("h1", 1), Way(patience=patience)), Inbox()
        parts = [Part(f"rank {n}", 0, [], {RANK: str(n)}) for n in range(len(told))]
        attempt = Attempt(parts, [connection], inbox, print, patience, "/", {})
        for part, lines in zip(parts, told):
            for line in lines:
                attempt._take(connection, {"of": part.name, "stream": "came", "line": line})
        attempt._look(seconds)
        return [str(each) for each in attempt._failures]

    return asyncio.run(look())


@pytest.mark.parametrize(("patience", "start"), [(5, 30), (100, 100)])
def test_ranks_that_do_not_come_are_named_in_time_and_not_before(patience, start):
    """Time to load MXNet on a busy host is there, however short the patience."""
    nothing = [("arrived",), (), ()]
    assert fails_after(0.99 * start, patience, nothing) == []
    [said] = fails_after(1.01 * start, patience, nothing)
    assert said.startswith(f"rank 1, rank 2 {LATE.format(start, 4 * start)}")
    alone = [("arrived", "joined"), ("arrived",), ("arrived",)]
    assert fails_after(1.99 * start, patience, alone) == []
    assert fails_after(2.01 * start, patience, alone) == [f"rank 1, rank 2 {CUT_OFF}"]
    together = [("arrived", "joined")] * 3
    assert fails_after(1000 * start, patience, together) == []
