"""The launcher: agents on all hosts, attempts until one ends well, and what is said at the end."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Callable, Iterable, List, Mapping, Optional, Protocol, Sequence, Union

from gluonlab.errors import ConfigError, RunError
from gluonlab.host.signals import EndRequest
from gluonlab.launch.agent_connections import Connection, SshOptions
from gluonlab.launch.agent_messages import BEAT, Received, awake, next_message
from gluonlab.launch.group_processes import (
    AGAIN,
    COMMAND,
    RAN_ON,
    Site,
    parts,
    passed,
    working_folder,
)
from gluonlab.launch.hosts import HERE, Host, place, room, server_hosts
from gluonlab.launch.launch_attempt import OF_SIGNALS, Attempt, Failure
from gluonlab.launch.network_addresses import is_loop
from gluonlab.launch.rank_environment import Membership
from gluonlab.launch.scheduler_tasks import Rendezvous
from gluonlab.launch.user_program import is_program

DEFAULT = SshOptions()
TRIES = 5  # ports that are chosen, one after the other, where somebody else is faster with each
LOOPBACK = "127.0.0.1"
STUCK = 1.0  # seconds after a signal in which nobody takes a line: then the rest is lost


@dataclass(frozen=True)
class LaunchRequest:
    """What is to be launched, checked.

    ``words``: the options of the run, or a program; ``servers``: as many, or one a host; ``port``:
    of the scheduler, or any that is free; ``names``: of variables for other hosts; ``command``:
    what the user has written, up to the words; ``place``: that of rank 0, if a scheduler has
    started all;
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
    way: SshOptions = DEFAULT
    names: Sequence[str] = ()
    command: str = ""
    place: Optional[Membership] = None
    settings: Mapping[str, str] = field(default_factory=dict)


class Listener(Protocol):
    """Who is told what the processes say, and what becomes of them."""

    def line(self, who: str, stream: str, text: str, printed: Callable[[], Any]) -> None:
        """A line that ``who`` has written to ``out`` or ``err``.

        ``printed`` is to be called, in any thread, when there is room for more.
        """

    def note(self, text: str) -> None:
        """A line of the launcher itself."""

    @property
    def unprinted(self) -> int:
        """How many lines it has been told that nobody has taken yet."""


def launch(request: LaunchRequest, listener: Listener) -> int:
    """Start the processes, and see them end: the exit status. Raises RunError.

    A signal that comes before there are processes, or between two attempts, raises what it raises
    elsewhere (`gluonlab.host.signals.RAISED`).
    """
    with EndRequest() as end:
        return asyncio.run(_Launcher(request, listener).run(end))


class _Launcher:
    def __init__(self, request: LaunchRequest, listener: Listener) -> None:
        self._request, self._listener = request, listener
        self._attempt: Optional[Attempt] = None
        self._working: Optional["asyncio.Future[int]"] = None
        self._signal = 0
        self._gathering: Optional[Rendezvous] = None
        self._inbox: asyncio.Queue[Received]
        self._at: List[Connection] = []
        self._words = list(request.words)
        self._ran_on = ""  # where rank 0 of an earlier attempt was
        self._is_whole = True  # no host is left out
        self._begun = False  # a training, in any attempt

    async def run(self, end: EndRequest) -> int:
        self._inbox = asyncio.Queue()
        signal.signal(signal.SIGTSTP, signal.SIG_IGN)  # one that is stopped watches nothing
        status = 1
        self._working = asyncio.ensure_future(self._attempts())
        end.pass_to(self._forward, asyncio.get_event_loop())
        try:
            status = await self._working
        except asyncio.CancelledError:
            end.take(self._signal)
            status = OF_SIGNALS + self._signal
        finally:
            if self._gathering is not None:
                await self._gathering.end(self._at, status)
            await _leave(self._at)
            status = await self._all_printed(status)
        return status

    async def _all_printed(self, status: int) -> int:
        """Wait for who reads slowly, and, once a signal has come, only while somebody reads."""
        count, since = self._listener.unprinted, time.monotonic()
        while self._listener.unprinted:
            await asyncio.sleep(0.01)
            if not self._signal or count != self._listener.unprinted:
                count, since = self._listener.unprinted, time.monotonic()
            elif time.monotonic() - since > STUCK:
                return status or OF_SIGNALS + self._signal
        return status

    async def _first(self) -> None:
        """Connect to the agents of all hosts, or those that a scheduler has started, by rank."""
        request = self._request
        if request.place is None:
            self._add(await self._connected(request.hosts))
            return
        self._add(await self._connected([HERE._replace(slots=1)]))
        self._gathering = Rendezvous(request.place, request.way, self._inbox, self._forward)
        await self._gathering.listen()
        self._add(await self._gathering.ranks(range(1, request.place.size)))

    def _add(self, tries: Sequence[Union[Connection, RunError]]) -> None:
        self._at += [each for each in tries if isinstance(each, Connection)]
        for each in tries:
            if isinstance(each, RunError):
                raise each

    def _forward(self, number: int) -> None:
        self._signal = self._signal or number
        if self._attempt is not None:
            self._attempt.forward(number)
        elif self._working is not None:
            self._working.cancel()

    async def _attempts(self) -> int:
        await self._first()
        left, workers = self._request.restarts, self._request.workers
        while True:
            failure = await self._one(workers)
            if failure is None:
                return 0
            if self._signal or not left or not failure.may_pass:
                return self._end(failure)
            left -= 1
            gone = [each for each in self._at if each.gone is not None]
            also = "".join(
                f", and host {each.host.name} is gone"
                for each in gone
                if failure.who != f"host {each.host.name}"
            )
            begin = "" if is_program(self._words) else " from the last checkpoint"
            self._listener.note(f"warning: {failure}{also}: starting again{begin}")
            workers = await self._again(gone)

    async def _one(self, workers: int) -> Optional[Failure]:
        """One attempt, with another port where somebody else takes it before the scheduler does."""
        root, request = self._at[0], self._request
        for left in reversed(range(TRIES)):
            port = await self._kept_port(root)
            if port is None:
                return Failure(f"host {root.host.name}", root.gone or "")
            failure = await self._with_port(port, workers)
            if failure is None or self._signal or not failure.port_is_taken:
                return failure
            if request.port is not None:
                raise ConfigError(_refusal(port, root, os.strerror(errno.EADDRINUSE)))
            if left:
                self._listener.note(
                    f"warning: somebody else took port {port} of {root.host.name} before the "
                    "scheduler did: trying another"
                )
        raise RunError(_refusal(None, root, f"somebody else took {TRIES} before the scheduler did"))

    async def _kept_port(self, root: Connection) -> Optional[int]:
        """The scheduler's port, which ``root``'s agent keeps until the scheduler listens there.

        That is the one that was asked for, or any; None if the host is gone. Raises ConfigError
        where the port is taken.
        """
        wanted, until = self._request.port, awake() + self._request.way.patience
        root.send(port=wanted or 0)
        while root.gone is None:
            connection, message = await next_message(self._inbox, BEAT) or (None, {})
            if awake() > until:
                root.lose("does not answer")
            elif "came" in message:  # a signal, to a process that somebody else has started
                self._forward(message["came"])
            elif connection is root and "taken" in message:
                raise ConfigError(_refusal(wanted, root, message["taken"]))
            elif connection is root and "port" in message:
                return int(message["port"])
        return None

    async def _with_port(self, port: int, workers: int) -> Optional[Failure]:
        request, hosts = self._request, [connection.host for connection in self._at]
        placed = place(workers, hosts)
        sites = _sites_of(self._at, named=request.place is None)
        own = {sites[number].name: number for number in reversed(server_hosts(hosts, placed))}
        theirs = sorted(own.values())  # one a host, however many agents it has
        servers = [theirs[n % len(theirs)] for n in range(request.servers or len(theirs))]
        first = hosts[placed[0]].name
        variables = {**passed(request.names), COMMAND: request.command}
        if self._ran_on not in ("", first):
            variables[RAN_ON] = self._ran_on
        settings = request.settings
        started = parts(request.backend, self._words, placed, servers, sites, port, settings)
        folder = working_folder()
        self._attempt = Attempt(
            started, self._at, self._inbox, self._say, request.way.patience, folder,
            variables,
        )  # fmt: skip
        try:
            return await self._attempt.run()
        finally:
            if self._attempt.has_joined:
                self._ran_on = self._ran_on or first
            self._begun = self._begun or self._attempt.has_begun
            self._signal = self._signal or self._attempt.signal
            self._attempt = None

    def _say(self, who: str, stream: str, text: str, printed: Callable[[], Any]) -> None:
        """Tell the listener, which may print in a thread of its own."""
        loop = asyncio.get_event_loop()

        def printed_there() -> None:
            if not loop.is_closed():
                with suppress(RuntimeError):  # it is, after all
                    loop.call_soon_threadsafe(printed)

        self._listener.line(who, stream, text, printed_there)

    async def _again(self, gone: Sequence[Connection]) -> int:
        """Connect to the hosts that are ``gone``, or leave them out: how many workers there are."""
        request = self._request
        has = {AGAIN, "--resume"} & {word.partition("=")[0] for word in self._words}
        if not has and not is_program(self._words):
            self._words.append(AGAIN)
        await _leave(gone)
        if self._gathering is None:
            tries = await self._connected([each.host for each in gone])
        else:  # who has started them may start them again
            tries = await self._gathering.ranks([each.rank or 0 for each in gone])
        back = dict(zip(gone, tries))
        now = [back.get(each, each) for each in self._at]
        self._at = [each for each in now if isinstance(each, Connection)]
        errors = [str(each) for each in tries if isinstance(each, RunError)]
        self._is_whole = self._is_whole and not errors
        workers = min(room(each.host for each in self._at), request.workers)
        if self._is_whole:
            return request.workers
        if request.min_workers is None or workers < request.min_workers:
            if request.min_workers is not None:
                left = "1 worker is left" if workers == 1 else f"{workers} workers are left"
                errors.append(f"{left}, and --min-workers is {request.min_workers}")
            raise RunError("; ".join(dict.fromkeys(errors)))
        for error in dict.fromkeys(errors):
            self._listener.note(f"warning: {error}: going on with {workers} workers")
        return workers

    async def _connected(self, hosts: Sequence[Host]) -> List[Union[Connection, RunError]]:
        """For each host its agent, or why there is none."""
        made = [Connection(host, self._request.way) for host in hosts]
        opening = asyncio.gather(*(each.open(self._inbox) for each in made), return_exceptions=True)
        try:
            tries = await opening
        except asyncio.CancelledError:
            await _leave(made)
            raise
        strange = [e for e in tries if isinstance(e, Exception) and not isinstance(e, RunError)]
        if strange:
            await _leave(made)
            raise strange[0]
        errors = [each if isinstance(each, RunError) else None for each in tries]
        return [error or each for each, error in zip(made, errors)]

    def _end(self, failure: Failure) -> int:
        """Say why, and what the exit status is."""
        if failure.why:
            if failure.is_death and failure.lines:
                self._listener.note(f"the last lines of {failure.who}:")
                for line in failure.lines:
                    self._listener.note(line)
            self._listener.note(f"error: {failure}")
        elif not self._begun:
            name = signal.Signals(failure.status - OF_SIGNALS).name
            self._listener.note(f"ended by {name} before the training began")
        return failure.status


async def _leave(at: Sequence[Connection]) -> None:
    for connection in at:
        connection.close()
    await asyncio.gather(*(connection.closed() for connection in at))


def _refusal(wanted: Optional[int], root: Connection, why: str) -> str:
    """What to say where the ``wanted`` port cannot be had; None: where no port at all can."""
    if wanted is None:
        return f"no port of {root.host.name} can be had: {why}: name one with --port"
    return f"--port {wanted} on {root.host.name}: {why}: choose another, or leave it out"


# --- The hosts of a group as all of them see each other


def _sites_of(at: Sequence[Connection], named: bool) -> List[Site]:
    """A host for each connection, with the address that ssh, or its process, has come over.

    A process on the launcher's own host may have come over the loopback device, which leads
    nowhere from other hosts. ``named``: the user has named the hosts.
    """
    own = _reachable(each.own_address for each in at) or LOOPBACK
    found = []
    for each in at:
        address = _reachable([each.address, own]) or LOOPBACK
        name = each.host.name if named else each.here
        found.append(Site(name, address, each.interfaces.get(address, "")))
    return found


def _reachable(addresses: Iterable[Optional[str]]) -> Optional[str]:
    """The first of these that other hosts reach, too; else the first, if there is one."""
    known = [each for each in addresses if each]
    return next((each for each in known if not is_loop(each)), next(iter(known), None))
