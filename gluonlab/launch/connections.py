"""The launcher's connections to its agents: over a pipe on this host, over ssh on others."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import gluonlab
from gluonlab.errors import ConfigError, RunError
from gluonlab.host.lifetime import die_with_parent
from gluonlab.launch.agent import BEAT
from gluonlab.launch.hosts import Host
from gluonlab.launch.messages import LONGEST, Message, received, send
from gluonlab.plain import one_line, printable

AGENT = ["-m", "gluonlab.launch.agent"]
# What a process on another host gets of this one's environment, as it has none of its own.
PASSED = ("GLUONLAB_", "MXNET_", "DMLC_", "PS_", "OMP_", "HOROVOD_", "NCCL_", "PYTHON")


class Way(NamedTuple):
    """How other hosts are reached. ``ssh``: the client's words; ``python``: their Python."""

    ssh: Sequence[str] = ("ssh",)
    python: str = sys.executable
    patience: float = 30.0


class Connection:
    """An agent that serves this launcher; `messages` is what it has said and nobody has read."""

    def __init__(self, host: Host, way: Way, writer: Optional[asyncio.StreamWriter] = None) -> None:
        """``writer``: to an agent that has come by itself, and does not need to be opened."""
        self.host, self._way = host, way
        self.heard = time.monotonic()
        self.address: Optional[str] = None  # of the host, as this one reaches it
        self.own_address: Optional[str] = None  # of this one, as the host sees it
        self.interfaces: Dict[str, str] = {}
        self._messages: "asyncio.Queue[Tuple[Connection, Message]]" = asyncio.Queue()
        self._process: Optional[asyncio.subprocess.Process] = None
        self._writer = writer
        self._tasks: List["asyncio.Future[Any]"] = []
        self._complaints: List[str] = []
        self._pid, self.here = 0, host.name

    async def open(self, queue: "asyncio.Queue[Tuple[Connection, Message]]") -> None:
        """Start the agent; what it says goes into ``queue``. Raises RunError."""
        words = self._words()
        try:
            self._process = await asyncio.create_subprocess_exec(
                *words, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE, limit=LONGEST, start_new_session=True,
                preexec_fn=die_with_parent, env=_with_this_gluonlab(os.environ),
            )  # fmt: skip
        except OSError as error:
            raise RunError(f"{words[0]} cannot be started: {error.strerror}") from None
        assert self._process.stdin and self._process.stdout and self._process.stderr
        self._writer = self._process.stdin
        complaining = asyncio.ensure_future(self._complain(self._process.stderr))
        hello: Message = {}
        with contextlib.suppress(asyncio.TimeoutError):
            hello = await asyncio.wait_for(
                first(received(self._process.stdout)), self._way.patience
            )
        if "here" not in hello:
            # ssh says why, and ends
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(complaining, 1)
            self.close()
            why = self._complaints[-1] if self._complaints else "it does not answer"
            raise RunError(
                f"host {self.host.name}: no agent can be started there: {one_line(why)}"
                + ("" if self.host.is_here else f": try {shlex.join(words)}")
            )
        self.begin(self._process.stdout, hello, queue)
        self._tasks.append(complaining)

    def begin(
        self,
        reader: asyncio.StreamReader,
        hello: Message,
        queue: "asyncio.Queue[Tuple[Connection, Message]]",
    ) -> None:
        """Put what the agent says from now on into ``queue``, and let it hear that this lives."""
        self._pid, self.interfaces, self.here = hello["pid"], hello["addresses"], hello["here"]
        self.address, self.own_address = hello.get("address"), hello.get("seen_by")
        self.heard, self._messages = time.monotonic(), queue
        self._tasks = [
            asyncio.ensure_future(self._listen(reader)),
            asyncio.ensure_future(self._beat()),
        ]
        self.send(patience=self._way.patience / 2)

    def send(self, **message: Any) -> None:
        """Tell the agent, if it is still there."""
        if self._writer is not None:
            send(self._writer, **message)

    def close(self) -> None:
        """Leave the agent, which then ends, with all its processes."""
        for task in self._tasks:
            task.cancel()
        if self._writer is not None:
            self._writer.close()
        # not by Popen.kill, which would take the status that asyncio waits for
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGKILL)

    async def kill(self) -> None:
        """End an agent that does not answer any more, if the host can still be reached."""
        self.close()
        if self._process is not None and not self.host.is_here and self._pid:
            words = [*self._ssh(), f"kill -{signal.SIGKILL} {self._pid}"]
            ending = await asyncio.create_subprocess_exec(
                *words, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
            )  # fmt: skip
            try:
                await asyncio.wait_for(ending.wait(), 5)
            except asyncio.TimeoutError:
                ending.kill()

    async def closed(self) -> None:
        """Wait until the agent of this host has ended."""
        if self._process is not None:
            await self._process.wait()

    def _words(self) -> List[str]:
        if self.host.is_here:
            return [sys.executable, *AGENT]
        own = _with_this_gluonlab({})["PYTHONPATH"]
        agent = ["env", f"PYTHONPATH={own}", self._way.python, *AGENT]
        return [*self._ssh(), shlex.join(agent)]  # ssh hands one string to the other shell

    def _ssh(self) -> List[str]:
        alive = ["BatchMode=yes", "ConnectTimeout=10", "ServerAliveInterval=5"]
        return [*self._way.ssh, *(word for each in alive for word in ("-o", each)), "--",
                self.host.name]  # fmt: skip

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        async for message in received(reader):
            self.heard = time.monotonic()
            if message.keys() != {"beat"}:
                self._messages.put_nowait((self, message))
        self._messages.put_nowait((self, {"gone": True}))

    async def _beat(self) -> None:
        while True:
            self.send(beat=True)
            await asyncio.sleep(BEAT)

    async def _complain(self, reader: asyncio.StreamReader) -> None:
        while True:
            line = await reader.readline()
            if not line:
                return
            self._complaints = [*self._complaints[-9:], line.decode("utf-8", "replace").strip()]


async def first(messages: Any) -> Message:
    """The first message; empty if there is none."""
    async for message in messages:
        return dict(message)
    return {}


def check_names(names: Sequence[str]) -> None:
    """Raise ConfigError for what is no variable of this process's environment."""
    for name in names:
        if name not in os.environ:
            raise ConfigError(
                f"--env {printable(name)}: there is no such variable here: set it, and give its "
                "name alone, as in --env MY_VARIABLE"
            )


def passed(names: Sequence[str]) -> Dict[str, str]:
    """What processes on other hosts get of this environment: PASSED, and ``names``."""
    chosen = {name: value for name, value in os.environ.items() if name.startswith(PASSED)}
    chosen.update({name: os.environ[name] for name in names})
    return _with_this_gluonlab(chosen)


def _with_this_gluonlab(environment: Any) -> Dict[str, str]:
    """The environment in which Python finds the gluonlab that runs here, at the same path."""
    root = str(Path(gluonlab.__file__).resolve().parent.parent)
    before = os.environ.get("PYTHONPATH", "")
    paths = [root, *(each for each in before.split(os.pathsep) if each and each != root)]
    return {**environment, "PYTHONPATH": os.pathsep.join(paths)}
