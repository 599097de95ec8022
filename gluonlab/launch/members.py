"""Processes that a scheduler has started, such as srun: rank 0 launches, the others are agents.

They come to rank 0 by TCP. It tells them which part of the group they are, and nothing else: what
they start are their own options, with variables of the group alone.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import Any, Dict, List, Sequence, Tuple

from gluonlab.errors import ConfigError, RunError
from gluonlab.host.signals import RAISED
from gluonlab.launch.agent import Agent
from gluonlab.launch.connections import Connection, Way, first
from gluonlab.launch.environments import Membership
from gluonlab.launch.hosts import Host
from gluonlab.launch.messages import LONGEST, Message, received
from gluonlab.launch.parts import OF_GROUP, allowed

PAUSE = 0.2  # seconds between two tries to reach rank 0
SOON = 5.0  # seconds in which rank 0 says who it is

Queue = "asyncio.Queue[Tuple[Connection, Message]]"


class Gathering:
    """Rank 0: it listens, and takes the others as they come."""

    def __init__(self, place: Membership, way: Way) -> None:
        self._place, self._way = place, way
        self._come: Dict[int, Tuple[Connection, asyncio.StreamReader, Message]] = {}
        self._new = asyncio.Event()
        self._server: Any = None

    async def listen(self) -> None:
        """Let the others come. Raises ConfigError where the port is taken."""
        alone = self._place.root == "127.0.0.1"
        address, port = "127.0.0.1" if alone else "0.0.0.0", self._place.port
        try:
            self._server = await asyncio.start_server(self._greet, address, port, limit=LONGEST)
        except OSError as error:
            raise ConfigError(
                f"port {port} cannot be had ({os.strerror(error.errno or 0)}): "
                "set another for all processes, as in GLUONLAB_PORT=23456"
            ) from None

    async def ranks(self, numbers: Sequence[int], queue: Any) -> List[Connection]:
        """The connections to these ranks. Raises RunError if some do not come in time."""
        until = time.monotonic() + self._way.patience
        while set(numbers) - set(self._come):
            try:
                await asyncio.wait_for(self._new.wait(), until - time.monotonic())
            except asyncio.TimeoutError:
                missing = ", ".join(map(str, sorted(set(numbers) - set(self._come))))
                raise RunError(
                    f"of {self._place.size} processes that {self._place.launcher} has started, "
                    f"rank {missing} has not come to rank 0 in {self._way.patience:g} s: it was "
                    f"not started, or port {self._place.port} is closed to it"
                ) from None
            self._new.clear()
        found = []
        for number in numbers:
            connection, reader, hello = self._come.pop(number)
            connection.begin(reader, hello, queue)
            found.append(connection)
        return found

    async def end(self, at: Sequence[Connection], status: int) -> None:
        """Tell all what to end with."""
        self._server.close()
        for connection in at:
            connection.send(done=status)
        await asyncio.sleep(PAUSE)  # what is told arrives before the connection ends

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            hello = await asyncio.wait_for(first(received(reader)), SOON)
            rank, size = int(hello["rank"]), int(hello["size"])
            known = isinstance(hello["addresses"], dict) and {"pid", "here"} <= hello.keys()
        except (asyncio.TimeoutError, KeyError, ValueError, TypeError):
            writer.close()
            return
        if not known or not 0 < rank < self._place.size or size != self._place.size:
            writer.close()
            return
        hello["address"] = writer.get_extra_info("peername")[0]
        hello["seen_by"] = writer.get_extra_info("sockname")[0]
        connection = Connection(Host(str(hello.get("here")), 1), self._way, writer)
        self._come[rank] = connection, reader, hello
        self._new.set()


async def attend(place: Membership, backend: str, words: Sequence[str], patience: float) -> int:
    """Another rank: serve rank 0 until it says what to end with. Raises RunError."""
    root, until = place.root or "127.0.0.1", time.monotonic() + patience
    while True:
        try:
            streams = await asyncio.open_connection(root, place.port, limit=LONGEST)
            break
        except OSError as error:
            if time.monotonic() > until:
                raise RunError(
                    f"rank {place.rank} cannot reach rank 0 at {root}:{place.port} in "
                    f"{patience:g} s ({error.strerror or error}): it was not started, or the port "
                    "is closed; GLUONLAB_ROOT and GLUONLAB_PORT, set for all, choose others"
                ) from None
            await asyncio.sleep(PAUSE)

    def checked(message: Message) -> Message:
        """Raise ConfigError for what is no part of this group."""
        given = [str(word) for word in message["words"]]
        allowed(given, backend, words)
        group = {n: str(v) for n, v in message["environment"].items() if n.startswith(OF_GROUP)}
        return {**message, "words": given, "environment": group, "folder": os.getcwd()}  # noqa: PTH109

    agent = Agent(*streams, hello={"rank": place.rank, "size": place.size}, checked=checked)
    for number in RAISED:
        if signal.getsignal(number) != signal.SIG_IGN:
            handler = (lambda came: lambda: agent.tell(came=came))(number)
            asyncio.get_event_loop().add_signal_handler(number, handler)
    await agent.serve()
    if agent.status is None:
        raise RunError(f"rank {place.rank}: rank 0 at {root} has gone")
    return agent.status
