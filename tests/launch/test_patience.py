"""A launcher's patience with ranks that do not come, and with servers that end too early.

The seconds are given, not waited for.
"""

import asyncio

import pytest

from gluonlab.launch.attempt import WINDOW, Attempt
from gluonlab.launch.connections import Connection, Way
from gluonlab.launch.hosts import Host
from gluonlab.launch.parts import RANK, Part

LATE = "did not start within {0:g} s: where the machine is only busy, --patience {1:g} gives them"
CUT_OFF = "found no way to the others: is a port closed?"


def fails_after(seconds, patience, told):
    """The failures of an attempt that is so old. ``told``: by rank, what each has said."""

    async def look():
        connection, inbox = Connection(Host("h1", 1), Way(patience=patience)), asyncio.Queue()
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


@pytest.mark.parametrize("patience", [4, 30, 3600])
def test_an_agent_is_lost_when_it_was_silent_for_half_of_the_patience_and_not_before(
    patience, monkeypatch
):
    """And so is a process that somebody has stopped for as long."""
    now = 7.0
    for each in ("attempt", "connections"):
        monkeypatch.setattr(f"gluonlab.launch.{each}.awake", lambda: now)

    async def look():
        nonlocal now
        connection = Connection(Host("h1", 1), Way(patience=patience))
        part = Part("rank 0", 0, [], {RANK: "0"})
        attempt, said = Attempt([part], [connection], asyncio.Queue(), print, patience, "/", {}), []
        for share in (0.4, 0.49, 0.51):
            now = 7.0 + share * patience
            attempt._take(connection, {"stopped": "rank 0", "seconds": share * patience})
            attempt._look(0)
            said.append((connection.gone, [str(each) for each in attempt._failures]))
        return said

    silent = f"has given no sign of life for {0.51 * patience:.0f} s"
    stopped = f"rank 0 on h1 has been stopped for {0.51 * patience:.0f} s"
    assert asyncio.run(look()) == [(None, []), (None, []), (silent, [stopped])]


@pytest.mark.parametrize("ended_at", [0.25, 5.0, 1e6])
@pytest.mark.parametrize("left", [0, 1, 2])
def test_a_server_may_end_before_ranks_that_leave_within_the_window_and_no_earlier(
    left, ended_at, monkeypatch
):
    """``left``: so many of two ranks have left the group, and need no server."""
    now = ended_at
    monkeypatch.setattr("gluonlab.launch.attempt.awake", lambda: now)

    async def look():
        nonlocal now
        connection = Connection(Host("h1", 1), Way(patience=60))
        parts = [Part(f"rank {n}", 0, [], {RANK: str(n)}) for n in range(2)]
        parts.append(Part("server 0", 0, [], {}))
        attempt = Attempt(parts, [connection], asyncio.Queue(), print, 60, "/", {})
        for part in parts[:2]:
            for line in ("arrived", "joined"):
                attempt._take(connection, {"of": part.name, "stream": "came", "line": line})
        for part in parts[:left]:
            attempt._take(connection, {"of": part.name, "stream": "came", "line": "left"})
        attempt._take(connection, {"ended": "server 0", "status": 0})
        said = []
        for later in (0, 0.99 * WINDOW, 1.01 * WINDOW):
            now = ended_at + later
            attempt._look(0)
            said.append([str(each) for each in attempt._failures])
        return said

    early = ["server 0 on h1 ended with status 0, before the training did"]
    assert asyncio.run(look()) == [[], [], early if left < 2 else []]
