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
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional

from gluonlab.errors import ConfigError
from gluonlab.host.lifetime import die_with_parent
from gluonlab.launch.messages import LONGEST, Message, received, send

BEAT = 1.0  # seconds between two signs of life, each way
GRACE = 5.0  # seconds that processes have to end by SIGTERM
PIECE = 2**16  # bytes of a line that are passed on at once
TELL = "GLUONLAB_TELL"  # the descriptor over which a process says how far it has come


class Agent:
    """Serves one launcher, over a pair of streams.

    ``hello``: what more the launcher is told of this host. ``checked``: gives a request to start
    something back as it may be obeyed; raises ConfigError. ``status`` is what the launcher says
    that this process is to end with; None if it has just gone.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        hello: Optional[Message] = None,
        checked: Callable[[Message], Message] = dict,
    ) -> None:
        self._reader, self._writer = reader, writer
        self._hello, self._checked = hello or {}, checked
        self.status: Optional[int] = None
        self._processes: Dict[str, asyncio.subprocess.Process] = {}
        self._tasks: "set[asyncio.Future[Any]]" = set()
        self._heard = time.monotonic()
        self._patience = 30.0

    async def serve(self) -> None:
        """Do what the launcher says, until it says no more."""
        hello = {"here": socket.gethostname(), "pid": os.getpid(), "addresses": addresses()}
        ssh = os.environ.get("SSH_CONNECTION", "").split()  # the client's, and the server's
        if len(ssh) == 4:
            hello.update(seen_by=ssh[0], address=ssh[2])
        send(self._writer, **{**hello, **self._hello})
        watching = asyncio.ensure_future(self._watch())
        listening = asyncio.ensure_future(self._listen())
        try:
            await asyncio.wait({watching, listening}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for process in self._processes.values():
                _kill(process, signal.SIGKILL)
            watching.cancel()
            listening.cancel()
            self._writer.close()

    async def _listen(self) -> None:
        async for message in received(self._reader):
            self._heard = time.monotonic()
            if "patience" in message:
                self._patience = float(message["patience"])
            if "port" in message:
                send(self._writer, **free_port(message["port"]))
            if "start" in message:
                await self._start(message)
            if "signal" in message:
                for name in message["to"]:
                    if name in self._processes:
                        _kill(self._processes[name], message["signal"], group=False)
            if "end" in message:
                self._do(self._end())
            if "done" in message:
                self.status = int(message["done"])

    def tell(self, **message: Any) -> None:
        """Tell the launcher."""
        send(self._writer, **message)

    async def _start(self, message: Message) -> None:
        name = message["start"]
        try:
            message = self._checked(message)
        except ConfigError as error:
            send(self._writer, ended=name, status=2, why=f"error: {error}")
            return
        tells, told = os.pipe()
        os.set_inheritable(told, True)
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, *message["words"],
                env={**os.environ, **message["environment"], TELL: str(told)},
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE, cwd=message["folder"], pass_fds=[told],
                start_new_session=True, preexec_fn=die_with_parent,
            )  # fmt: skip
        except OSError as error:
            send(self._writer, ended=name, status=1, why=f"cannot be started: {error}")
            os.close(tells)
            return
        finally:
            os.close(told)
        self._processes[name] = process
        assert process.stdout is not None and process.stderr is not None
        passing = [
            self._do(self._pass_on(name, "out", process.stdout)),
            self._do(self._pass_on(name, "err", process.stderr)),
            self._do(self._pass_on(name, "came", await _reader_of(tells))),
        ]
        self._do(self._see_end(name, process, passing))

    async def _pass_on(self, name: str, stream: str, reader: asyncio.StreamReader) -> None:
        rest = b""
        while True:
            piece = await reader.read(PIECE)
            *lines, rest = (rest + piece).split(b"\n")
            if not piece or len(rest) > PIECE:
                lines, rest = [*lines, *([rest] if rest else [])], b""
            for line in lines:
                text = line.decode("utf-8", "replace")
                send(self._writer, of=name, stream=stream, line=text)
            await self._drain()
            if not piece:
                return

    async def _see_end(self, name: str, process: Any, passing: List[Any]) -> None:
        status = await process.wait()
        _kill(process, signal.SIGKILL)  # what it has started and not ended
        await asyncio.wait(passing, timeout=GRACE)  # first what it has said
        del self._processes[name]
        send(self._writer, ended=name, status=status)
        await self._drain()

    async def _end(self) -> None:
        """End all, and say when that is done."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            for process in self._processes.values():
                _kill(process, signal.SIGCONT)
                _kill(process, number)
            until = time.monotonic() + GRACE
            while self._processes and time.monotonic() < until:
                await asyncio.sleep(0.05)
        send(self._writer, all_ended=True)

    async def _watch(self) -> None:
        """Beat, and end when the launcher is not heard any more; tell of stopped processes."""
        stopped: Dict[str, float] = {}
        while time.monotonic() - self._heard < self._patience:
            send(self._writer, beat=True)
            now = time.monotonic()
            halted = [name for name, each in self._processes.items() if _is_stopped(each.pid)]
            stopped = {name: stopped.get(name, now) for name in halted}
            for name, since in stopped.items():
                send(self._writer, stopped=name, seconds=now - since)
            await asyncio.sleep(BEAT)

    async def _drain(self) -> None:
        try:
            await self._writer.drain()
        except OSError:
            pass  # the launcher has gone: `_listen` sees it

    def _do(self, what: Any) -> "asyncio.Future[Any]":
        task: "asyncio.Future[Any]" = asyncio.ensure_future(what)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _kill(process: Any, number: int, group: bool = True) -> None:
    """Send a signal to the process, or to it and all that it has started."""
    try:
        os.killpg(process.pid, number) if group else os.kill(process.pid, number)
    except ProcessLookupError:
        pass


def _is_stopped(pid: int) -> bool:
    try:
        of_process = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return of_process[of_process.rindex(")") + 2] in "Tt"


def free_port(wanted: int) -> Message:
    """``port``: one that nobody has at this moment, the ``wanted`` one or, for 0, any.

    Or else ``taken``: what the system says.
    """
    with socket.socket() as trying:
        trying.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # after a restart
        try:
            trying.bind(("", wanted))
            trying.listen()
        except OSError as error:
            return {"taken": error.strerror}
        return {"port": trying.getsockname()[1]}


def addresses() -> Dict[str, str]:
    """This host's IPv4 addresses, each with the name of its interface."""
    import fcntl

    found: Dict[str, str] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            request = name.encode()[:15].ljust(256, b"\0")
            try:
                answer = fcntl.ioctl(asking.fileno(), 0x8915, request)  # SIOCGIFADDR
            except OSError:
                continue  # it has none
            found.setdefault(socket.inet_ntoa(answer[20:24]), name)
    return found


async def _reader_of(descriptor: int) -> asyncio.StreamReader:
    loop, reader = asyncio.get_event_loop(), asyncio.StreamReader(LONGEST)
    await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb", 0)
    )
    return reader


async def _writer_of(descriptor: int) -> asyncio.StreamWriter:
    loop = asyncio.get_event_loop()
    transport, protocol = await loop.connect_write_pipe(
        asyncio.streams.FlowControlMixin, os.fdopen(descriptor, "wb", 0)
    )
    return asyncio.StreamWriter(transport, protocol, None, loop)


async def _serve_streams() -> None:
    """Serve the launcher that has standard input and output: two pipes, or sshd's one socket."""
    here, there = os.dup(0), os.dup(1)
    os.dup2(2, 1)  # what Python itself prints must not stand between the messages
    if stat.S_ISSOCK(os.fstat(here).st_mode):
        os.close(there)
        streams = await asyncio.open_connection(sock=socket.socket(fileno=here), limit=LONGEST)
    else:
        streams = await _reader_of(here), await _writer_of(there)
    await Agent(*streams).serve()


def main() -> None:
    """Serve one launcher over standard input and output."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        # the launcher says what to do; processes that are started inherit no handler
        signal.signal(number, lambda *_: None)
    asyncio.run(_serve_streams())


if __name__ == "__main__":
    main()
