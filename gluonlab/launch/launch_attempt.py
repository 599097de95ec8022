"""One attempt of a launcher: all processes of a group, from their start to their end."""

from __future__ import annotations

import asyncio
import signal
import time
from functools import partial
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Set

from gluonlab.launch.agent_connections import Connection
from gluonlab.launch.agent_messages import BEAT, Message, Received, awake, next_message
from gluonlab.launch.group_processes import (
    ARRIVED,
    BEGUN,
    JOINED,
    LEFT,
    SCHEDULER,
    TAKEN,
    ProcessSpec,
)
from gluonlab.launch.host_agent import GRACE

ERROR = "error: "
WINDOW = 2.0  # seconds in which failures that have one cause follow each other
START = 30.0  # seconds that a process may need at least, on a busy host, to load MXNet
KEPT = 10  # last lines of a process
OF_SIGNALS = 128  # what shells add to the number of the signal that ended a process
OF_PART = ("of", "ended", "stopped")  # keys of messages that name a process
BY_REQUEST = {OF_SIGNALS + number for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}


class Failure(NamedTuple):
    """Why an attempt has ended.

    ``status``: the launcher's. ``port_is_taken``: somebody else has the scheduler's port, which
    nobody had before the attempt.
    """

    who: str
    why: str
    status: int = 1
    lines: Sequence[str] = ()
    port_is_taken: bool = False

    @property
    def is_death(self) -> bool:
        """Whether the process said nothing: it was killed or stopped, or its host is gone."""
        return not self.why.startswith(ERROR)

    @property
    def may_pass(self) -> bool:
        """Whether another attempt may do better: it was no mistake, and nobody asked for it."""
        return self.status != 2 and self.status not in BY_REQUEST

    def __str__(self) -> str:
        if not self.is_death:
            return ": ".join(filter(None, [self.who, self.why[len(ERROR) :]]))
        return f"{self.who} {self.why}"


class Attempt:
    """Starts ``parts`` by the agents ``at[part.host]``, and sees all of them end.

    ``say(name, stream, line, printed)`` gets each line, and calls ``printed`` when that is done.
    """

    def __init__(
        self,
        parts: Sequence[ProcessSpec],
        at: Sequence[Connection],
        inbox: asyncio.Queue[Received],
        say: Callable[[str, str, str, Callable[[], Any]], None],
        patience: float,
        folder: str,
        passed: Dict[str, str],
    ) -> None:
        self._parts, self._at, self._inbox, self._say = parts, at, inbox, say
        self._patience, self._folder, self._passed = patience, folder, passed
        self._agent = {part.name: at[part.host] for part in parts}
        self._alive: Set[str] = {part.name for part in parts}
        self._workers = {part.name for part in parts if part.is_worker}
        told = (ARRIVED, JOINED, BEGUN, LEFT, TAKEN)
        # Programs tell nothing: once they are started, they work, and may leave their servers.
        self._programs = {part.name for part in parts if part.is_program}
        self._came: Dict[str, Set[str]] = {each: set(self._programs) for each in told}
        self._ended_with: List[int] = []  # the statuses of programs after a signal
        self._done: Dict[str, float] = {}  # when servers have ended, and well
        self._lines: Dict[str, List[str]] = {part.name: [] for part in parts}
        self._failures: List[Failure] = []
        self._signal: Optional[int] = None

    @property
    def signal(self) -> int:
        """The first signal that came to the launcher or to a process beside it; 0 if none did."""
        return self._signal or 0

    @property
    def has_joined(self) -> bool:
        """Whether all workers have found each other, so that a run may have begun."""
        return self._came[JOINED] == self._workers

    @property
    def has_begun(self) -> bool:
        """Whether all workers train, or have trained."""
        return self._came[BEGUN] == self._workers

    def forward(self, number: int) -> None:
        """Send a signal to all workers; the first one is what they are expected to end by."""
        self._signal = self._signal or number
        for agent in self._agents():
            names = [name for name in self._workers if self._agent[name] is agent]
            agent.send(signal=number, to=names)

    async def run(self) -> Optional[Failure]:
        """The first failure; None if all workers have ended well."""
        for part in self._parts:
            self._agent[part.name].send(
                start=part.name,
                words=part.words,
                program=part.is_program,
                folder=self._folder,
                environment={**self._passed, **part.environment},
            )
        for agent in self._agents():
            if agent.gone is not None:  # before this attempt
                self._lose(agent, agent.gone)
        began, signalled, failed = awake(), 0.0, 0.0
        while self._workers & self._alive:
            got = await next_message(self._inbox, BEAT)
            if got is not None:
                self._take(*got)
            now = awake()
            if not self._failures:
                self._look(now - began)
            failed = failed or (now if self._failures else 0.0)
            signalled = signalled or (now if self._signal else 0.0)
            if failed and (now - failed > WINDOW or self._port_is_taken):
                break
            if signalled and not self.has_begun and now - signalled > WINDOW:
                break  # nothing was trained, and some may wait for those that are gone
            if signalled and now - signalled > self._patience:
                self._fail("the processes", f"did not end within {self._patience:g} s", 1)
                break
        await self._end()
        if self._failures:
            return self._first_failure()._replace(port_is_taken=self._port_is_taken)
        if not self._signal:
            return None
        if self._programs:  # a program may take a signal for another purpose, or save and end well
            status = next(filter(None, self._ended_with), 0)
            return Failure("", "", status) if status else None
        return Failure("", "", OF_SIGNALS + self._signal)

    @property
    def _port_is_taken(self) -> bool:
        return SCHEDULER in self._came[TAKEN]

    def _first_failure(self) -> Failure:
        """The cause: others fail as they miss the one that died, or was given what cannot be."""
        first = self._failures[0]  # of programs, whose failures say nothing of their cause
        if not self._programs:
            first = min(self._failures, key=lambda each: (not each.is_death, each.status != 2))
        same = [each for each in self._failures if each.why == first.why]
        if not first.is_death and len(same) == len(self._workers):
            return first._replace(who="")  # all were given the same
        return first

    def _take(self, connection: Connection, message: Message) -> None:
        name = next((message[key] for key in OF_PART if key in message), None)
        if connection not in self._agents():
            return
        if name is not None and self._agent.get(name) is not connection:
            connection.lose(f"speaks of {name!r}, which it was not given to start")
        elif "gone" in message:
            self._lose(connection, message["gone"])
        elif "line" in message:
            self._hear(connection, **message)
        elif "came" in message:
            self.forward(message["came"])
        elif "stopped" in message and message["seconds"] >= self._patience / 2:
            self._fail(message["stopped"], f"has been stopped for {message['seconds']:.0f} s")
        elif "ended" in message and message["ended"] in self._alive:
            self._see_end(message["ended"], message["status"], message.get("why"))

    def _hear(self, connection: Connection, of: str, stream: str, line: str) -> None:
        if stream == "came":
            self._came.get(line, set()).add(of)
            return
        printed = partial(connection.printed, line)
        if self._port_is_taken:
            printed()  # what the others say as they are ended is of no use to anybody
            return
        if stream == "err":
            self._lines[of] = [*self._lines[of][1 - KEPT :], line]
            if (
                line.startswith(ERROR) and of not in self._programs
            ):  # several may say the same: `Failure` says it once
                printed()
                return
        self._say(of, stream, line, printed)

    def _see_end(self, name: str, status: int, why: Optional[str]) -> None:
        self._alive.discard(name)
        is_worker = name in self._workers
        if status == 0 and not is_worker:
            self._done[name] = awake()  # `_look` sees whether it was too early
        elif status == 0 and name in self._came[LEFT]:
            return
        elif status != 0 and not is_worker and not self._workers & self._alive:
            return  # a server that no worker needs
        elif name in self._programs and self._signal:
            self._ended_with.append(_of_shell(status))
        elif self._signal and not self.has_begun:
            return  # nothing was trained; with the others gone, it may end in any way
        elif name not in self._programs and (
            status in BY_REQUEST or (self._signal and -status == self._signal)
        ):
            self._signal = self._signal or abs(status) % OF_SIGNALS  # it came to one of them
        elif status < 0:
            self._fail(name, why or f"was killed by {_signal_name(-status)}", _of_shell(status))
        else:
            said = [line for line in self._lines[name] if line.startswith(ERROR)]
            own = said[-1] if said and name not in self._programs else why
            self._fail(name, own or _early(status), status or 1)

    def _look(self, seconds: float) -> None:
        """Whatever does not tell of itself: silence, and processes that do not come."""
        for agent in self._agents():
            if agent.gone is None and agent.silence > self._patience / 2:
                agent.lose(f"has given no sign of life for {agent.silence:.0f} s")
        now, busy = awake(), self._workers & self._alive - self._came[LEFT]
        for name, when in self._done.items():
            if busy and now - when > WINDOW:
                self._fail(name, _early(0))
        start = max(self._patience, START)
        late, alone = self._workers_without(ARRIVED), self._workers_without(JOINED)
        if seconds > start and late:
            longer = f"where the machine is only busy, --patience {4 * start:g} gives them longer"
            self._fail(", ".join(late), f"did not start within {start:g} s: {longer}")
        elif seconds > 2 * start and alone:
            self._fail(", ".join(alone), "found no way to the others: is a port closed?")

    def _workers_without(self, told: str) -> List[str]:
        """The workers that have not told this yet, by rank."""
        workers = [part.name for part in self._parts if part.is_worker]
        return [name for name in workers if name not in self._came[told]]

    def _lose(self, connection: Connection, why: str) -> None:
        lost = {name for name in self._alive if self._agent[name] is connection}
        if lost:
            self._failures.append(Failure(f"host {connection.host.name}", why))
            self._alive -= lost

    def _fail(self, name: str, why: str, status: int = 1) -> None:
        host = self._agent[name].host.name if name in self._agent else ""
        who = f"{name} on {host}" if host else name
        self._failures.append(Failure(who, why, status, self._lines.get(name, ())))

    async def _end(self) -> None:
        """End whatever is left, everywhere. Whose agent does not answer is gone."""
        waiting = [agent for agent in self._agents() if agent.gone is None]
        gone = [agent for agent in self._agents() if agent.gone is not None]
        killed = asyncio.gather(*(each.kill() for each in gone))  # while the others end
        for agent in waiting:
            agent.send(end=True)
        until = time.monotonic() + 2 * GRACE + 1
        while waiting and time.monotonic() < until:
            got = await next_message(self._inbox, 0.2)
            if got is not None and ("line" in got[1] or "came" in got[1]):
                self._take(*got)
            elif got is not None and "all_ended" in got[1]:
                waiting = [agent for agent in waiting if agent is not got[0]]
            waiting = [agent for agent in waiting if agent.gone is None]
        for agent in waiting:
            agent.lose("did not answer when all were to end")
        lost = [agent for agent in self._agents() if agent.gone is not None and agent not in gone]
        await asyncio.gather(killed, *(each.kill() for each in lost))

    def _agents(self) -> List[Connection]:
        return list(dict.fromkeys(self._agent.values()))


def _of_shell(status: int) -> int:
    """The status of a process as shells count it: a signal is 128 and its number."""
    return status if status >= 0 else OF_SIGNALS - status


def _early(status: int) -> str:
    return f"ended with status {status}" + (", before the training did" if status == 0 else "")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
