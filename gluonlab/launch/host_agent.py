"""The launcher's agent on one host, which starts and stops processes on this host.

The agent sends the output and the exit status of its processes to the launcher. If the connection
ends, or if the launcher is silent for too long, the agent kills its processes and exits. If the
agent itself is killed, the kernel kills its processes (PR_SET_PDEATHSIG).
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import stat
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List, Optional, Set

from gluonlab.engine.parameter_server_role import ROLE_VARIABLE
from gluonlab.errors import ConfigError
from gluonlab.host.child_processes import prepare_command_process, prepare_program_process, signal_group
from gluonlab.launch.agent_messages import (
    BEAT_S,
    LAUNCHER_MESSAGES,
    LINE_PIECE_BYTES,
    MAX_MESSAGE_BYTES,
    BadMessage,
    Message,
    liveness_clock,
    read_lines,
    receive_messages,
    send_message,
)
from gluonlab.launch.group_processes import NODE_PORT_VARIABLE, STATUS_FD_VARIABLE, inherited_environment
from gluonlab.launch.ports_and_addresses import ipv4_addresses, reserve_port, reserve_port_above
from gluonlab.launch.user_program import describe_start_error

TERMINATION_GRACE_S = 5.0  # seconds that processes have to exit after SIGTERM
# If more letters than this are sent to the launcher but not printed yet, processes have to wait.
UNPRINTED_LIMIT = 2**18
SSH_VARIABLE = "SSH_CONNECTION"  # set by sshd: the client's address and port, and the server's


class HostAgent:
    """An agent that serves one launcher over a pair of streams.

    After `serve`, ``status`` is the exit status that the launcher has sent; None if the launcher
    has disappeared. ``message_error`` is the error that an invalid message caused, or None.

    Args:
        reader: stream of messages from the launcher
        writer: stream of messages to the launcher
        hello: additional fields for the agent's first message, such as its rank
        check_request: called with each request to start a process. The function returns the
            permitted part of the request, or raises ConfigError.
        parent: pid of the launcher, if it is on this host. While the launcher is stopped, its
            silence does not count.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        hello: Optional[Message] = None,
        check_request: Callable[[Message], Message] = dict,
        parent: Optional[int] = None,
    ) -> None:
        self._reader, self._writer = reader, writer
        self._hello, self._check_request, self._parent = hello or {}, check_request, parent
        self.status: Optional[int] = None
        self.message_error: Optional[BadMessage] = None
        self._processes: Dict[str, asyncio.subprocess.Process] = {}
        self._port_sockets: Dict[str, socket.socket] = {}  # the reserved ports of programs
        self._programs: Set[str] = set()  # names of the user's own programs
        self._released: Set[str] = set()  # processes that are ending; their output is not delayed
        self._tasks: "set[asyncio.Future[Any]]" = set()
        self._port: Optional[socket.socket] = None  # reserved for a scheduler
        # letters sent to the launcher but not printed yet; event: the launcher has printed some
        self._unprinted, self._printed_event = 0, asyncio.Event()
        self._heard = liveness_clock()  # time of the launcher's last message
        self._patience = 30.0  # longest silence of the launcher in seconds

    async def serve(self) -> None:
        """Handle the launcher's messages until the connection ends or the launcher times out."""
        hello = {"hostname": socket.gethostname(), "pid": os.getpid(), "addresses": ipv4_addresses()}
        ssh = os.environ.get(SSH_VARIABLE, "").split()
        if len(ssh) == 4:
            hello.update(launcher_address=ssh[0], address=ssh[2])  # as sshd sees them
        send_message(self._writer, **{**hello, **self._hello})
        watching = asyncio.ensure_future(self._watch_launcher())
        listening = asyncio.ensure_future(self._listen())
        try:
            await asyncio.wait({watching, listening}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for process in self._processes.values():
                signal_group(process.pid, signal.SIGKILL)
            self._free_port()
            for port_socket in self._port_sockets.values():
                port_socket.close()
            for task in [watching, listening, *self._tasks]:
                task.cancel()
            self._writer.close()

    async def _listen(self) -> None:
        """Handle the launcher's messages until the connection ends or a message is invalid."""
        try:
            async for message in receive_messages(self._reader, LAUNCHER_MESSAGES):
                self._heard = liveness_clock()
                await self._handle_message(message)
        except BadMessage as error:
            self.message_error = error

    async def _handle_message(self, message: Message) -> None:
        """Handle a message from the launcher. `agent_messages.LAUNCHER_MESSAGES` lists the keys."""
        if "patience" in message:
            self._patience = message["patience"]
        elif "port" in message:
            self._reserve_port(message["port"])
        elif "start" in message:
            await self._start_process(message)
        elif "printed" in message:
            self._unprinted -= message["printed"]
            self._printed_event.set()
        elif "signal" in message:
            for name in message["processes"]:
                if name in self._processes:
                    # Ctrl-C also goes to a program's children, as from a terminal.
                    pid = self._processes[name].pid
                    to_all = name in self._programs and message["signal"] == signal.SIGINT
                    signal_it = signal_group if to_all else _signal_process
                    signal_it(pid, message["signal"])
            # Otherwise a process that waits until its output is printed could not exit.
            self._release_output(message["processes"])
        elif "end" in message:
            self._run_in_background(self._stop_processes())
        elif "exit_status" in message:
            self.status = message["exit_status"]

    def send(self, **message: Any) -> None:
        """Send a message to the launcher."""
        send_message(self._writer, **message)

    def _reserve_port(self, port: int) -> None:
        """Reserve a port for the next scheduler, and free the previous scheduler's port."""
        self._free_port()
        self._port, message = reserve_port(port)
        send_message(self._writer, **message)

    def _free_port(self) -> None:
        if self._port is not None:
            self._port.close()
            self._port = None

    async def _start_process(self, message: Message) -> None:
        """Start the process that a ``start`` message describes, and forward its output.

        If the process cannot be started, report its end to the launcher with the reason.
        """
        name, pipes, is_program = message["start"], {}, False
        try:
            message = self._check_request(message)
            if name in self._processes:
                raise ConfigError(f"{name} is already running")
            pipes = {stream: os.pipe() for stream in ("out", "err", "status")}
            out, err, status_fd = (write_end for _, write_end in pipes.values())
            is_program = message.get("program", False)
            command = message["words"] if is_program else [sys.executable, *message["words"]]
            environment = {**inherited_environment(), **message["environment"]}
            if not is_program:
                environment[STATUS_FD_VARIABLE] = str(status_fd)
            elif environment.get(ROLE_VARIABLE) == "worker" and NODE_PORT_VARIABLE not in environment:
                environment.update(self._reserve_node_port(name))
            process = await asyncio.create_subprocess_exec(
                *command, env=environment, stdin=asyncio.subprocess.DEVNULL, stdout=out, stderr=err,
                pass_fds=() if is_program else [status_fd], cwd=message["folder"], start_new_session=True,
                preexec_fn=prepare_program_process if is_program else prepare_command_process,
            )  # fmt: skip
        except (ConfigError, OSError) as error:
            is_mistake = is_program or isinstance(error, ConfigError)
            if is_program and isinstance(error, OSError):
                reason = f"error: {describe_start_error(command[0], Path(message['folder']), error)}"
            else:
                reason = f"error: {error}" if is_mistake else f"cannot be started ({error})"
            send_message(self._writer, process=name, exit_status=1 + is_mistake, error=reason)
            for read_end, _ in pipes.values():
                os.close(read_end)
            return
        finally:
            for _, write_end in pipes.values():
                os.close(write_end)
        self._processes[name] = process
        if is_program:
            self._programs.add(name)
        self._released.discard(name)
        forwarding = [
            self._run_in_background(self._forward_output(name, stream, read_end))
            for stream, (read_end, _) in pipes.items()
        ]
        self._run_in_background(self._report_end(name, process, forwarding))

    def _reserve_node_port(self, name: str) -> Dict[str, str]:
        """Reserve a port for MXNet in the program ``name``.

        Return the variable that sets this port.

        Each program gets a higher port than the previous programs, because MXNet's scheduler
        numbers the workers on a host in the order of their ports.
        """
        ports = [reserved.getsockname()[1] for reserved in self._port_sockets.values()]
        last = max(ports, default=0)
        port_socket, port = reserve_port_above(last)
        if port_socket is None:
            return {}
        self._port_sockets[name] = port_socket
        return {NODE_PORT_VARIABLE: str(port)}

    async def _forward_output(self, name: str, stream: str, descriptor: int) -> None:
        """Forward the output of a process to the launcher, line by line.

        Forwarding pauses while more than UNPRINTED_LIMIT characters have not been printed yet.
        After a process has exited or is being stopped, its output is forwarded without pauses,
        because the output may contain the reason for the exit.

        Args:
            name: name of the process
            stream: ``out``, ``err``, or ``status`` for the statuses that the process reports
            descriptor: file descriptor from which the output is read
        """
        reader, transport = await _open_reader(descriptor, LINE_PIECE_BYTES)
        try:
            async for text in read_lines(reader):
                if stream != "status":
                    while self._unprinted > UNPRINTED_LIMIT and name not in self._released:
                        self._printed_event.clear()
                        await self._printed_event.wait()
                    self._unprinted += line_cost(text)
                send_message(self._writer, process=name, stream=stream, line=text)
                await self._drain_writer()
        finally:
            transport.close()

    def _release_output(self, names: Iterable[str]) -> None:
        """Stop limiting the output of these processes, because they are about to exit."""
        self._released.update(names)
        self._printed_event.set()

    async def _report_end(self, name: str, process: Any, forwarding: List[Any]) -> None:
        """Wait until a process exits, and report its exit status after its last output.

        ``forwarding``: the tasks that forward the output of the process.
        """
        status = await process.wait()
        signal_group(process.pid, signal.SIGKILL)  # the process's remaining children
        self._release_output([name])
        _, pending = await asyncio.wait(forwarding, timeout=TERMINATION_GRACE_S)
        for task in pending:  # a detached child may keep the pipes open
            task.cancel()
        del self._processes[name]
        if name in self._port_sockets:
            self._port_sockets.pop(name).close()
        send_message(self._writer, process=name, exit_status=status)
        await self._drain_writer()

    async def _stop_processes(self) -> None:
        """Stop all processes with SIGTERM, and later with SIGKILL. Then notify the launcher."""
        self._release_output(self._processes)
        for signal_number in (signal.SIGTERM, signal.SIGKILL):
            for process in self._processes.values():
                signal_group(process.pid, signal.SIGCONT)
                signal_group(process.pid, signal_number)
            deadline = time.monotonic() + TERMINATION_GRACE_S
            while self._processes and time.monotonic() < deadline:
                await asyncio.sleep(0.05)
        send_message(self._writer, all_ended=True)

    async def _watch_launcher(self) -> None:
        """Send heartbeats and report suspended processes until the launcher times out."""
        suspension_times: Dict[str, float] = {}  # when each process was suspended, such as by Ctrl-Z
        while liveness_clock() - self._heard < self._patience:
            send_message(self._writer, heartbeat=True)
            now = liveness_clock()
            if self._parent is not None and _is_suspended(self._parent):
                self._heard = now
            suspended = [name for name, process in self._processes.items() if _is_suspended(process.pid)]
            suspension_times = {name: suspension_times.get(name, now) for name in suspended}
            for name, since in suspension_times.items():
                send_message(self._writer, process=name, suspended_s=now - since)
            await asyncio.sleep(BEAT_S)

    async def _drain_writer(self) -> None:
        with suppress(OSError):  # the launcher has disappeared; `_listen` handles this
            await self._writer.drain()

    def _run_in_background(self, coroutine: Any) -> "asyncio.Future[Any]":
        """Start ``coroutine`` as a task, and keep a reference to the task until it ends."""
        task: "asyncio.Future[Any]" = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def line_cost(line: str) -> int:
    """Return how many characters a line counts toward UNPRINTED_LIMIT."""
    return len(line) + 1


def _signal_process(pid: int, signal_number: int) -> None:
    """Send a signal to a single process, which may have already exited."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal_number)


def _is_suspended(pid: int) -> bool:
    """Check if a process is suspended by a signal such as SIGTSTP, or by a debugger."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status[status.rindex(")") + 2] in "Tt"


async def _open_reader(
    descriptor: int, most: int = MAX_MESSAGE_BYTES
) -> "tuple[asyncio.StreamReader, asyncio.BaseTransport]":
    """Return a reader of a file descriptor, and its transport.

    The reader buffers up to twice ``most`` bytes.
    """
    loop, reader = asyncio.get_event_loop(), asyncio.StreamReader(most)
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb", 0)
    )
    return reader, transport


async def _open_writer(descriptor: int) -> asyncio.StreamWriter:
    """Return a stream that writes to a file descriptor."""
    loop = asyncio.get_event_loop()
    transport, protocol = await loop.connect_write_pipe(
        asyncio.streams.FlowControlMixin, os.fdopen(descriptor, "wb", 0)
    )
    return asyncio.StreamWriter(transport, protocol, None, loop)


async def _serve_streams() -> None:
    """Serve the launcher over standard input and output.

    Standard input and output may be two pipes, or one socket from sshd. Before Python 3.10, asyncio
    creates a socket for a child's standard input, and a pipe for its output.
    """
    input_fd, output_fd = os.dup(0), os.dup(1)
    os.dup2(2, 1)  # print to standard error, because standard output is for messages
    if stat.S_ISSOCK(os.fstat(input_fd).st_mode) and os.path.sameopenfile(input_fd, output_fd):
        os.close(output_fd)
        streams = await asyncio.open_connection(sock=socket.socket(fileno=input_fd), limit=MAX_MESSAGE_BYTES)
    else:
        streams = (await _open_reader(input_fd))[0], await _open_writer(output_fd)
    agent = HostAgent(*streams, parent=os.getppid())
    await agent.serve()
    if agent.message_error is not None:
        sys.exit(f"the launcher {agent.message_error}")


def main() -> None:
    """Serve one launcher over standard input and output."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        # Only the launcher's messages may end the agent. A handler is used instead of SIG_IGN,
        # because child processes would inherit SIG_IGN.
        signal.signal(number, lambda *_: None)
    asyncio.run(_serve_streams())


if __name__ == "__main__":
    main()
