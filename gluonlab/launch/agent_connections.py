"""The launcher's connections to its agents: by pipes on this host, by ssh to other hosts."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import sys
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

from gluonlab.errors import RunError
from gluonlab.host.child_processes import OWN_GROUP_OPTIONS, add_gluonlab_path, signal_group
from gluonlab.launch.agent_messages import (
    AGENT_MESSAGES,
    BEAT_S,
    MAX_MESSAGE_BYTES,
    BadMessage,
    Message,
    ReceivedMessage,
    liveness_clock,
    read_lines,
    receive_messages,
    run_with_timeout,
    send_message,
)
from gluonlab.launch.host_agent import SSH_VARIABLE, UNPRINTED_LIMIT, line_cost
from gluonlab.launch.hosts import Host
from gluonlab.plain_text import one_line

AGENT_ARGUMENTS = ["-m", "gluonlab.launch.host_agent"]
MAX_UNPRINTED_LETTERS = 2**26  # an agent that sends more has ignored UNPRINTED_LIMIT
KEPT_STDERR_LINES = 10  # last lines of stderr that are kept


class SshOptions(NamedTuple):
    """Connection settings: the ssh command, the Python command on other hosts, and the timeout.

    ``patience`` is the timeout: the longest time to wait for a heartbeat, in seconds (--timeout).
    """

    ssh: Sequence[str] = ("ssh",)
    python: str = sys.executable
    patience: float = 30.0


class AgentConnection:
    """A connection of the launcher to an agent.

    Attributes:
        host: the agent's host
        rank: the agent's rank if a scheduler has started the agent; else None
        loss_reason: the reason why the agent is lost for good; None while the agent is not lost
        address: the address at which the connection reaches the agent's host; None if unknown
        launcher_address: the launcher's address, as the agent's host sees it; None if unknown
        interfaces: the names of the host's network interfaces, by IPv4 address
        hostname: the hostname that the agent reports for its host
    """

    def __init__(
        self,
        host: Host,
        ssh_options: SshOptions,
        writer: Optional[asyncio.StreamWriter] = None,
        rank: Optional[int] = None,
    ) -> None:
        """Initialize a connection without starting the agent.

        Args:
            host: the agent's host
            ssh_options: the ssh command, the Python command and the timeout
            writer: a stream to the agent, if the agent has already connected to the launcher. In
                this case, call `start_listening` instead of `open`.
            rank: the agent's rank, if a scheduler has started the agent
        """
        self.host, self._ssh_options, self.rank = host, ssh_options, rank
        self.loss_reason: Optional[str] = None
        self.address: Optional[str] = None
        self.launcher_address: Optional[str] = None
        self.interfaces: Dict[str, str] = {}
        self._inbox: asyncio.Queue[ReceivedMessage] = asyncio.Queue()
        self._heard = liveness_clock()  # time of the agent's last message
        self._process: Optional[asyncio.subprocess.Process] = None  # the agent, or its ssh
        self._writer = writer
        self._tasks: List["asyncio.Future[Any]"] = []
        self._stderr_lines: List[str] = []
        # letters that were received and not acknowledged; of these, the letters already printed
        self._unprinted = self._printed = 0
        self._pid, self.hostname = 0, host.name

    async def open(self, inbox: asyncio.Queue[ReceivedMessage]) -> None:
        """Start the agent, and put its messages into ``inbox``. Raises RunError."""
        command = self._agent_command()
        try:
            self._process = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE, limit=MAX_MESSAGE_BYTES, env=self._environment(), **OWN_GROUP_OPTIONS,
            )  # fmt: skip
        except OSError as error:
            raise RunError(f"cannot start {command[0]} ({error.strerror})") from None
        assert self._process.stdin and self._process.stdout and self._process.stderr
        self._writer = self._process.stdin
        self._tasks = [asyncio.ensure_future(self._read_stderr(self._process.stderr))]
        reason, remedy = "", "" if self.host.is_local else f": check the connection with {shlex.join(command)}"
        try:
            greeting = first_message(receive_messages(self._process.stdout, AGENT_MESSAGES))
            hello = await run_with_timeout(self._ssh_options.patience, greeting)
        except asyncio.TimeoutError:
            hello = {}
        except BadMessage as error:  # the remote shell has printed text before the first message
            hello, reason = {}, f"its shell prints {error.description} before the agent starts"
            remedy = ": print nothing in non-interactive shells, for example with [ -t 1 ] in ~/.bashrc"
        if "hostname" not in hello:
            reason = reason or await self._last_stderr_line() or "it does not answer"
            self.close()
            await self.wait_closed()
            raise RunError(f"host {self.host.name}: cannot start the agent: {one_line(reason)}{remedy}")
        self.start_listening(self._process.stdout, hello, inbox)

    def start_listening(
        self, reader: asyncio.StreamReader, hello: Message, inbox: asyncio.Queue[ReceivedMessage]
    ) -> None:
        """Start the tasks that put the agent's messages into ``inbox`` and send heartbeats.

        ``hello`` is the agent's first message.
        """
        self._pid, self.interfaces, self.hostname = hello["pid"], hello["addresses"], hello["hostname"]
        self.address, self.launcher_address = hello.get("address"), hello.get("launcher_address")
        self._heard, self._inbox = liveness_clock(), inbox
        self._tasks += [asyncio.ensure_future(self._listen(reader)), asyncio.ensure_future(self._send_heartbeats())]
        self.send(patience=self._ssh_options.patience / 2)

    @property
    def silent_s(self) -> float:
        """The number of seconds since the agent's last message."""
        return liveness_clock() - self._heard

    def send(self, **message: Any) -> None:
        """Send a message to the agent, if it is still connected."""
        if self._writer is not None:
            send_message(self._writer, **message)

    def mark_lost(self, reason: str) -> None:
        """Mark the agent as lost, and put a message with the reason into the inbox."""
        if self.loss_reason is None:
            self.loss_reason = reason
            self._inbox.put_nowait((self, {"loss_reason": reason}))

    def acknowledge_printed(self, line: str) -> None:
        """Count a line as printed or dropped.

        After enough lines, allow the agent to send more output.
        """
        self._printed += line_cost(line)
        if self._printed > UNPRINTED_LIMIT // 4:
            self._unprinted -= self._printed
            self.send(printed=self._printed)
            self._printed = 0

    def close(self) -> None:
        """Close the connection. The agent then exits and kills all of its processes."""
        for task in self._tasks:
            task.cancel()
        if self._writer is not None:
            self._writer.close()
        # Popen.kill would reap the process, and asyncio could not wait for its exit status.
        if self._process is not None and self._process.returncode is None:
            signal_group(self._process.pid, signal.SIGKILL)  # includes children of ssh

    async def kill(self) -> None:
        """Close the connection, and kill an agent on another host over a new ssh connection.

        The agent keeps running if its host cannot be reached.
        """
        self.close()
        if self._process is not None and not self.host.is_local and self._pid:
            # The pid may belong to another process by now.
            is_agent = f"grep -q {AGENT_ARGUMENTS[-1]} /proc/{self._pid}/cmdline"
            command = [*self._ssh_command(), f"{is_agent} && kill -{signal.SIGKILL} {self._pid}"]
            killing = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL, **OWN_GROUP_OPTIONS,
            )  # fmt: skip
            try:
                await run_with_timeout(5, killing.wait())
            except asyncio.TimeoutError:
                signal_group(killing.pid, signal.SIGKILL)
                await killing.wait()

    async def wait_closed(self) -> None:
        """Wait until the agent's process has exited."""
        if self._process is not None:
            await self._process.wait()

    def _agent_command(self) -> List[str]:
        """Return the command that starts the agent, on this host or by ssh."""
        if self.host.is_local:
            return [sys.executable, *AGENT_ARGUMENTS]
        path = add_gluonlab_path({})["PYTHONPATH"]
        agent = ["env", f"PYTHONPATH={path}", self._ssh_options.python, *AGENT_ARGUMENTS]
        return [*self._ssh_command(), shlex.join(agent)]  # ssh passes one string to the remote shell

    def _environment(self) -> Dict[str, str]:
        """Return the environment variables for starting the agent or ssh."""
        environment = add_gluonlab_path(os.environ)
        if self.host.is_local:
            environment.pop(SSH_VARIABLE, None)  # it describes this shell's connection
        return environment

    def _ssh_command(self) -> List[str]:
        options = ["BatchMode=yes", "ConnectTimeout=10", "ServerAliveInterval=5"]
        return [*self._ssh_options.ssh, *(word for option in options for word in ("-o", option)), "--", self.host.name]

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        """Put the agent's messages into the inbox. When the stream ends, mark the agent as lost."""
        try:
            async for message in receive_messages(reader, AGENT_MESSAGES):
                self._heard = liveness_clock()
                if "line" in message and message["stream"] != "status":
                    self._unprinted += line_cost(message["line"])
                    if self._unprinted > MAX_UNPRINTED_LETTERS:
                        self.mark_lost("sends output faster than it is printed")
                        return
                if "heartbeat" not in message:
                    self._inbox.put_nowait((self, message))
        except BadMessage as error:
            self.mark_lost(str(error))
            return
        last_line = await self._last_stderr_line()
        self.mark_lost("has closed the connection" + (f": {one_line(last_line)}" if last_line else ""))

    async def _send_heartbeats(self) -> None:
        """Send a heartbeat every BEAT_S seconds until this task is cancelled."""
        while True:
            liveness_clock()  # a call at least every BEAT_S, so that the clock counts this time
            self.send(heartbeat=True)
            await asyncio.sleep(BEAT_S)

    async def _read_stderr(self, reader: asyncio.StreamReader) -> None:
        async for line in read_lines(reader):
            self._stderr_lines = [*self._stderr_lines[1 - KEPT_STDERR_LINES :], line.strip()]

    async def _last_stderr_line(self) -> str:
        """Return the last line of stderr, which usually contains the error of ssh or the agent."""
        if self._process is not None:
            await asyncio.wait(self._tasks[:1], timeout=1)
        return next(filter(None, reversed(self._stderr_lines)), "")


async def first_message(messages: Any) -> Message:
    """Return the first message of an asynchronous iterator, or ``{}`` if there is no message."""
    async for message in messages:
        return dict(message)
    return {}
