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
WINDOW = 2.0  # seconds within which failures with the same cause follow each other
START = 30.0  # seconds that a process may need to load MXNet on a busy host
KEPT = 10  # last lines of a process that are kept
OF_SIGNALS = 128  # shells add this to the number of the signal that killed a process
OF_PART = ("of", "ended", "stopped")  # keys of messages that name a process
BY_REQUEST = {OF_SIGNALS + number for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}


class Failure(NamedTuple):
    """Reason for the end of an attempt.

    ``status`` is the launcher's exit status. ``port_is_taken`` is True if another process took the
    scheduler's port after the attempt had started.
    """

    who: str
    why: str
    status: int = 1
    lines: Sequence[str] = ()
    port_is_taken: bool = False

    @property
    def is_death(self) -> bool:
        """Check if a process was killed or stopped, or its host lost, without an error message."""
        return not self.why.startswith(ERROR)

    @property
    def may_pass(self) -> bool:
        """Check if another attempt may succeed: neither a user's mistake nor a requested end."""
        return self.status != 2 and self.status not in BY_REQUEST

    def __str__(self) -> str:
        if not self.is_death:
            return ": ".join(filter(None, [self.who, self.why[len(ERROR) :]]))
        return f"{self.who} {self.why}"


class Attempt:
    """An attempt, which starts ``parts`` by the agents ``at[part.host]`` and waits for their end.

    ``say(name, stream, line, printed)`` gets each line of output, and calls ``printed`` once the
    line has been printed.
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
        self._programs = {part.name for part in parts if part.is_program}
        # The processes that have reported each status. Programs report nothing, so they count as
        # having reported everything.
        statuses = (ARRIVED, JOINED, BEGUN, LEFT, TAKEN)
        self._came: Dict[str, Set[str]] = {status: set(self._programs) for status in statuses}
        self._ended_with: List[int] = []  # the exit statuses of programs after a signal
        self._done: Dict[str, float] = {}  # time of each server's successful exit
        self._lines: Dict[str, List[str]] = {part.name: [] for part in parts}
        self._failures: List[Failure] = []
        self._signal: Optional[int] = None

    @property
    def signal(self) -> int:
        """The first signal to the launcher or to a process of another launcher; 0 without one."""
        return self._signal or 0

    @property
    def has_joined(self) -> bool:
        """Check if all workers have found each other, so that a run may have started."""
        return self._came[JOINED] == self._workers

    @property
    def has_begun(self) -> bool:
        """Check if all workers train or have trained."""
        return self._came[BEGUN] == self._workers

    def forward(self, number: int) -> None:
        """Send a signal to all workers, which are then expected to exit."""
        self._signal = self._signal or number
        for agent in self._agents():
            names = [name for name in self._workers if self._agent[name] is agent]
            agent.send(signal=number, to=names)

    async def run(self) -> Optional[Failure]:
        """Start the processes, wait for their end, and return the first failure; None on success."""
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
        start, signal_time, failure_time = awake(), 0.0, 0.0
        while self._workers & self._alive:
            received = await next_message(self._inbox, BEAT)
            if received is not None:
                self._take(*received)
            now = awake()
            if not self._failures:
                self._look(now - start)
            failure_time = failure_time or (now if self._failures else 0.0)
            signal_time = signal_time or (now if self._signal else 0.0)
            if failure_time and (now - failure_time > WINDOW or self._port_is_taken):
                break
            if signal_time and not self.has_begun and now - signal_time > WINDOW:
                break  # nothing was trained, and some may wait for processes that are gone
            if signal_time and now - signal_time > self._patience:
                self._fail("the processes", f"did not end within {self._patience:g} s", 1)
                break
        await self._end()
        if self._failures:
            return self._first_failure()._replace(port_is_taken=self._port_is_taken)
        if not self._signal:
            return None
        if self._programs:  # a program may use a signal for another purpose, or save and exit
            status = next(filter(None, self._ended_with), 0)
            return Failure("", "", status) if status else None
        return Failure("", "", OF_SIGNALS + self._signal)

    @property
    def _port_is_taken(self) -> bool:
        return SCHEDULER in self._came[TAKEN]

    def _first_failure(self) -> Failure:
        """Return the cause of all failures.

        Other processes fail because they miss a process that died or got an invalid option.
        """
        cause = self._failures[0]  # for programs, whose exit statuses have no known meaning
        if not self._programs:
            cause = min(self._failures, key=lambda each: (not each.is_death, each.status != 2))
        same = [failure for failure in self._failures if failure.why == cause.why]
        if not cause.is_death and len(same) == len(self._workers):
            return cause._replace(who="")  # the same mistake in all workers
        return cause

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
            printed()  # the output of processes that are being stopped is useless
            return
        if stream == "err":
            self._lines[of] = [*self._lines[of][1 - KEPT :], line]
            if line.startswith(ERROR) and of not in self._programs:
                printed()  # printed once for all workers, with the failure
                return
        self._say(of, stream, line, printed)

    def _see_end(self, name: str, status: int, why: Optional[str]) -> None:
        self._alive.discard(name)
        is_worker = name in self._workers
        if status == 0 and not is_worker:
            self._done[name] = awake()  # `_check_progress` checks if this was too early
        elif status == 0 and name in self._came[LEFT]:
            return
        elif status != 0 and not is_worker and not self._workers & self._alive:
            return  # a server that no worker needs
        elif name in self._programs and self._signal:
            self._ended_with.append(_of_shell(status))
        elif self._signal and not self.has_begun:
            return  # nothing was trained; without the others it may fail in any way
        elif name not in self._programs and (
            status in BY_REQUEST or (self._signal and -status == self._signal)
        ):
            self._signal = self._signal or abs(status) % OF_SIGNALS  # the signal came to this one
        elif status < 0:
            self._fail(name, why or f"was killed by {_signal_name(-status)}", _of_shell(status))
        else:
            errors = [line for line in self._lines[name] if line.startswith(ERROR)]
            reason = errors[-1] if errors and name not in self._programs else why
            self._fail(name, reason or _early(status), status or 1)

    def _look(self, seconds: float) -> None:
        """Record silent agents, workers that do not start or join, and servers that exited too
        early.
        """
        for agent in self._agents():
            if agent.gone is None and agent.silence > self._patience / 2:
                agent.lose(f"has given no sign of life for {agent.silence:.0f} s")
        now, busy = awake(), self._workers & self._alive - self._came[LEFT]
        for name, end_time in self._done.items():
            if busy and now - end_time > WINDOW:
                self._fail(name, _early(0))
        start = max(self._patience, START)
        not_started, not_joined = self._workers_without(ARRIVED), self._workers_without(JOINED)
        if seconds > start and not_started:
            longer = f"where the machine is only busy, --patience {4 * start:g} gives them longer"
            self._fail(", ".join(not_started), f"did not start within {start:g} s: {longer}")
        elif seconds > 2 * start and not_joined:
            self._fail(", ".join(not_joined), "found no way to the others: is a port closed?")

    def _workers_without(self, status: str) -> List[str]:
        """Return the workers that have not reported a status, by rank."""
        workers = [part.name for part in self._parts if part.is_worker]
        return [name for name in workers if name not in self._came[status]]

    def _lose(self, connection: Connection, why: str) -> None:
        lost = {name for name in self._alive if self._agent[name] is connection}
        if lost:
            self._failures.append(Failure(f"host {connection.host.name}", why))
            self._alive -= lost

    def _fail(self, name: str, why: str, status: int = 1) -> None:
        host = self._agent[name].host.name if name in self._agent else ""
        source = f"{name} on {host}" if host else name
        self._failures.append(Failure(source, why, status, self._lines.get(name, ())))

    async def _end(self) -> None:
        """Stop all remaining processes on all hosts. An agent that does not answer counts as lost."""
        waiting = [agent for agent in self._agents() if agent.gone is None]
        gone = [agent for agent in self._agents() if agent.gone is not None]
        killing = asyncio.gather(*(each.kill() for each in gone))  # while the others end
        for agent in waiting:
            agent.send(end=True)
        deadline = time.monotonic() + 2 * GRACE + 1
        while waiting and time.monotonic() < deadline:
            received = await next_message(self._inbox, 0.2)
            if received is not None and ("line" in received[1] or "came" in received[1]):
                self._take(*received)
            elif received is not None and "all_ended" in received[1]:
                waiting = [agent for agent in waiting if agent is not received[0]]
            waiting = [agent for agent in waiting if agent.gone is None]
        for agent in waiting:
            agent.lose("did not answer when all were to end")
        lost = [agent for agent in self._agents() if agent.gone is not None and agent not in gone]
        await asyncio.gather(killing, *(each.kill() for each in lost))

    def _agents(self) -> List[Connection]:
        return list(dict.fromkeys(self._agent.values()))


def _of_shell(status: int) -> int:
    """Return a process's status as a shell reports it: 128 plus the number of a signal."""
    return status if status >= 0 else OF_SIGNALS - status


def _early(status: int) -> str:
    return f"ended with status {status}" + (", before the training did" if status == 0 else "")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
