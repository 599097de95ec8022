"""The rendezvous of rank 0, and clients that connect to it, in one process."""

import asyncio
import json

import pytest

from gluonlab.launch import scheduler_tasks
from gluonlab.launch.agent_connections import SshOptions
from gluonlab.launch.process_membership import Membership
from gluonlab.launch.scheduler_tasks import Rendezvous
from support.parameter_server import free_port

HANG_LIMIT_S = 240  # only a hang takes so long
OPEN = []  # asyncio closes connections without a reference


def hello_message(rank, size=3, **more):
    """Return the first message of a rank."""
    return {"hostname": f"h{rank}", "pid": 7, "addresses": {}, "rank": rank, "size": size, **more}


async def connect_to_rank_0(membership, *lines):
    """Connect to rank 0, and send lines: bytes, or messages."""
    reader, writer = await asyncio.open_connection("127.0.0.1", membership.port)
    for line in lines:
        writer.write(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n")
    await writer.drain()
    OPEN.append((reader, writer))
    return reader, writer


def run_rendezvous(work, size=3, patience=HANG_LIMIT_S):
    """Return the result of ``work(rendezvous, membership, signals)`` with a listening rank 0."""

    async def run_work():
        membership = Membership("srun", 0, size, 0, size, "127.0.0.1", free_port())
        signals = []
        rendezvous = Rendezvous(membership, SshOptions(patience=patience), asyncio.Queue(), signals.append)
        await rendezvous.listen()
        try:
            return await asyncio.wait_for(work(rendezvous, membership, signals), HANG_LIMIT_S)
        finally:
            await rendezvous.end([], 1)
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            OPEN.clear()
            await asyncio.gather(*others, return_exceptions=True)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(scheduler_tasks, "RETRY_PAUSE_S", 0.01)  # within a process all arrives at once
        return asyncio.run(run_work())
