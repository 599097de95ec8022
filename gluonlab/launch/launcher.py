"""The launcher: agents on all hosts, attempts until one ends well, and what is said at the end."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import List, Mapping, Optional, Protocol, Sequence, Tuple

from gluonlab.errors import ConfigError, RunError
from gluonlab.host.signals import RAISED
from gluonlab.launch.attempt import OF_SIGNALS, Attempt, Failure
from gluonlab.launch.connections import Connection, Way, passed
from gluonlab.launch.environments import Membership
from gluonlab.launch.hosts import HERE, Host, place, room, server_hosts
from gluonlab.launch.members import Gathering
from gluonlab.launch.messages import Message
from gluonlab.launch.parts import AGAIN, COMMAND, Site, parts

LOOPBACK = "127.0.0.1"
DEFAULT = Way()


@dataclass(frozen=True)
class Request:
    """What is to be launched, checked.

    ``words``: the options of the run; ``servers``: as many, or one a host; ``port``: of the
    scheduler, or any that is free; ``names``: of variables for other hosts; ``command``: what the
    user has written, up to the words; ``place``: that of rank 0, if a scheduler has started all;
    ``settings``: variables that workers get, whatever the user has set.
    """

    backend: str
    words: Sequence[str]
    hosts: Sequence[Host]
    workers: int
    servers: Optional[int] = None
    port: Optional[int] = None
    restarts: int = 0
    min_workers: Optional[int] = None
    way: Way = DEFAULT
    names: Sequence[str] = ()
    command: str = ""
    place: Optional[Membership] = None
    settings: Mapping[str, str] = field(default_factory=dict)


class Listener(Protocol):
    """Who is told what the processes say, and what becomes of them."""

    def line(self, who: str, stream: str, text: str) -> None:
        """A line that ``who`` has written to ``out`` or ``err``."""

    def note(self, text: str) -> None:
        """A line of the launcher itself."""


def launch(request: Request, listener: Listener) -> int:
    """Start the processes, and see them end: the exit status. Raises RunError."""
    return asyncio.run(_Launcher(request, listener).run())


class _Launcher:
    def __init__(self, request: Request, listener: Listener) -> None:
        self._request, self._listener = request, listener
        self._attempt: Optional[Attempt] = None
        self._signal = 0
        self._gathering: Optional[Gathering] = None
        self._queue: "asyncio.Queue[Tuple[Connection, Message]]"
        self._words = list(request.words)

    async def run(self) -> int:
        self._queue = asyncio.Queue()
        loop = asyncio.get_event_loop()
        for number in RAISED:
            if signal.getsignal(number) != signal.SIG_IGN:
                loop.add_signal_handler(number, self._forward, number)
        signal.signal(signal.SIGTSTP, signal.SIG_IGN)  # one that is stopped watches nothing
        at: List[Connection] = []
        status = 1
        try:
            at = await self._first()
            status = await self._attempts(at)
            return status
        finally:
            if self._gathering is not None:
                await self._gathering.end(at, status)
            for connection in at:
                connection.close()
            await asyncio.gather(*(connection.closed() for connection in at))

    async def _first(self) -> List[Connection]:
        """The agents of all hosts, or those that a scheduler has started, by rank."""
        if self._request.place is None:
            return await self._connected(self._request.hosts)
        [here] = await self._connected([HERE._replace(slots=1)])
        gathering = Gathering(self._request.place, self._request.way)
        await gathering.listen()
        self._gathering = gathering
        others = list(range(1, self._request.place.size))
        return [here, *await self._gathering.ranks(others, self._queue)]

    def _forward(self, number: int) -> None:
        self._signal = self._signal or number
        if self._attempt is not None:
            self._attempt.forward(number)

    async def _attempts(self, at: List[Connection]) -> int:
        left, workers = self._request.restarts, self._request.workers
        while True:
            failure = await self._one(at, workers)
            if failure is None:
                return 0
            if self._signal or not left or not failure.may_pass:
                return self._end(failure)
            left -= 1
            self._listener.note(f"warning: {failure}: starting again from the last checkpoint")
            at, workers = await self._again(at, failure)

    async def _one(self, at: List[Connection], workers: int) -> Optional[Failure]:
        request, hosts = self._request, [connection.host for connection in at]
        placed = place(workers, hosts)
        sites = self._sites(at)
        own = {sites[number].name: number for number in reversed(server_hosts(hosts, placed))}
        theirs = sorted(own.values())  # one a host, however many agents it has
        servers = [theirs[n % len(theirs)] for n in range(request.servers or len(theirs))]
        port = await self._free_port(at[0])
        if self._signal:  # it came before there was anybody to forward it to
            return Failure("", "", OF_SIGNALS + self._signal)
        settings = request.settings
        started = parts(request.backend, self._words, placed, servers, sites, port, settings)
        self._attempt = Attempt(
            started, at, self._queue, self._listener.line, request.way.patience, str(Path.cwd()),
            {**passed(request.names), COMMAND: request.command},
        )  # fmt: skip
        return await self._attempt.run()

    async def _again(self, at: List[Connection], failure: Failure) -> Tuple[List[Connection], int]:
        """The agents of the hosts that are left, and how many workers they take."""
        request = self._request
        if AGAIN not in self._words:
            self._words.append(AGAIN)
        if failure.lost is None:
            return at, request.workers
        kept = [each for each in at if each is not failure.lost]
        try:
            if self._gathering is None:
                [again] = await self._connected([failure.lost.host])
            else:  # who has started it may start it again
                [again] = await self._gathering.ranks([at.index(failure.lost)], self._queue)
            return [again if each is failure.lost else each for each in at], request.workers
        except RunError as error:
            workers = min(room(each.host for each in kept), request.workers)
            if request.min_workers is None or workers < request.min_workers:
                raise
            self._listener.note(f"warning: {error}: going on with {workers} workers")
        return kept, workers

    async def _connected(self, hosts: Sequence[Host]) -> List[Connection]:
        made = [Connection(host, self._request.way) for host in hosts]
        tries = await asyncio.gather(
            *(each.open(self._queue) for each in made), return_exceptions=True
        )
        errors = [each for each in tries if isinstance(each, BaseException)]
        if errors:
            for each in made:
                each.close()
            await asyncio.gather(*(each.closed() for each in made))
            raise errors[0]
        return made

    async def _free_port(self, root: Connection) -> int:
        root.send(port=self._request.port or 0)
        while True:
            try:
                got = self._queue.get()
                connection, message = await asyncio.wait_for(got, self._request.way.patience)
            except asyncio.TimeoutError:
                raise RunError(f"host {root.host.name} does not answer") from None
            if connection is root and message.get("gone"):
                raise RunError(f"host {root.host.name} has ended the connection")
            if connection is root and "taken" in message:
                raise ConfigError(
                    f"--port {self._request.port} on {root.host.name}: {message['taken']}: "
                    "choose another, or leave it out"
                )
            if connection is root and "port" in message:
                return int(message["port"])

    def _end(self, failure: Failure) -> int:
        """Say why, and what the exit status is."""
        if failure.why:
            if failure.is_death and failure.lines:
                self._listener.note(f"the last lines of {failure.who}:")
                for line in failure.lines:
                    self._listener.note(line)
            self._listener.note(f"error: {failure}")
        return failure.status

    def _sites(self, at: Sequence[Connection]) -> List[Site]:
        """The hosts as the others see them: over the addresses that ssh, or they, have taken."""
        own = next((each.own_address for each in at if each.own_address), LOOPBACK)
        found = []
        for each in at:
            name = each.host.name if self._request.place is None else each.here
            address = each.address or own
            found.append(Site(name, address, each.interfaces.get(address, "")))
        return found
