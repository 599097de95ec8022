"""One attempt of a launcher: all processes of a group, from their start to their end."""

from __future__ import annotations

import asyncio
import signal
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Set

from gluonlab.launch.agent import BEAT, GRACE
from gluonlab.launch.connections import Connection
from gluonlab.launch.messages import Message
from gluonlab.launch.parts import Part

ERROR = "error: "
WINDOW = 2.0  # seconds in which failures that have one cause follow each other
KEPT = 10  # last lines of a process
OF_SIGNALS = 128  # what shells add to the number of the signal that ended a process
BY_REQUEST = {OF_SIGNALS + number for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
ARRIVED, JOINED = "arrived", "joined"  # what a worker tells: it runs; the group stands

Queue = "asyncio.Queue[Tuple[Connection, Message]]"


class Failure(NamedTuple):
    """Why an attempt has ended. ``status``: the launcher's; ``lost``: the host that is gone."""

    who: str
    why: str
    status: int = 1
    lost: Optional[Connection] = None
    lines: Sequence[str] = ()

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
    """Starts ``parts`` by the agents ``at[part.host]``, and sees all of them end."""

    def __init__(
        self,
        parts: Sequence[Part],
        at: Sequence[Connection],
        queue: Any,
        say: Callable[[str, str, str], None],
        patience: float,
        folder: str,
        passed: Dict[str, str],
    ) -> None:
        self._parts, self._at, self._queue, self._say = parts, at, queue, say
        self._patience, self._folder, self._passed = patience, folder, passed
        self._agent = {part.name: at[part.host] for part in parts}
        self._alive: Set[str] = {part.name for part in parts}
        self._workers = {part.name for part in parts if part.is_worker}
        self._came: Dict[str, Set[str]] = {ARRIVED: set(), JOINED: set()}
        self._lines: Dict[str, List[str]] = {part.name: [] for part in parts}
        self._failures: List[Failure] = []
        self._signal: Optional[int] = None
        self.told: Dict[str, str] = {}  # what rank 0 has said of the run

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
                folder=self._folder,
                environment={**self._passed, **part.environment},
            )
        began, signalled, failed = time.monotonic(), 0.0, 0.0
        while self._workers & self._alive:
            try:
                connection, message = await asyncio.wait_for(self._queue.get(), BEAT)
                self._take(connection, message)
            except asyncio.TimeoutError:
                pass
            now = time.monotonic()
            if not self._failures:
                self._look(now - began)
            failed = failed or (now if self._failures else 0.0)
            signalled = signalled or (now if self._signal else 0.0)
            if failed and now - failed > WINDOW:
                break
            if signalled and now - signalled > self._patience:
                self._fail("the processes", f"did not end within {self._patience:g} s", 1)
                break
        await self._end()
        if self._failures:
            return self._first_failure()
        if self._signal:
            return Failure("", "", OF_SIGNALS + self._signal)
        return None

    def _first_failure(self) -> Failure:
        """The cause: others fail as they miss the one that died, or was given what cannot be."""
        first = min(self._failures, key=lambda each: (not each.is_death, each.status != 2))
        same = [each for each in self._failures if each.why == first.why]
        if not first.is_death and len(same) == len(self._workers):
            return first._replace(who="")  # all were given the same
        return first

    def _take(self, connection: Connection, message: Message) -> None:
        if message.get("gone"):
            self._lose(connection, "has ended the connection")
        elif "line" in message:
            self._hear(message["of"], message["stream"], message["line"])
        elif "came" in message:
            self.forward(message["came"])
        elif "stopped" in message and message["seconds"] >= self._patience / 2:
            self._fail(message["stopped"], f"has been stopped for {message['seconds']:.0f} s")
        elif "ended" in message and message["ended"] in self._alive:
            self._see_end(message["ended"], message["status"], message.get("why"))

    def _hear(self, name: str, stream: str, line: str) -> None:
        if stream == "came":
            what, _, more = line.partition(" ")
            self._came.get(what, set()).add(name)
            if more:
                self.told[what] = more
            return
        if stream == "err":
            self._lines[name] = [*self._lines[name][1 - KEPT :], line]
            if line.startswith(ERROR):  # several may say the same: `Failure` says it once
                return
        self._say(name, stream, line)

    def _see_end(self, name: str, status: int, why: Optional[str]) -> None:
        self._alive.discard(name)
        if status == 0 or (name not in self._workers and not self._workers & self._alive):
            return
        if status in BY_REQUEST or (self._signal and -status == self._signal):
            self._signal = self._signal or status - OF_SIGNALS  # it came to one of them
            return
        if status < 0:
            self._fail(name, why or f"was killed by {_signal_name(-status)}", OF_SIGNALS - status)
            return
        said = [line for line in self._lines[name] if line.startswith(ERROR)]
        self._fail(name, said[-1] if said else why or f"ended with status {status}", status)

    def _look(self, seconds: float) -> None:
        """Whatever does not tell of itself: silence, and processes that do not come."""
        now = time.monotonic()
        for agent in self._agents():
            if now - agent.heard > self._patience / 2:
                self._lose(agent, f"has given no sign of life for {now - agent.heard:.0f} s")
        if seconds > self._patience and self._came[ARRIVED] < self._workers:
            missing = sorted(self._workers - self._came[ARRIVED], key=self._order)
            self._fail(", ".join(missing), f"did not start within {self._patience:g} s")
        elif seconds > 2 * self._patience and self._came[JOINED] < self._workers:
            missing = sorted(self._workers - self._came[JOINED], key=self._order)
            self._fail(", ".join(missing), "found no way to the others: is a port closed?")

    def _lose(self, connection: Connection, why: str) -> None:
        if connection in self._agents() and self._agents_alive(connection):
            self._failures.append(Failure(f"host {connection.host.name}", why, 1, connection))
            self._alive -= {name for name in self._alive if self._agent[name] is connection}

    def _fail(self, name: str, why: str, status: int = 1) -> None:
        host = self._agent[name].host.name if name in self._agent else ""
        who = f"{name} on {host}" if host else name
        self._failures.append(Failure(who, why, status, None, self._lines.get(name, ())))

    async def _end(self) -> None:
        """End whatever is left, everywhere."""
        waiting = [agent for agent in self._agents() if not self._is_lost(agent)]
        for agent in waiting:
            agent.send(end=True)
        until = time.monotonic() + 2 * GRACE + 1
        while waiting and time.monotonic() < until:
            try:
                connection, message = await asyncio.wait_for(self._queue.get(), 0.2)
            except asyncio.TimeoutError:
                continue
            if "line" in message:
                self._hear(message["of"], message["stream"], message["line"])
            if message.get("all_ended") or message.get("gone"):
                waiting = [agent for agent in waiting if agent is not connection]
        for agent in [*waiting, *(each for each in self._agents() if self._is_lost(each))]:
            await agent.kill()

    def _agents(self) -> List[Connection]:
        return list(dict.fromkeys(self._agent.values()))

    def _agents_alive(self, connection: Connection) -> bool:
        return any(self._agent[name] is connection for name in self._alive)

    def _is_lost(self, agent: Connection) -> bool:
        return any(failure.lost is agent for failure in self._failures)

    def _order(self, name: str) -> int:
        return [part.name for part in self._parts].index(name)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
