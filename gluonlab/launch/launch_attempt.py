"""One attempt by the launcher to run all processes in a group, from start to end."""

from __future__ import annotations

import asyncio
import signal
import time
from functools import partial
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Set

from gluonlab.launch.agent_connections import AgentConnection
from gluonlab.launch.agent_messages import BEAT_S, Message, ReceivedMessage, liveness_clock, next_message
from gluonlab.launch.group_processes import ARRIVED, BEGUN, JOINED, LEFT, PORT_TAKEN, SCHEDULER, ProcessSpec
from gluonlab.launch.host_agent import TERMINATION_GRACE_S

ERROR_PREFIX = "error: "
FAILURE_WINDOW_S = 2.0  # after a failure, seconds to wait for other failures with the same cause
MIN_START_S = 30.0  # seconds that a process may need to load MXNet on a busy host
KEPT_LINES = 10  # last lines of a process that are kept
SIGNAL_STATUS_BASE = 128  # shells add this to the number of the signal that killed a process
# Exit statuses of a process that a user's signal has ended.
REQUESTED_STATUSES = {SIGNAL_STATUS_BASE + number for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}


class AttemptFailure(NamedTuple):
    """The failure that ended an attempt.

    Args:
        source: the process or host that failed, such as ``rank 1 on h2``
        reason: the reason for the failure. The text starts with ``error: `` if the process itself
            printed it.
        status: the launcher's exit status
        lines: the last lines that the process wrote to stderr
        port_is_taken: whether another process took the scheduler's port after the attempt started
    """

    source: str
    reason: str
    status: int = 1
    lines: Sequence[str] = ()
    port_is_taken: bool = False

    @property
    def is_death(self) -> bool:
        """Check if a process or host failed without an error message, for example by a signal."""
        return not self.reason.startswith(ERROR_PREFIX)

    @property
    def is_retryable(self) -> bool:
        """Check if another attempt may succeed.

        Another attempt cannot succeed after a user error (status 2) or a signal from the user.
        """
        return self.status != 2 and self.status not in REQUESTED_STATUSES

    def __str__(self) -> str:
        if not self.is_death:
            return ": ".join(filter(None, [self.source, self.reason[len(ERROR_PREFIX) :]]))
        return f"{self.source} {self.reason}"


class LaunchAttempt:
    """Starts all processes of a group once, and waits until they end.

    Args:
        processes: the processes of the group
        connections: the connections to the agents, by host; ``process.host`` is an index into this
            list
        inbox: queue of the messages from all agents
        on_line: called with (process, stream, line, printed) for each line of output. The function
            calls ``printed`` once the line has been printed.
        patience: longest time in seconds to wait for processes and agents (--timeout)
        folder: the working folder of all processes
        environment: environment variables for all processes
    """

    def __init__(
        self,
        processes: Sequence[ProcessSpec],
        connections: Sequence[AgentConnection],
        inbox: asyncio.Queue[ReceivedMessage],
        on_line: Callable[[str, str, str, Callable[[], Any]], None],
        patience: float,
        folder: str,
        environment: Dict[str, str],
    ) -> None:
        self._processes, self._inbox, self._on_line = processes, inbox, on_line
        self._patience, self._folder, self._environment = patience, folder, environment
        self._agent = {process.name: connections[process.host] for process in processes}
        self._alive: Set[str] = {process.name for process in processes}
        self._workers = {process.name for process in processes if process.is_worker}
        self._programs = {process.name for process in processes if process.is_program}
        # The names of the processes that have reported each status. The user's own programs report
        # nothing, so they count as having reported every status.
        statuses = (ARRIVED, JOINED, BEGUN, LEFT, PORT_TAKEN)
        self._reported: Dict[str, Set[str]] = {status: set(self._programs) for status in statuses}
        self._exit_statuses: List[int] = []  # the exit statuses of programs after a signal
        self._exit_times: Dict[str, float] = {}  # time of each server's successful exit
        self._lines: Dict[str, List[str]] = {process.name: [] for process in processes}
        self._failures: List[AttemptFailure] = []
        self._signal: Optional[int] = None

    @property
    def signal(self) -> int:
        """The first signal that the launcher or a process has received; 0 if there was none."""
        return self._signal or 0

    @property
    def has_joined(self) -> bool:
        """Check if all workers have found each other, so that a run may have started."""
        return self._reported[JOINED] == self._workers

    @property
    def has_begun(self) -> bool:
        """Check if all workers have started training."""
        return self._reported[BEGUN] == self._workers

    def forward(self, number: int) -> None:
        """Send a signal to all workers, which are then expected to exit."""
        self._signal = self._signal or number
        for agent in self._agents():
            names = [name for name in self._workers if self._agent[name] is agent]
            agent.send(signal=number, processes=names)

    async def run(self) -> Optional[AttemptFailure]:
        """Start the processes, and wait until they end. Return the failure, or None on success."""
        for process in self._processes:
            self._agent[process.name].send(
                start=process.name,
                words=process.words,
                program=process.is_program,
                folder=self._folder,
                environment={**self._environment, **process.environment},
            )
        for agent in self._agents():
            if agent.loss_reason is not None:  # before this attempt
                self._record_lost_host(agent, agent.loss_reason)
        start, signal_time, failure_time = liveness_clock(), 0.0, 0.0
        while self._workers & self._alive:
            received = await next_message(self._inbox, BEAT_S)
            if received is not None:
                self._handle_message(*received)
            now = liveness_clock()
            if not self._failures:
                self._record_stalled_processes(now - start)
            failure_time = failure_time or (now if self._failures else 0.0)
            signal_time = signal_time or (now if self._signal else 0.0)
            if failure_time and (now - failure_time > FAILURE_WINDOW_S or self._port_is_taken):
                break
            if signal_time and not self.has_begun and now - signal_time > FAILURE_WINDOW_S:
                break  # before training, the remaining workers may wait for ended ones forever
            if signal_time and now - signal_time > self._patience:
                self._record_failure("the processes", f"did not stop within {self._patience:g} s", 1)
                break
        await self._stop_processes()
        if self._failures:
            return self._root_failure()._replace(port_is_taken=self._port_is_taken)
        if not self._signal:
            return None
        if self._programs:  # a program may handle the signal and exit with any status
            status = next(filter(None, self._exit_statuses), 0)
            return AttemptFailure("", "", status) if status else None
        return AttemptFailure("", "", SIGNAL_STATUS_BASE + self._signal)

    @property
    def _port_is_taken(self) -> bool:
        return SCHEDULER in self._reported[PORT_TAKEN]

    def _root_failure(self) -> AttemptFailure:
        """Return the failure that caused the others.

        The failure of a process that died takes precedence over that of a process that rejected its
        options (status 2). Otherwise, the earliest failure is returned. Processes that fail only
        because they lost the others fail later, or with a different status.
        """
        cause = self._failures[0]
        if not self._programs:  # the exit statuses of programs have no known meaning
            cause = min(self._failures, key=lambda each: (not each.is_death, each.status != 2))
        same = [failure for failure in self._failures if failure.reason == cause.reason]
        if not cause.is_death and len(same) == len(self._workers):
            return cause._replace(source="")  # the same mistake in all workers
        return cause

    def _handle_message(self, connection: AgentConnection, message: Message) -> None:
        """Handle a message from an agent. See `agent_messages.AGENT_MESSAGES` for the keys."""
        process = message.get("process")
        if connection not in self._agents():
            return
        if process is not None and self._agent.get(process) is not connection:
            connection.mark_lost(f"reported {process!r}, which it was not asked to start")
        elif "loss_reason" in message:
            self._record_lost_host(connection, message["loss_reason"])
        elif "line" in message:
            self._handle_line(connection, **message)
        elif "signal" in message:
            self.forward(message["signal"])
        elif process is not None and message.get("suspended_s", 0) >= self._patience / 2:
            self._record_failure(process, f"was suspended for {message['suspended_s']:.0f} s")
        elif "exit_status" in message and process in self._alive:
            self._record_end(process, message["exit_status"], message.get("error"))

    def _handle_line(self, connection: AgentConnection, process: str, stream: str, line: str) -> None:
        """Forward a line of output (stream ``out`` or ``err``), or record a reported ``status``.

        Output is dropped once another process has taken the scheduler's port.
        """
        if stream == "status":
            self._reported.get(line, set()).add(process)
            return
        printed = partial(connection.acknowledge_printed, line)
        if self._port_is_taken:
            printed()  # the output of processes that are being stopped is useless
            return
        if stream == "err":
            self._lines[process] = [*self._lines[process][1 - KEPT_LINES :], line]
            if line.startswith(ERROR_PREFIX) and process not in self._programs:
                printed()  # printed once for all workers, with the failure
                return
        self._on_line(process, stream, line, printed)

    def _record_end(self, name: str, status: int, error: Optional[str]) -> None:
        """Record that a process has ended, and whether it failed.

        ``status``: the exit status, or the negative number of the signal that killed the process.
        ``error``: the reason if the process could not be started.
        """
        self._alive.discard(name)
        is_worker = name in self._workers
        if status == 0 and not is_worker:
            self._exit_times[name] = liveness_clock()  # `_record_stalled_processes` checks if this was too early
        elif status == 0 and name in self._reported[LEFT]:
            return
        elif status != 0 and not is_worker and not self._workers & self._alive:
            return  # a server that no worker needs any more
        elif name in self._programs and self._signal:
            self._exit_statuses.append(_shell_status(status))
        elif self._signal and not self.has_begun:
            return  # before training, a process that lost the others may fail in any way
        elif name not in self._programs and (
            status in REQUESTED_STATUSES or (self._signal and -status == self._signal)
        ):
            self._signal = self._signal or abs(status) % SIGNAL_STATUS_BASE  # the signal came to this one
        elif status < 0:
            self._record_failure(name, error or f"was killed by {_signal_name(-status)}", _shell_status(status))
        else:
            errors = [line for line in self._lines[name] if line.startswith(ERROR_PREFIX)]
            reason = errors[-1] if errors and name not in self._programs else error
            self._record_failure(name, reason or _describe_early_exit(status), status or 1)

    def _record_stalled_processes(self, elapsed_s: float) -> None:
        """Record failures that no message reports. ``elapsed_s``: time since the attempt's start.

        The causes are silent agents, workers that do not start or do not find the group, and
        servers that exited before the workers.
        """
        for agent in self._agents():
            if agent.loss_reason is None and agent.silent_s > self._patience / 2:
                agent.mark_lost(f"has sent no heartbeat for {agent.silent_s:.0f} s")
        now, workers_with_servers = liveness_clock(), self._workers & self._alive - self._reported[LEFT]
        for name, end_time in self._exit_times.items():
            if workers_with_servers and now - end_time > FAILURE_WINDOW_S:
                self._record_failure(name, _describe_early_exit(0))
        start = max(self._patience, MIN_START_S)
        not_started, not_joined = self._workers_without(ARRIVED), self._workers_without(JOINED)
        if elapsed_s > start and not_started:
            longer = f"if the machine is only busy, increase the limit with --timeout {4 * start:g}"
            self._record_failure(", ".join(not_started), f"did not start within {start:g} s: {longer}")
        elif elapsed_s > 2 * start and not_joined:
            self._record_failure(
                ", ".join(not_joined),
                "could not connect to the other processes: check that no firewall blocks the port",
            )

    def _workers_without(self, status: str) -> List[str]:
        """Return the names of the workers that have not reported ``status``, in order of rank."""
        return [
            process.name
            for process in self._processes
            if process.is_worker and process.name not in self._reported[status]
        ]

    def _record_lost_host(self, connection: AgentConnection, reason: str) -> None:
        """Record a lost host as a failure if processes were still running on it."""
        lost = {name for name in self._alive if self._agent[name] is connection}
        if lost:
            self._failures.append(AttemptFailure(f"host {connection.host.name}", reason))
            self._alive -= lost

    def _record_failure(self, name: str, reason: str, status: int = 1) -> None:
        source = f"{name} on {self._agent[name].host.name}" if name in self._agent else name
        self._failures.append(AttemptFailure(source, reason, status, self._lines.get(name, ())))

    async def _stop_processes(self) -> None:
        """Stop all remaining processes. An agent that does not answer is marked as lost."""
        waiting = [agent for agent in self._agents() if agent.loss_reason is None]
        gone = [agent for agent in self._agents() if agent.loss_reason is not None]
        killing = asyncio.gather(*(agent.kill() for agent in gone))  # while the others end
        for agent in waiting:
            agent.send(end=True)
        deadline = time.monotonic() + 2 * TERMINATION_GRACE_S + 1
        while waiting and time.monotonic() < deadline:
            received = await next_message(self._inbox, 0.2)
            if received is not None and ("line" in received[1] or "signal" in received[1]):
                self._handle_message(*received)
            elif received is not None and "all_ended" in received[1]:
                waiting = [agent for agent in waiting if agent is not received[0]]
            waiting = [agent for agent in waiting if agent.loss_reason is None]
        for agent in waiting:
            agent.mark_lost("did not answer the request to stop")
        lost = [agent for agent in self._agents() if agent.loss_reason is not None and agent not in gone]
        await asyncio.gather(killing, *(agent.kill() for agent in lost))

    def _agents(self) -> List[AgentConnection]:
        return list(dict.fromkeys(self._agent.values()))


def _shell_status(status: int) -> int:
    """Convert asyncio's exit status to the shell's: 128 + n instead of -n for signal number n."""
    return status if status >= 0 else SIGNAL_STATUS_BASE - status


def _describe_early_exit(status: int) -> str:
    return f"exited with status {status}" + (" before the training ended" if status == 0 else "")


def _signal_name(number: int) -> str:
    """Return the name of a signal, such as ``SIGTERM``."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
