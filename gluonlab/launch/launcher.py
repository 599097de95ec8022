"""Launches a group: connects to the agents on all hosts, and retries until an attempt succeeds."""

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
from gluonlab.host.signals import StopRequest
from gluonlab.launch.agent_connections import AgentConnection, SshOptions
from gluonlab.launch.agent_messages import BEAT_S, ReceivedMessage, liveness_clock, next_message
from gluonlab.launch.group_processes import (
    AUTORESUME_OPTION,
    COMMAND_VARIABLE,
    PREVIOUS_HOST_VARIABLE,
    Site,
    forwarded_environment,
    parts,
    working_folder,
)
from gluonlab.launch.hosts import LOCAL_HOST, Host, assign_ranks, server_hosts, total_capacity
from gluonlab.launch.launch_attempt import SIGNAL_STATUS_BASE, AttemptFailure, LaunchAttempt
from gluonlab.launch.ports_and_addresses import is_loopback
from gluonlab.launch.process_membership import Membership
from gluonlab.launch.scheduler_tasks import Rendezvous
from gluonlab.launch.user_program import is_program

DEFAULT_SSH_OPTIONS = SshOptions()
PORT_ATTEMPTS = 5  # number of ports to try if other processes take a port before the scheduler
LOOPBACK = "127.0.0.1"
# After a signal, unprinted output is dropped if no line has been printed for this time.
STUCK_READER_S = 1.0


@dataclass(frozen=True)
class LaunchRequest:
    """Checked arguments of a launch.

    Args:
        backend: how processes exchange gradients (--backend)
        words: the options of the run, or a program and its arguments
        hosts: the hosts of workers and servers
        workers: number of workers
        servers: number of servers; None for one server on each host
        port: the scheduler's port; None for a free port
        restarts: maximum number of restarts
        min_workers: minimum number of workers after a host is lost (--min-np)
        ssh_options: the ssh command, the Python command and the timeout for other hosts
        variable_names: names of environment variables to forward to other hosts
        command: the user's command, without ``words``
        membership: rank 0's membership if a scheduler has started all processes; else None
        settings: environment variables of the workers, which override the user's variables
    """

    backend: str
    words: Sequence[str]
    hosts: Sequence[Host]
    workers: int
    servers: Optional[int] = None
    port: Optional[int] = None
    restarts: int = 0
    min_workers: Optional[int] = None
    ssh_options: SshOptions = DEFAULT_SSH_OPTIONS
    variable_names: Sequence[str] = ()
    command: str = ""
    membership: Optional[Membership] = None
    settings: Mapping[str, str] = field(default_factory=dict)


class LaunchListener(Protocol):
    """Interface for an object that prints the processes' output and the launcher's own messages."""

    def on_line(self, process: str, stream: str, text: str, printed: Callable[[], Any]) -> None:
        """Receive a line of output from a process, such as ``rank 0``.

        ``stream`` is ``out`` or ``err``. The listener calls ``printed``, in any thread, once the
        line has been printed.
        """

    def on_note(self, text: str) -> None:
        """Receive a message from the launcher itself."""

    @property
    def pending_lines(self) -> int:
        """Number of received lines that have not been printed yet."""


def launch_group(request: LaunchRequest, listener: LaunchListener) -> int:
    """Start the processes, wait until they end, and return the exit status. Raises RunError.

    The launcher forwards the signals that it receives to the running processes. If a signal arrives
    while no process is running, the launcher raises the exception that
    `gluonlab.host.signals.EXCEPTION_BY_SIGNAL` lists for this signal.
    """
    with StopRequest() as end:
        return asyncio.run(_Launcher(request, listener).run(end))


class _Launcher:
    """The connections to all agents, and the state that is kept between attempts."""

    def __init__(self, request: LaunchRequest, listener: LaunchListener) -> None:
        self._request, self._listener = request, listener
        self._attempt: Optional[LaunchAttempt] = None
        self._working: Optional["asyncio.Future[int]"] = None  # runs the attempts
        self._signal = 0  # the number of the first signal
        self._rendezvous: Optional[Rendezvous] = None
        self._inbox: asyncio.Queue[ReceivedMessage]
        self._connections: List[AgentConnection] = []
        self._words = list(request.words)
        self._previous_host = ""  # the host of rank 0 in the first attempt that formed a group
        self._is_whole = True  # False once an attempt has to do without a lost host
        self._has_trained = False  # True once training has started, in any attempt

    async def run(self, end: StopRequest) -> int:
        """Run attempts until one succeeds or fails for good, and return the exit status."""
        self._inbox = asyncio.Queue()
        # Ctrl-Z is ignored, because a stopped launcher could not watch its processes.
        signal.signal(signal.SIGTSTP, signal.SIG_IGN)
        status = 1
        self._working = asyncio.ensure_future(self._run_attempts())
        end.call_on_signals(self._forward_signal, asyncio.get_event_loop())
        try:
            status = await self._working
        except asyncio.CancelledError:
            end.set_signal(self._signal)
            status = SIGNAL_STATUS_BASE + self._signal
        finally:
            if self._rendezvous is not None:
                await self._rendezvous.end(self._connections, status)
            await _close_connections(self._connections)
            status = await self._wait_until_printed(status)
        return status

    async def _wait_until_printed(self, status: int) -> int:
        """Wait until all output is printed, and return the exit status.

        After a signal, stop waiting if no line has been printed for STUCK_READER_S seconds.
        """
        count, last_change = self._listener.pending_lines, time.monotonic()
        while self._listener.pending_lines:
            await asyncio.sleep(0.01)
            if not self._signal or count != self._listener.pending_lines:
                count, last_change = self._listener.pending_lines, time.monotonic()
            elif time.monotonic() - last_change > STUCK_READER_S:
                return status or SIGNAL_STATUS_BASE + self._signal
        return status

    async def _connect_to_all(self) -> None:
        """Connect to the agents of all hosts.

        If a scheduler has started the processes, the other ranks are the agents. These ranks
        connect to this process.
        """
        request = self._request
        if request.membership is None:
            self._add_connections(await self._connect(request.hosts))
            return
        self._add_connections(await self._connect([LOCAL_HOST._replace(slots=1)]))
        self._rendezvous = Rendezvous(request.membership, request.ssh_options, self._inbox, self._forward_signal)
        await self._rendezvous.listen()
        self._add_connections(await self._rendezvous.wait_for_ranks(range(1, request.membership.size)))

    def _add_connections(self, results: Sequence[Union[AgentConnection, RunError]]) -> None:
        """Store the connections among ``results``, and then raise the first error, if any."""
        self._connections += [result for result in results if isinstance(result, AgentConnection)]
        for result in results:
            if isinstance(result, RunError):
                raise result

    def _forward_signal(self, number: int) -> None:
        """Forward a signal to the running workers. If no worker is running, stop the launcher."""
        self._signal = self._signal or number
        if self._attempt is not None:
            self._attempt.forward(number)
        elif self._working is not None:
            self._working.cancel()

    async def _run_attempts(self) -> int:
        """Run attempts until one succeeds or no restarts are left, and return the exit status."""
        await self._connect_to_all()
        restarts_left, workers = self._request.restarts, self._request.workers
        while True:
            failure = await self._run_attempt(workers)
            if failure is None:
                return 0
            if self._signal or not restarts_left or not failure.is_retryable:
                return self._report_failure(failure)
            restarts_left -= 1
            lost = [connection for connection in self._connections if connection.loss_reason is not None]
            also = "".join(
                f", and host {connection.host.name} is lost"
                for connection in lost
                if failure.source != f"host {connection.host.name}"
            )
            source = "" if is_program(self._words) else " from the last checkpoint"
            self._listener.on_note(f"warning: {failure}{also}: restarting{source}")
            workers = await self._reconnect(lost)

    async def _run_attempt(self, workers: int) -> Optional[AttemptFailure]:
        """Run an attempt, and return its failure, or None on success.

        If another process takes the scheduler's port, run the attempt again with another port.
        """
        root, request = self._connections[0], self._request
        for attempts_left in reversed(range(PORT_ATTEMPTS)):
            port = await self._reserve_port(root)
            if port is None:
                return AttemptFailure(f"host {root.host.name}", root.loss_reason or "")
            failure = await self._run_attempt_on_port(port, workers)
            if failure is None or self._signal or not failure.port_is_taken:
                return failure
            if request.port is not None:
                raise ConfigError(_port_error(port, root, os.strerror(errno.EADDRINUSE)))
            if attempts_left:
                self._listener.on_note(
                    f"warning: another process took port {port} of {root.host.name} before the "
                    "scheduler could use it: trying another port"
                )
        raise RunError(
            _port_error(None, root, f"other processes took {PORT_ATTEMPTS} ports before the scheduler could use them")
        )

    async def _reserve_port(self, root: AgentConnection) -> Optional[int]:
        """Make the agent ``root`` reserve a port on its host for the scheduler. Return the port.

        The agent keeps the port reserved until the scheduler listens on it. Returns None if the
        host is lost. Raises ConfigError if the requested port is taken.
        """
        requested, deadline = self._request.port, liveness_clock() + self._request.ssh_options.patience
        root.send(port=requested or 0)
        while root.loss_reason is None:
            connection, message = await next_message(self._inbox, BEAT_S) or (None, {})
            if liveness_clock() > deadline:
                root.mark_lost("does not answer")
            elif "signal" in message:  # to a process that a scheduler has started
                self._forward_signal(message["signal"])
            elif connection is root and "port_error" in message:
                raise ConfigError(_port_error(requested, root, message["port_error"]))
            elif connection is root and "port" in message:
                return int(message["port"])
        return None

    async def _run_attempt_on_port(self, port: int, workers: int) -> Optional[AttemptFailure]:
        """Run one attempt with the scheduler at ``port``. Return its failure; None on success."""
        request, hosts = self._request, [connection.host for connection in self._connections]
        rank_hosts = assign_ranks(workers, hosts)  # the host of each rank, as an index into ``hosts``
        sites = _connection_addresses(self._connections, named=request.membership is None)
        # one server host per name, even if the host has several agents
        host_by_name = {sites[host].name: host for host in reversed(server_hosts(hosts, rank_hosts))}
        candidates = sorted(host_by_name.values())
        servers = [candidates[n % len(candidates)] for n in range(request.servers or len(candidates))]
        first = hosts[rank_hosts[0]].name
        variables = {**forwarded_environment(request.variable_names), COMMAND_VARIABLE: request.command}
        if self._previous_host not in ("", first):
            variables[PREVIOUS_HOST_VARIABLE] = self._previous_host
        processes = parts(request.backend, self._words, rank_hosts, servers, sites, port, request.settings)
        self._attempt = LaunchAttempt(
            processes,
            self._connections,
            self._inbox,
            self._forward_line,
            request.ssh_options.patience,
            working_folder(),
            variables,
        )
        try:
            return await self._attempt.run()
        finally:
            if self._attempt.has_joined:
                self._previous_host = self._previous_host or first
            self._has_trained = self._has_trained or self._attempt.has_begun
            self._signal = self._signal or self._attempt.signal
            self._attempt = None

    def _forward_line(self, process: str, stream: str, text: str, printed: Callable[[], Any]) -> None:
        """Forward a line to the listener, with a callback that may be called from any thread."""
        loop = asyncio.get_event_loop()

        def call_printed() -> None:
            if not loop.is_closed():
                with suppress(RuntimeError):  # closed in the meantime
                    loop.call_soon_threadsafe(printed)

        self._listener.on_line(process, stream, text, call_printed)

    async def _reconnect(self, lost: Sequence[AgentConnection]) -> int:
        """Reconnect to the lost hosts, and return the number of workers of the next attempt.

        With --min-np, continue without the hosts that cannot be reached. Otherwise, raise RunError
        for these hosts. If the workers train a run, add --autoresume to its options.
        """
        request = self._request
        resume_options = {AUTORESUME_OPTION, "--resume"} & {word.partition("=")[0] for word in self._words}
        if not resume_options and not is_program(self._words):
            self._words.append(AUTORESUME_OPTION)
        await _close_connections(lost)
        if self._rendezvous is None:
            results = await self._connect([connection.host for connection in lost])
        else:  # the scheduler may start them again
            results = await self._rendezvous.wait_for_ranks([connection.rank or 0 for connection in lost])
        replacement = dict(zip(lost, results))
        connections = [replacement.get(connection, connection) for connection in self._connections]
        self._connections = [connection for connection in connections if isinstance(connection, AgentConnection)]
        errors = [str(result) for result in results if isinstance(result, RunError)]
        self._is_whole = self._is_whole and not errors
        workers = min(total_capacity(connection.host for connection in self._connections), request.workers)
        if self._is_whole:
            return request.workers
        if request.min_workers is None or workers < request.min_workers:
            if request.min_workers is not None:
                left_text = "1 worker is left" if workers == 1 else f"{workers} workers are left"
                errors.append(f"{left_text}, but --min-np is {request.min_workers}")
            raise RunError("; ".join(dict.fromkeys(errors)))
        for error in dict.fromkeys(errors):
            self._listener.on_note(f"warning: {error}: continuing with {workers} workers")
        return workers

    async def _connect(self, hosts: Sequence[Host]) -> List[Union[AgentConnection, RunError]]:
        """Start an agent on each host. Return a connection or an error for each host."""
        connections = [AgentConnection(host, self._request.ssh_options) for host in hosts]
        opening = asyncio.gather(*(connection.open(self._inbox) for connection in connections), return_exceptions=True)
        try:
            results = await opening
        except asyncio.CancelledError:
            await _close_connections(connections)
            raise
        unexpected = [error for error in results if isinstance(error, Exception) and not isinstance(error, RunError)]
        if unexpected:
            await _close_connections(connections)
            raise unexpected[0]
        errors = [error if isinstance(error, RunError) else None for error in results]
        return [error or connection for connection, error in zip(connections, errors)]

    def _report_failure(self, failure: AttemptFailure) -> int:
        """Print the reason for an attempt's failure, and return the exit status."""
        if failure.reason:
            if failure.is_death and failure.lines:
                self._listener.on_note(f"the last lines of {failure.source}:")
                for line in failure.lines:
                    self._listener.on_note(line)
            self._listener.on_note(f"error: {failure}")
        elif not self._has_trained:
            name = signal.Signals(failure.status - SIGNAL_STATUS_BASE).name
            self._listener.on_note(f"ended by {name} before the training started")
        return failure.status


async def _close_connections(connections: Sequence[AgentConnection]) -> None:
    for connection in connections:
        connection.close()
    await asyncio.gather(*(connection.wait_closed() for connection in connections))


def _port_error(requested: Optional[int], root: AgentConnection, reason: str) -> str:
    """Return the error message for a requested port that is not available.

    ``requested`` is None if no free port was found. ``root`` is the agent on the scheduler's host.
    """
    if requested is None:
        return f"no port is available on {root.host.name} ({reason}): choose one with --port"
    return f"--port {requested} is not available on {root.host.name} ({reason}): choose another port, or omit --port"


# --- Addresses at which the hosts of a group reach each other


def _connection_addresses(connections: Sequence[AgentConnection], named: bool) -> List[Site]:
    """Return the name of each connection's host, and the address at which other hosts reach it.

    The address comes from the ssh or TCP connection. An agent on the launcher's own host may be
    connected over loopback, which other hosts cannot reach. In this case, the result contains the
    launcher's address.

    ``named``: whether to use the hostnames that the user gave, instead of the hosts' own names
    """
    launcher_address = _first_reachable(connection.launcher_address for connection in connections) or LOOPBACK
    sites = []
    for connection in connections:
        address = _first_reachable([connection.address, launcher_address]) or LOOPBACK
        name = connection.host.name if named else connection.hostname
        sites.append(Site(name, address, connection.interfaces.get(address, "")))
    return sites


def _first_reachable(addresses: Iterable[Optional[str]]) -> Optional[str]:
    """Return the first non-loopback address, or else the first address; None if all are None."""
    known = [address for address in addresses if address]
    return next((address for address in known if not is_loopback(address)), next(iter(known), None))
