"""A signal that comes wherever the launcher's loop is ends the command, with no other word."""

import asyncio
import gc
import os
import signal
import socket
from types import SimpleNamespace

import pytest
from support.gatherings import HANG_LIMIT_S
from support.launcher import QUICK_LAUNCH_OPTIONS
from support.parameter_server import free_port

from gluonlab.cli.command import interrupt_on_signals
from gluonlab.host.signals import EXCEPTION_BY_SIGNAL
from gluonlab.launch.hosts import LOCAL_HOST
from gluonlab.launch.launcher import LaunchRequest, launch_group
from gluonlab.launch.process_membership import Membership
from gluonlab.launch.scheduler_tasks import serve_rank_0

pytestmark = pytest.mark.cpu_only("no process is begun that computes")


def find_rank_0():
    """Look for a rank 0 that never comes."""
    membership = Membership("srun", 1, 2, 0, 1, "127.0.0.1", free_port())
    serve_rank_0(membership, "dist_sync", QUICK_LAUNCH_OPTIONS, HANG_LIMIT_S, {})


def launch_two():
    """Start an agent, and then the processes."""
    launch_group(LaunchRequest("dist_sync", QUICK_LAUNCH_OPTIONS, [LOCAL_HOST], 2), SimpleNamespace(pending_lines=0))


@pytest.mark.parametrize("number", EXCEPTION_BY_SIGNAL)
@pytest.mark.parametrize(
    ("work", "place", "name"),
    [
        (find_rank_0, asyncio.events, "new_event_loop"),  # before the loop is there
        (find_rank_0, asyncio, "get_event_loop"),  # before the loop takes signals
        (find_rank_0, asyncio, "open_connection"),
        (find_rank_0, socket.socket, "close"),  # in a callback, after nobody has answered
        (find_rank_0, asyncio, "sleep"), (launch_two, asyncio.events, "new_event_loop"),
        (launch_two, asyncio, "ensure_future"), (launch_two, asyncio, "create_subprocess_exec"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)  # fmt: skip
def test_a_signal_ends_it_wherever_the_loop_is(number, work, place, name, monkeypatch, caplog):
    real, sent = getattr(place, name), []

    def signaled(*args, **options):
        if not sent:
            sent.append(number)
            os.kill(os.getpid(), number)
        return real(*args, **options)

    stop = signal.getsignal(signal.SIGTSTP)
    with pytest.raises(EXCEPTION_BY_SIGNAL[number]) as raised, interrupt_on_signals():
        monkeypatch.setattr(place, name, signaled)
        work()
    monkeypatch.undo()
    signal.signal(signal.SIGTSTP, stop)  # which a launcher ignores
    gc.collect()
    assert (sent, type(raised.value)) == ([number], EXCEPTION_BY_SIGNAL[number])
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []
