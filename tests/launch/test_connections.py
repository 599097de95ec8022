"""Connections to agents on other hosts: what is left of one that cannot be opened."""

import asyncio
import signal

import pytest

from gluonlab.errors import RunError
from gluonlab.launch.connections import Connection, Way
from gluonlab.launch.hosts import Host


def test_an_ssh_that_is_given_up_has_ended_when_that_is_said(tmp_path):
    """It prints what no agent says, and would go on for an hour."""
    ssh = tmp_path / "ssh"
    ssh.write_text("#!/bin/sh\necho Welcome!\nexec sleep 3600\n")
    ssh.chmod(0o755)

    async def opened():
        connection = Connection(Host("h1", 1), Way(ssh=[str(ssh)]))
        with pytest.raises(RunError, match="prints 'Welcome!' first"):
            await connection.open(asyncio.Queue())
        return connection._process.returncode

    assert asyncio.run(opened()) == -signal.SIGKILL


def test_nobody_waits_for_an_agent_that_somebody_else_has_started():
    """It has come by itself: there is no process whose end could be seen."""

    async def closing():
        await Connection(Host("h1", 1), Way()).closed()

    asyncio.run(closing())
