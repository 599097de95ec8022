"""The agent of a launcher on one host: it starts processes there, and ends them.

It tells the launcher what they say and how they end. It lives as long as the launcher: when their
connection ends, or nothing comes over it for some time, the agent kills its processes and ends.
When the agent is killed, the system kills them (PR_SET_PDEATHSIG).
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

from gluonlab.engine.parameter_server_environment import ROLE_VARIABLE
from gluonlab.errors import ConfigError
from gluonlab.host.child_processes import begin_as_part, begin_as_program, signal_group
from gluonlab.launch.agent_messages import (
    BEAT,
    LONGEST,
    OF_LAUNCHER,
    PIECE,
    BadMessage,
    Message,
    awake,
    lines_of,
    received,
    send,
)
from gluonlab.launch.group_processes import NODE_PORT, TELL, own_environment
from gluonlab.launch.network_addresses import addresses, reserved, reserved_above
from gluonlab.launch.user_program import start_refusal

GRACE = 5.0  # seconds that processes have to end by SIGTERM
UNPRINTED = 2**18  # letters that may be on their way to who reads them; then processes wait
SSH_VARIABLE = "SSH_CONNECTION"  # of sshd: the client's address and port, and the server's


class Agent:
    """Serves one launcher, over a pair of streams.

    ``hello``: what more the launcher is told of this host. ``checked``: gives a request to start
    something back as it may be obeyed; raises ConfigError. ``parent``: the launcher, if it is here:
    while it is stopped, nobody expects to hear it. ``status`` is what the launcher says that this
    process is to end with; None if it has just gone. ``fault``: what was wrong with what it said.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        hello: Optional[Message] = None,
        checked: Callable[[Message], Message] = dict,
        parent: Optional[int] = None,
    ) -> None:
        self._reader, self._writer = reader, writer
        self._hello, self._checked, self._parent = hello or {}, checked, parent
        self.status: Optional[int] = None
        self.fault: Optional[BadMessage] = None
        self._processes: Dict[str, asyncio.subprocess.Process] = {}
        self._kept: Dict[str, socket.socket] = {}  # the ports of programs
        self._programs: Set[str] = set()  # those that are the user's own
        self._freed: Set[str] = set()  # those that end, whose last words wait for nobody
        self._tasks: "set[asyncio.Future[Any]]" = set()
        self._port: Optional[socket.socket] = None  # that is kept for a scheduler
        self._unprinted, self._less = 0, asyncio.Event()
        self._heard = awake()
        self._patience = 30.0

    async def serve(self) -> None:
        """Do what the launcher says, until it says no more."""
        hello = {"here": socket.gethostname(), "pid": os.getpid(), "addresses": addresses()}
        ssh = os.environ.get(SSH_VARIABLE, "").split()
        if len(ssh) == 4:
            hello.update(seen_by=ssh[0], address=ssh[2])
        send(self._writer, **{**hello, **self._hello})
        watching = asyncio.ensure_future(self._watch())
        listening = asyncio.ensure_future(self._listen())
        try:
            await asyncio.wait({watching, listening}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for process in self._processes.values():
                signal_group(process.pid, signal.SIGKILL)
            self._free_port()
            for kept in self._kept.values():
                kept.close()
            for task in [watching, listening, *self._tasks]:
                task.cancel()
            self._writer.close()

    async def _listen(self) -> None:
        try:
            async for message in received(self._reader, OF_LAUNCHER):
                self._heard = awake()
                await self._obey(message)
        except BadMessage as error:
            self.fault = error

    async def _obey(self, message: Message) -> None:
        if "patience" in message:
            self._patience = message["patience"]
        elif "port" in message:
            self._reserve(message["port"])
        elif "start" in message:
            await self._start(message)
        elif "printed" in message:
            self._unprinted -= message["printed"]
            self._less.set()
        elif "signal" in message:
            for name in message["to"]:
                if name in self._processes:
                    # Ctrl-C goes to a program's children as well, as from a terminal
                    pid = self._processes[name].pid
                    to_all = name in self._programs and message["signal"] == signal.SIGINT
                    signal_it = signal_group if to_all else _signal
                    signal_it(pid, message["signal"])
            self._free(message["to"])  # else one that waits to print could not end
        elif "end" in message:
            self._do(self._end())
        elif "done" in message:
            self.status = message["done"]

    def tell(self, **message: Any) -> None:
        """Tell the launcher."""
        send(self._writer, **message)

    def _reserve(self, wanted: int) -> None:
        """Keep a port for the scheduler that is to come, and free that of an earlier one."""
        self._free_port()
        self._port, answer = reserved(wanted)
        send(self._writer, **answer)

    def _free_port(self) -> None:
        if self._port is not None:
            self._port.close()
            self._port = None

    async def _start(self, message: Message) -> None:
        name, pipes, is_program = message["start"], {}, False
        try:
            message = self._checked(message)
            if name in self._processes:
                raise ConfigError(f"{name} runs already")
            pipes = {stream: os.pipe() for stream in ("out", "err", "came")}
            out, err, told = (write for _, write in pipes.values())
            is_program = message.get("program", False)
            words = message["words"] if is_program else [sys.executable, *message["words"]]
            environment = {**own_environment(), **message["environment"]}
            if not is_program:
                environment[TELL] = str(told)
            elif environment.get(ROLE_VARIABLE) == "worker" and NODE_PORT not in environment:
                environment.update(self._node_port(name))
            process = await asyncio.create_subprocess_exec(
                *words, env=environment, stdin=asyncio.subprocess.DEVNULL, stdout=out, stderr=err,
                pass_fds=() if is_program else [told], cwd=message["folder"],
                start_new_session=True,
                preexec_fn=begin_as_program if is_program else begin_as_part,
            )  # fmt: skip
        except (ConfigError, OSError) as error:
            is_mistake = is_program or isinstance(error, ConfigError)
            if is_program and isinstance(error, OSError):
                why = f"error: {start_refusal(words[0], Path(message['folder']), error)}"
            else:
                why = f"error: {error}" if is_mistake else f"cannot be started: {error}"
            send(self._writer, ended=name, status=1 + is_mistake, why=why)
            for read, _ in pipes.values():
                os.close(read)
            return
        finally:
            for _, write in pipes.values():
                os.close(write)
        self._processes[name] = process
        if is_program:
            self._programs.add(name)
        self._freed.discard(name)
        passing = [
            self._do(self._pass_on(name, stream, read)) for stream, (read, _) in pipes.items()
        ]
        self._do(self._see_end(name, process, passing))

    def _node_port(self, name: str) -> Dict[str, str]:
        """The variable with the port of a program's MXNet, higher for each rank of this host.

        MXNet's scheduler numbers the workers of one host by their ports.
        """
        last = max((kept.getsockname()[1] for kept in self._kept.values()), default=0)
        kept, port = reserved_above(last)
        if kept is None:
            return {}
        self._kept[name] = kept
        return {NODE_PORT: str(port)}

    async def _pass_on(self, name: str, stream: str, descriptor: int) -> None:
        """Tell the launcher what a process says, no faster than that is printed.

        Beats and all else go on meanwhile. Of a process that has ended, or is to end, it goes at
        once: the launcher can say why.
        """
        reader, transport = await _reader_of(descriptor, PIECE)
        try:
            async for text in lines_of(reader):
                if stream != "came":
                    while self._unprinted > UNPRINTED and name not in self._freed:
                        self._less.clear()
                        await self._less.wait()
                    self._unprinted += size_of(text)
                send(self._writer, of=name, stream=stream, line=text)
                await self._drain()
        finally:
            transport.close()

    def _free(self, names: Iterable[str]) -> None:
        self._freed.update(names)
        self._less.set()

    async def _see_end(self, name: str, process: Any, passing: List[Any]) -> None:
        status = await process.wait()
        signal_group(process.pid, signal.SIGKILL)  # what it has started and not ended
        self._free([name])
        _, left = await asyncio.wait(passing, timeout=GRACE)  # first what it has said
        for each in left:  # what it has started and let go has its pipes
            each.cancel()
        del self._processes[name]
        if name in self._kept:
            self._kept.pop(name).close()
        send(self._writer, ended=name, status=status)
        await self._drain()

    async def _end(self) -> None:
        """End all, and say when that is done."""
        self._free(self._processes)
        for number in (signal.SIGTERM, signal.SIGKILL):
            for process in self._processes.values():
                signal_group(process.pid, signal.SIGCONT)
                signal_group(process.pid, number)
            until = time.monotonic() + GRACE
            while self._processes and time.monotonic() < until:
                await asyncio.sleep(0.05)
        send(self._writer, all_ended=True)

    async def _watch(self) -> None:
        """Beat, and end when the launcher is not heard any more; tell of stopped processes."""
        stopped: Dict[str, float] = {}
        while awake() - self._heard < self._patience:
            send(self._writer, beat=True)
            now = awake()
            if self._parent is not None and _is_stopped(self._parent):
                self._heard = now
            halted = [name for name, each in self._processes.items() if _is_stopped(each.pid)]
            stopped = {name: stopped.get(name, now) for name in halted}
            for name, since in stopped.items():
                send(self._writer, stopped=name, seconds=now - since)
            await asyncio.sleep(BEAT)

    async def _drain(self) -> None:
        with suppress(OSError):  # the launcher has gone: `_listen` sees it
            await self._writer.drain()

    def _do(self, what: Any) -> "asyncio.Future[Any]":
        task: "asyncio.Future[Any]" = asyncio.ensure_future(what)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def size_of(line: str) -> int:
    """What a line counts until it is printed, in the agent and in the launcher."""
    return len(line) + 1


def _signal(pid: int, number: int) -> None:
    """Send a signal to a process alone, which may be gone."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _is_stopped(pid: int) -> bool:
    try:
        of_process = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return of_process[of_process.rindex(")") + 2] in "Tt"


async def _reader_of(
    descriptor: int, most: int = LONGEST
) -> "tuple[asyncio.StreamReader, asyncio.BaseTransport]":
    """A reader that reads up to twice ``most`` bytes ahead."""
    loop, reader = asyncio.get_event_loop(), asyncio.StreamReader(most)
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb", 0)
    )
    return reader, transport


async def _writer_of(descriptor: int) -> asyncio.StreamWriter:
    loop = asyncio.get_event_loop()
    transport, protocol = await loop.connect_write_pipe(
        asyncio.streams.FlowControlMixin, os.fdopen(descriptor, "wb", 0)
    )
    return asyncio.StreamWriter(transport, protocol, None, loop)


async def _serve_streams() -> None:
    """Serve the launcher that has standard input and output: two pipes, or sshd's one socket.

    Before Python 3.10, asyncio gives a child a socket as standard input, and a pipe as output.
    """
    here, there = os.dup(0), os.dup(1)
    os.dup2(2, 1)  # what Python itself prints must not stand between the messages
    if stat.S_ISSOCK(os.fstat(here).st_mode) and os.path.sameopenfile(here, there):
        os.close(there)
        streams = await asyncio.open_connection(sock=socket.socket(fileno=here), limit=LONGEST)
    else:
        streams = (await _reader_of(here))[0], await _writer_of(there)
    agent = Agent(*streams, parent=os.getppid())
    await agent.serve()
    if agent.fault is not None:
        sys.exit(f"the launcher {agent.fault}")


def main() -> None:
    """Serve one launcher over standard input and output."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        # the launcher says what to do; processes that are started inherit no handler
        signal.signal(number, lambda *_: None)
    asyncio.run(_serve_streams())


if __name__ == "__main__":
    main()
