"""Launches a group in a job whose processes a scheduler such as srun has already started.

Rank 0 is the launcher, and the other ranks are its agents. The agents connect to rank 0 over TCP.
For safety, an agent starts only a server, or a worker with the same options as the agent itself
(`gluonlab.launch.group_processes.allowed_variables`).
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from typing import Any, Callable, Dict, List, Mapping, Sequence, Tuple, Union

from gluonlab.errors import ConfigError, RunError
from gluonlab.host.signals import StopRequest
from gluonlab.launch.agent_connections import AgentConnection, SshOptions, first_message
from gluonlab.launch.agent_messages import (
    AGENT_MESSAGES,
    BEAT_S,
    MAX_MESSAGE_BYTES,
    BadMessage,
    Message,
    ReceivedMessage,
    liveness_clock,
    next_message,
    receive_messages,
    run_with_timeout,
)
from gluonlab.launch.group_processes import RANK_VARIABLE, allowed_variables
from gluonlab.launch.host_agent import HostAgent
from gluonlab.launch.hosts import Host
from gluonlab.launch.launch_attempt import SIGNAL_STATUS_BASE
from gluonlab.launch.process_membership import Membership
from gluonlab.launch.user_program import is_program

RETRY_PAUSE_S = 0.2  # seconds between two attempts to reach rank 0
# Timeout of one attempt to connect. It must be less than MAX_TICK_S, so that the liveness clock
# counts all of it.
CONNECT_TIMEOUT_S = 1.0
GREETING_TIMEOUT_S = 5.0  # seconds within which a connected process must send its rank


class Rendezvous:
    """The server on rank 0, to which the other ranks connect.

    Args:
        membership: membership of rank 0
        ssh_options: connection settings, of which only the timeout is used
        inbox: queue for the messages of the other ranks
        on_signal: called with the signal number when another rank has received a signal
    """

    def __init__(
        self,
        membership: Membership,
        ssh_options: SshOptions,
        inbox: asyncio.Queue[ReceivedMessage],
        on_signal: Callable[[int], None],
    ) -> None:
        self._membership, self._ssh_options, self._inbox, self._on_signal = membership, ssh_options, inbox, on_signal
        # connections by rank that `wait_for_ranks` has not returned yet
        self._connected: Dict[int, AgentConnection] = {}
        self._strangers = 0  # number of refused connections
        self._server: Any = None

    async def listen(self) -> None:
        """Start listening. Raises ConfigError if the port is taken."""
        is_single_host = self._membership.root == "127.0.0.1"
        address, port = "127.0.0.1" if is_single_host else "0.0.0.0", self._membership.port
        try:
            self._server = await asyncio.start_server(self._accept_rank, address, port, limit=MAX_MESSAGE_BYTES)
        except OSError as error:
            raise ConfigError(
                f"port {port} is not available ({_system_message(error)}): set another port for "
                "all processes, such as GLUONLAB_PORT=23456"
            ) from None

    async def wait_for_ranks(self, numbers: Sequence[int]) -> List[Union[AgentConnection, RunError]]:
        """Wait until these ranks have connected. Return a connection or an error for each rank."""
        deadline = liveness_clock() + self._ssh_options.patience
        while self._missing_ranks(numbers) and (left := deadline - liveness_clock()) > 0:
            _, message = await next_message(self._inbox, min(left, BEAT_S)) or (None, {})
            if "signal" in message:
                self._on_signal(message["signal"])
        missing, unknown_text = self._missing_ranks(numbers), ""
        if self._strangers:
            unknown_text = f"; {self._strangers} other connections were refused"
        error = RunError(
            f"{self._membership.launcher} started {self._membership.size} processes, but rank "
            f"{', '.join(map(str, missing))} did not connect to rank 0 within "
            f"{self._ssh_options.patience:g} s: check that it started and can reach port "
            f"{self._membership.port}{unknown_text}"
        )
        return [error if rank in missing else self._connected.pop(rank) for rank in numbers]

    def _missing_ranks(self, numbers: Sequence[int]) -> List[int]:
        """Return the ranks among ``numbers`` that are not connected, in ascending order."""
        connected = {rank for rank, connection in self._connected.items() if connection.loss_reason is None}
        return sorted(set(numbers) - connected)

    async def end(self, connections: Sequence[AgentConnection], status: int) -> None:
        """Send the exit status to all ranks, and close the server and the unused connections."""
        if self._server is not None:
            self._server.close()
        for connection in [*connections, *self._connected.values()]:
            connection.send(exit_status=status)
        await asyncio.sleep(RETRY_PAUSE_S)  # so that the message arrives before the connection ends
        for connection in self._connected.values():
            connection.close()

    async def _accept_rank(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Accept a connection from a rank that is missing. Refuse all other connections.

        If two processes have the same rank, the first to connect is accepted.
        """
        hello: Message = {}
        with suppress(asyncio.TimeoutError, BadMessage):
            hello = await run_with_timeout(GREETING_TIMEOUT_S, first_message(receive_messages(reader, AGENT_MESSAGES)))
        rank, size = hello.get("rank", 0), hello.get("size")
        if not 0 < rank < self._membership.size or size != self._membership.size or not self._missing_ranks([rank]):
            self._strangers += 1
            writer.close()
            return
        hello["address"] = writer.get_extra_info("peername")[0]
        hello["launcher_address"] = writer.get_extra_info("sockname")[0]
        connection = AgentConnection(Host(hello["hostname"], 1), self._ssh_options, writer, rank)
        connection.start_listening(reader, hello, self._inbox)
        self._connected[rank] = connection
        self._inbox.put_nowait((connection, hello))  # wakes `wait_for_ranks`


async def _connect_to_rank_0(
    membership: Membership, root: str, patience: float
) -> "Tuple[asyncio.StreamReader, asyncio.StreamWriter]":
    """Connect to rank 0 at ``root``. Rank 0 may start later than this process.

    Raises RunError after ``patience`` seconds.
    """
    deadline, reason = liveness_clock() + patience, "no answer"
    while (left := deadline - liveness_clock()) > 0:
        opening = asyncio.open_connection(root, membership.port, limit=MAX_MESSAGE_BYTES)
        try:
            return await run_with_timeout(min(left, CONNECT_TIMEOUT_S), opening)
        except asyncio.TimeoutError:
            reason = "no answer"
        except OSError as error:
            reason = _system_message(error)
        await asyncio.sleep(RETRY_PAUSE_S)
    raise RunError(
        f"rank {membership.rank} could not connect to rank 0 at {root}:{membership.port} within "
        f"{patience:g} s ({reason}): check that rank 0 started and that its port is open, or set "
        "GLUONLAB_MASTER_ADDR and GLUONLAB_PORT for all processes"
    )


def _system_message(error: OSError) -> str:
    """Return the operating system's message for an error, instead of asyncio's message.

    Hostname lookup errors have no system error number, so their own message is returned.
    """
    number = error.errno or 0
    return os.strerror(number) if number > 0 else error.strerror or str(error)


def serve_rank_0(
    membership: Membership, backend: str, words: Sequence[str], patience: float, settings: Mapping[str, str]
) -> int:
    """Run the process that rank 0 requests, and return the exit status that rank 0 sends.

    A signal that arrives before this process has connected to rank 0 raises an exception. Later
    signals are forwarded to rank 0.

    Args:
        membership: this process's membership
        backend: see --backend
        words: the options of the run, or a program
        patience: seconds to wait for rank 0
        settings: environment variables for workers, from this process's own options

    Raises:
        RunError: if rank 0 cannot be reached or disappears
    """
    with StopRequest() as request:
        return asyncio.run(_serve_rank_0(membership, backend, words, patience, settings, request))


async def _serve_rank_0(
    membership: Membership,
    backend: str,
    words: Sequence[str],
    patience: float,
    settings: Mapping[str, str],
    request: StopRequest,
) -> int:
    """Connect to rank 0, and serve it as an agent, which starts and stops this rank's process.

    For the arguments, see `serve_rank_0`.
    """
    root = membership.root or "127.0.0.1"
    connecting = asyncio.ensure_future(_connect_to_rank_0(membership, root, patience))

    def stop_connecting(number: int) -> None:
        request.set_signal(number)
        connecting.cancel()

    request.call_on_signals(stop_connecting, asyncio.get_event_loop())
    with suppress(asyncio.CancelledError):
        streams = await connecting
    if request.number is not None:
        return SIGNAL_STATUS_BASE + request.number

    def check_request(message: Message) -> Message:
        """Return the permitted part of rank 0's request to start a process.

        Raises ConfigError for a process that is not part of this group.
        """
        group = allowed_variables(message["words"], message["environment"], backend, words)
        if RANK_VARIABLE in group:
            group.update(settings)
        overrides = {"folder": os.getcwd(), "program": RANK_VARIABLE in group and is_program(words)}  # noqa: PTH109
        return {**message, "environment": group, **overrides}

    agent = HostAgent(*streams, hello={"rank": membership.rank, "size": membership.size}, check_request=check_request)
    request.call_on_signals(lambda number: agent.send(signal=number), asyncio.get_event_loop())
    await agent.serve()
    if agent.message_error is not None:
        raise RunError(f"rank {membership.rank}: rank 0 at {root} {agent.message_error}")
    if agent.status is None:
        raise RunError(f"rank {membership.rank}: lost the connection to rank 0 at {root}")
    return agent.status
