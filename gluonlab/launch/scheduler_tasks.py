"""Processes that a scheduler has started, such as srun: rank 0 launches, the others are agents.

They come to rank 0 by TCP. It tells them which part of the group they are, and nothing else: what
they start is a server, or a worker with their own options
(`gluonlab.launch.group_processes.allowed`).
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from typing import Any, Callable, Dict, List, Mapping, Sequence, Tuple, Union

from gluonlab.errors import ConfigError, RunError
from gluonlab.host.signals import EndRequest
from gluonlab.launch.agent_connections import Connection, SshOptions, first
from gluonlab.launch.agent_messages import (
    BEAT,
    LONGEST,
    OF_AGENT,
    BadMessage,
    Message,
    Received,
    awake,
    next_message,
    received,
    within,
)
from gluonlab.launch.group_processes import RANK, allowed
from gluonlab.launch.host_agent import Agent
from gluonlab.launch.hosts import Host
from gluonlab.launch.launch_attempt import OF_SIGNALS
from gluonlab.launch.rank_environment import Membership
from gluonlab.launch.user_program import is_program

PAUSE = 0.2  # seconds between two tries to reach rank 0
ONE_TRY = 1.0  # seconds that one may take: no longer than `awake` counts between two looks
SOON = 5.0  # seconds in which another process says who it is


class Rendezvous:
    """Rank 0: it listens, and takes the others as they come.

    ``signalled``: is called with the number of a signal that has come to one of them.
    """

    def __init__(
        self,
        place: Membership,
        way: SshOptions,
        inbox: asyncio.Queue[Received],
        signalled: Callable[[int], None],
    ) -> None:
        self._place, self._way, self._inbox, self._signalled = place, way, inbox, signalled
        self._come: Dict[int, Connection] = {}  # who is not taken yet
        self._strangers = 0
        self._server: Any = None

    async def listen(self) -> None:
        """Let the others come. Raises ConfigError where the port is taken."""
        alone = self._place.root == "127.0.0.1"
        address, port = "127.0.0.1" if alone else "0.0.0.0", self._place.port
        try:
            self._server = await asyncio.start_server(self._greet, address, port, limit=LONGEST)
        except OSError as error:
            raise ConfigError(
                f"port {port} cannot be had ({_in_words(error)}): "
                "set another for all processes, as in GLUONLAB_PORT=23456"
            ) from None

    async def ranks(self, numbers: Sequence[int]) -> List[Union[Connection, RunError]]:
        """The connections to these ranks, or why one has not come in time."""
        until = awake() + self._way.patience
        while self._missing(numbers) and (left := until - awake()) > 0:
            _, message = await next_message(self._inbox, min(left, BEAT)) or (None, {})
            if "came" in message:
                self._signalled(message["came"])
        missing, strangers = self._missing(numbers), ""
        if self._strangers:
            strangers = f"; {self._strangers} that came to it were none of them"
        error = RunError(
            f"of {self._place.size} processes that {self._place.launcher} has started, rank "
            f"{', '.join(map(str, missing))} has not come to rank 0 in {self._way.patience:g} s: "
            f"it was not started, or port {self._place.port} is closed to it{strangers}"
        )
        return [error if each in missing else self._come.pop(each) for each in numbers]

    def _missing(self, numbers: Sequence[int]) -> List[int]:
        here = {rank for rank, each in self._come.items() if each.gone is None}
        return sorted(set(numbers) - here)

    async def end(self, at: Sequence[Connection], status: int) -> None:
        """Tell all what to end with."""
        if self._server is not None:
            self._server.close()
        for connection in [*at, *self._come.values()]:
            connection.send(done=status)
        await asyncio.sleep(PAUSE)  # what is told arrives before the connection ends
        for connection in self._come.values():
            connection.close()

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take who says a rank that nobody has; the first to say it stays."""
        hello: Message = {}
        with suppress(asyncio.TimeoutError, BadMessage):
            hello = await within(SOON, first(received(reader, OF_AGENT)))
        rank, size = hello.get("rank", 0), hello.get("size")
        if not 0 < rank < self._place.size or size != self._place.size or not self._missing([rank]):
            self._strangers += 1
            writer.close()
            return
        hello["address"] = writer.get_extra_info("peername")[0]
        hello["seen_by"] = writer.get_extra_info("sockname")[0]
        connection = Connection(Host(hello["here"], 1), self._way, writer, rank)
        connection.begin(reader, hello, self._inbox)
        self._come[rank] = connection
        self._inbox.put_nowait((connection, {"here": hello["here"]}))  # wakes who waits for it


async def _rank_0(
    place: Membership, root: str, patience: float
) -> "Tuple[asyncio.StreamReader, asyncio.StreamWriter]":
    """A connection to rank 0, which may start later. Raises RunError after so many seconds."""
    until, why = awake() + patience, "no answer"
    while (left := until - awake()) > 0:
        opening = asyncio.open_connection(root, place.port, limit=LONGEST)
        try:
            return await within(min(left, ONE_TRY), opening)
        except asyncio.TimeoutError:
            why = "no answer"
        except OSError as error:
            why = _in_words(error)
        await asyncio.sleep(PAUSE)
    raise RunError(
        f"rank {place.rank} cannot reach rank 0 at {root}:{place.port} in {patience:g} s ({why}): "
        "it was not started, or the port is closed; GLUONLAB_ROOT and GLUONLAB_PORT, set for all, "
        "choose others"
    )


def _in_words(error: OSError) -> str:
    """As the system says it, where asyncio has its own words; unknown names have no such number."""
    number = error.errno or 0
    return os.strerror(number) if number > 0 else error.strerror or str(error)


def attend(
    place: Membership,
    backend: str,
    words: Sequence[str],
    patience: float,
    settings: Mapping[str, str],
) -> int:
    """Another rank: serve rank 0 until it says what to end with. Raises RunError.

    ``settings``: variables that a worker gets, as this process's own options say. A signal that
    comes before rank 0 is found raises what it raises elsewhere; then rank 0 is told of it.
    """
    with EndRequest() as request:
        return asyncio.run(_attend(place, backend, words, patience, settings, request))


async def _attend(
    place: Membership,
    backend: str,
    words: Sequence[str],
    patience: float,
    settings: Mapping[str, str],
    request: EndRequest,
) -> int:
    root = place.root or "127.0.0.1"
    finding = asyncio.ensure_future(_rank_0(place, root, patience))

    def come(number: int) -> None:
        request.take(number)
        finding.cancel()

    request.pass_to(come, asyncio.get_event_loop())
    with suppress(asyncio.CancelledError):
        streams = await finding
    if request.number is not None:
        return OF_SIGNALS + request.number

    def checked(message: Message) -> Message:
        """Raise ConfigError for what is no part of this group."""
        group = allowed(message["words"], message["environment"], backend, words)
        if RANK in group:
            group.update(settings)
        own = {"folder": os.getcwd(), "program": RANK in group and is_program(words)}  # noqa: PTH109
        return {**message, "environment": group, **own}

    agent = Agent(*streams, hello={"rank": place.rank, "size": place.size}, checked=checked)
    request.pass_to(lambda number: agent.tell(came=number), asyncio.get_event_loop())
    await agent.serve()
    if agent.fault is not None:
        raise RunError(f"rank {place.rank}: rank 0 at {root} {agent.fault}")
    if agent.status is None:
        raise RunError(f"rank {place.rank}: rank 0 at {root} has gone")
    return agent.status
