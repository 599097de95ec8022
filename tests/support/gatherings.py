"""Rank 0's gathering, and whoever comes to it, in one process."""

import asyncio
import json

import pytest

from gluonlab.launch import scheduler_tasks
from gluonlab.launch.agent_connections import SshOptions
from gluonlab.launch.rank_environment import Membership
from gluonlab.launch.scheduler_tasks import Rendezvous
from support.parameter_server import free_port

HANG_LIMIT_S = 240  # seconds: only what hangs takes so long
OPEN = []  # asyncio closes what nobody has


def hello_message(rank, size=3, **more):
    """What another process says first."""
    return {"here": f"h{rank}", "pid": 7, "addresses": {}, "rank": rank, "size": size, **more}


async def connect_to_rank_0(place, *lines):
    """Reach rank 0, and say these: bytes, or messages."""
    reader, writer = await asyncio.open_connection("127.0.0.1", place.port)
    for each in lines:
        writer.write(each if isinstance(each, bytes) else json.dumps(each).encode() + b"\n")
    await writer.drain()
    OPEN.append((reader, writer))
    return reader, writer


def run_rendezvous(work, size=3, patience=HANG_LIMIT_S):
    """What ``work(gathering, place, signals)`` gives."""

    async def working():
        place = Membership("srun", 0, size, 0, size, "127.0.0.1", free_port())
        signals = []
        gathering = Rendezvous(
            place, SshOptions(patience=patience), asyncio.Queue(), signals.append
        )
        await gathering.listen()
        try:
            return await asyncio.wait_for(work(gathering, place, signals), HANG_LIMIT_S)
        finally:
            await gathering.end([], 1)
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            OPEN.clear()
            await asyncio.gather(*others, return_exceptions=True)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            scheduler_tasks, "RETRY_PAUSE_S", 0.01
        )  # within a process all arrives at once
        return asyncio.run(working())
