"""The launcher's connections to its agents: over a pipe on this host, over ssh on others."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import sys
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

from gluonlab.errors import RunError
from gluonlab.host.child_processes import OWN_GROUP, signal_group, with_this_gluonlab
from gluonlab.launch.agent_messages import (
    BEAT,
    LONGEST,
    OF_AGENT,
    BadMessage,
    Message,
    Received,
    awake,
    lines_of,
    received,
    send,
    within,
)
from gluonlab.launch.host_agent import SSH_VARIABLE, UNPRINTED, size_of
from gluonlab.launch.hosts import Host
from gluonlab.plain_text import one_line

AGENT = ["-m", "gluonlab.launch.host_agent"]
MOST_UNPRINTED = 2**26  # letters: an agent that sends more does not wait for them to be printed
KEPT = 10  # last lines of ssh's own


class SshOptions(NamedTuple):
    """How other hosts are reached. ``ssh``: the client's words; ``python``: their Python."""

    ssh: Sequence[str] = ("ssh",)
    python: str = sys.executable
    patience: float = 30.0


class Connection:
    """An agent that serves this launcher.

    ``gone``: why it does not any more, and never will again; None while it does. ``rank``: that of
    a process which a scheduler has started.
    """

    def __init__(
        self,
        host: Host,
        way: SshOptions,
        writer: Optional[asyncio.StreamWriter] = None,
        rank: Optional[int] = None,
    ) -> None:
        """``writer``: to an agent that has come by itself, and does not need to be opened."""
        self.host, self._way, self.rank = host, way, rank
        self.gone: Optional[str] = None
        self.address: Optional[str] = None  # of the host, as this one reaches it
        self.own_address: Optional[str] = None  # of this one, as the host sees it
        self.interfaces: Dict[str, str] = {}
        self._inbox: asyncio.Queue[Received] = asyncio.Queue()
        self._heard = awake()
        self._process: Optional[asyncio.subprocess.Process] = None
        self._writer = writer
        self._tasks: List["asyncio.Future[Any]"] = []
        self._complaints: List[str] = []
        self._unprinted = self._printed = 0
        self._pid, self.here = 0, host.name

    async def open(self, inbox: asyncio.Queue[Received]) -> None:
        """Start the agent; what it says goes into ``inbox``. Raises RunError."""
        words = self._words()
        try:
            self._process = await asyncio.create_subprocess_exec(
                *words, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE, limit=LONGEST, env=self._environment(), **OWN_GROUP,
            )  # fmt: skip
        except OSError as error:
            raise RunError(f"{words[0]} cannot be started: {error.strerror}") from None
        assert self._process.stdin and self._process.stdout and self._process.stderr
        self._writer = self._process.stdin
        self._tasks = [asyncio.ensure_future(self._complain(self._process.stderr))]
        why, remedy = "", "" if self.host.is_here else f": try {shlex.join(words)}"
        try:
            said = first(received(self._process.stdout, OF_AGENT))
            hello = await within(self._way.patience, said)
        except asyncio.TimeoutError:
            hello = {}
        except BadMessage as error:  # the shell there says something first
            hello, why = {}, f"its shell prints {error.line!r} first"
            remedy = ": print nothing where no person reads it, such as with [ -t 1 ] in ~/.bashrc"
        if "here" not in hello:
            why = why or await self._last_complaint() or "it does not answer"
            self.close()
            await self.closed()
            raise RunError(
                f"host {self.host.name}: no agent can be started there: {one_line(why)}{remedy}"
            )
        self.begin(self._process.stdout, hello, inbox)

    def begin(
        self, reader: asyncio.StreamReader, hello: Message, inbox: asyncio.Queue[Received]
    ) -> None:
        """Put what the agent says from now on into ``inbox``, and let it hear that this lives."""
        self._pid, self.interfaces, self.here = hello["pid"], hello["addresses"], hello["here"]
        self.address, self.own_address = hello.get("address"), hello.get("seen_by")
        self._heard, self._inbox = awake(), inbox
        self._tasks += [
            asyncio.ensure_future(self._listen(reader)),
            asyncio.ensure_future(self._beat()),
        ]
        self.send(patience=self._way.patience / 2)

    @property
    def silence(self) -> float:
        """For how many seconds nothing has been heard of the agent."""
        return awake() - self._heard

    def send(self, **message: Any) -> None:
        """Tell the agent, if it is still there."""
        if self._writer is not None:
            send(self._writer, **message)

    def lose(self, why: str) -> None:
        """Expect nothing of the agent any more."""
        if self.gone is None:
            self.gone = why
            self._inbox.put_nowait((self, {"gone": why}))

    def printed(self, line: str) -> None:
        """A line of the agent's processes has been printed, or is not to be: it may send more."""
        self._printed += size_of(line)
        if self._printed > UNPRINTED // 4:
            self._unprinted -= self._printed
            self.send(printed=self._printed)
            self._printed = 0

    def close(self) -> None:
        """Leave the agent, which then ends, with all its processes."""
        for task in self._tasks:
            task.cancel()
        if self._writer is not None:
            self._writer.close()
        # not by Popen.kill, which would take the status that asyncio waits for
        if self._process is not None and self._process.returncode is None:
            signal_group(self._process.pid, signal.SIGKILL)  # and what ssh has started

    async def kill(self) -> None:
        """End an agent that does not answer any more, if the host can still be reached."""
        self.close()
        if self._process is not None and not self.host.is_here and self._pid:
            # the number may be another process's by now
            its = f"grep -q {AGENT[-1]} /proc/{self._pid}/cmdline"
            words = [*self._ssh(), f"{its} && kill -{signal.SIGKILL} {self._pid}"]
            ending = await asyncio.create_subprocess_exec(
                *words, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL, **OWN_GROUP,
            )  # fmt: skip
            try:
                await within(5, ending.wait())
            except asyncio.TimeoutError:
                signal_group(ending.pid, signal.SIGKILL)
                await ending.wait()

    async def closed(self) -> None:
        """Wait until the agent of this host has ended."""
        if self._process is not None:
            await self._process.wait()

    def _words(self) -> List[str]:
        if self.host.is_here:
            return [sys.executable, *AGENT]
        own = with_this_gluonlab({})["PYTHONPATH"]
        agent = ["env", f"PYTHONPATH={own}", self._way.python, *AGENT]
        return [*self._ssh(), shlex.join(agent)]  # ssh hands one string to the other shell

    def _environment(self) -> Dict[str, str]:
        """The agent's; one on this host comes over no ssh, whatever this shell came over."""
        own = with_this_gluonlab(os.environ)
        if self.host.is_here:
            own.pop(SSH_VARIABLE, None)
        return own

    def _ssh(self) -> List[str]:
        alive = ["BatchMode=yes", "ConnectTimeout=10", "ServerAliveInterval=5"]
        return [*self._way.ssh, *(word for each in alive for word in ("-o", each)), "--",
                self.host.name]  # fmt: skip

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        try:
            async for message in received(reader, OF_AGENT):
                self._heard = awake()
                if "line" in message and message["stream"] != "came":
                    self._unprinted += size_of(message["line"])
                    if self._unprinted > MOST_UNPRINTED:
                        self.lose("sends more than is printed, and does not wait")
                        return
                if message.keys() != {"beat"}:
                    self._inbox.put_nowait((self, message))
        except BadMessage as error:
            self.lose(str(error))
            return
        said = await self._last_complaint()
        self.lose("has ended the connection" + (f": {one_line(said)}" if said else ""))

    async def _beat(self) -> None:
        while True:
            awake()
            self.send(beat=True)
            await asyncio.sleep(BEAT)

    async def _complain(self, reader: asyncio.StreamReader) -> None:
        async for line in lines_of(reader):
            self._complaints = [*self._complaints[1 - KEPT :], line.strip()]

    async def _last_complaint(self) -> str:
        """What ssh, or an agent, has said last: it says why, and ends."""
        if self._process is not None:
            await asyncio.wait(self._tasks[:1], timeout=1)
        return next(filter(None, reversed(self._complaints)), "")


async def first(messages: Any) -> Message:
    """The first message; empty if there is none."""
    async for message in messages:
        return dict(message)
    return {}
