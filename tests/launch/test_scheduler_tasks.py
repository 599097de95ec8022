"""Rank 0 gathers the processes that a scheduler has started, each once, and they are one group."""

import asyncio
import json
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager, suppress
from threading import Thread

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.gatherings import HANG_LIMIT_S, connect_to_rank_0, hello_message, run_rendezvous
from support.launched_environments import blaunch_environments, srun_environments, torchrun_environments
from support.launcher import QUICK_LAUNCH_OPTIONS, listening_ports
from support.parameter_server import free_port
from support.processes import clean_environment
from support.waiting import wait_until
from support.worker_processes import handles_signal

from gluonlab.errors import RunError
from gluonlab.launch.agent_connections import AgentConnection, SshOptions
from gluonlab.launch.hosts import Host
from gluonlab.launch.launcher import _connection_sites
from gluonlab.launch.process_membership import Membership
from gluonlab.launch.scheduler_tasks import serve_rank_0
from gluonlab.runs.run_reader import read_lines

pytestmark = pytest.mark.cpu_only("the processes compute on CPU devices, whoever started them")
NONSENSE = {
    "an endless rank": b'{"here": "h", "pid": 1, "addresses": {}, "rank": Infinity, "size": 3}\n',
    "a rank that is none": hello_message(3),
    "rank 0 itself": hello_message(0),
    "another size": hello_message(1, size=4),
    "no addresses": b'{"here": "h", "pid": 1, "rank": 1, "size": 3}\n',
    "a rank in words": hello_message("1"),
    "another protocol": b"GET / HTTP/1.0\r\n\r\n",
    "nothing": b"",
    "a very long line": b"x" * 2**21,
}


@pytest.mark.parametrize("name", NONSENSE)
def test_who_says_nonsense_is_sent_away_and_the_others_are_taken(name):
    async def work(gathering, place, signals):
        reader, writer = await connect_to_rank_0(place, NONSENSE[name])
        if name == "nothing":
            writer.close()
        elif name == "a very long line":
            writer.transport.abort()
        else:
            assert await asyncio.wait_for(reader.read(), HANG_LIMIT_S) == b""
        for rank in (2, 1):
            await connect_to_rank_0(place, hello_message(rank))
        return await gathering.wait_for_ranks([1, 2])

    assert [each.rank for each in run_rendezvous(work)] == [1, 2]


def test_who_comes_first_with_a_rank_stays():
    async def work(gathering, place, signals):
        await connect_to_rank_0(place, hello_message(1, pid=11))
        await connect_to_rank_0(place, hello_message(2))
        while len(gathering._connected) < 2:
            await asyncio.sleep(0.01)
        second, _ = await connect_to_rank_0(place, hello_message(1, pid=12, here="other"))
        assert await asyncio.wait_for(second.read(), HANG_LIMIT_S) == b""  # sent away
        return await gathering.wait_for_ranks([1, 2])

    assert [each.hostname for each in run_rendezvous(work)] == ["h1", "h2"]


def test_who_has_gone_may_be_started_again():
    async def work(gathering, place, signals):
        _, writer = await connect_to_rank_0(place, hello_message(1))
        await connect_to_rank_0(place, hello_message(2))
        first = await gathering.wait_for_ranks([1, 2])
        await connect_to_rank_0(place, hello_message(1, here="again"))  # it waits until the first is missed
        writer.close()
        while first[0].loss_reason is None:
            await asyncio.sleep(0.01)
        return [*first, *await gathering.wait_for_ranks([1])]

    *first, again = run_rendezvous(work)
    assert (first[0].loss_reason, again.loss_reason) == ("has ended the connection", None)
    assert (again.rank, again.hostname) == (1, "again")


def test_several_that_do_not_come_are_one_line_and_those_that_came_are_there():
    async def work(gathering, place, signals):
        await connect_to_rank_0(place, hello_message(1, 4))
        await connect_to_rank_0(place, b"\n")
        while len(gathering._connected) < 1 or gathering._strangers < 1:
            await asyncio.sleep(0.01)
        return await gathering.wait_for_ranks([1, 2, 3])

    one, two, three = run_rendezvous(work, size=4, patience=0.1)
    assert one.rank == 1 and isinstance(two, RunError) and two is three
    assert str(two).startswith("of 4 processes that srun has started, rank 2, 3 has not come to")
    assert str(two).endswith("; 1 that came to it were none of them")


def test_a_signal_to_one_that_waits_is_heard():
    async def work(gathering, place, signals):
        await connect_to_rank_0(place, hello_message(1), {"came": 15})
        waiting = asyncio.ensure_future(gathering.wait_for_ranks([1, 2]))
        while not signals:
            await asyncio.sleep(0.01)
        assert not waiting.done()  # rank 2 has not come
        return signals

    assert run_rendezvous(work) == [15]


MESSAGES = st.dictionaries(
    st.sampled_from(["of", "line", "stream", "ended", "status", "stopped", "seconds", "came", "x"]),
    st.integers(-3, 300) | st.floats() | st.text(max_size=4) | st.none(), max_size=3,
)  # fmt: skip


@settings(max_examples=8)
@given(st.lists(st.binary(max_size=60) | MESSAGES, min_size=12, max_size=12))
def test_whatever_one_says_later_it_ends_with_one_line(said):
    size = 1 + len(said)

    async def work(gathering, place, signals):
        writers = [(await connect_to_rank_0(place, hello_message(rank, size)))[1] for rank in range(1, size)]
        found = await gathering.wait_for_ranks(range(1, size))
        for writer, words in zip(writers, said):
            writer.write(words if isinstance(words, bytes) else json.dumps(words).encode() + b"\n")
            writer.write_eof()
        while any(each.loss_reason is None for each in found):
            await asyncio.sleep(0.005)
        return [each.loss_reason for each in found]

    for why in run_rendezvous(work, size=size):
        assert why.startswith(("has ended the connection", "has said what is no message: "))
        assert why.isprintable()


def connection(host, rank):
    async def make():  # Python 3.8 and 3.9 want a loop for it
        return AgentConnection(Host(host), SshOptions(), rank=rank)

    return asyncio.run(make())


@pytest.mark.parametrize("first", [0, 1])
def test_hosts_are_told_an_address_that_all_of_them_reach(first):
    """Rank 1 comes over the loopback device, as rank 0's own name leads there, rank 2 does not."""
    local = connection("a", 1)
    local.address, local.launcher_address = "127.0.0.1", "127.0.1.1"
    far = connection("b", 2)
    far.address, far.launcher_address = "192.0.2.2", "192.0.2.1"
    here = connection("a", 0)
    others = [local, far] if first == 0 else [far, local]
    found = [site.address for site in _connection_sites([here, *others], named=False)]
    expected = {None: "192.0.2.1", "127.0.0.1": "192.0.2.1", "192.0.2.2": "192.0.2.2"}
    assert found == [expected[each.address] for each in (here, *others)]


def test_one_host_alone_is_told_its_loopback_address():
    local = connection("a", 1)
    local.address, local.launcher_address = "127.0.0.1", "127.0.0.1"
    here = connection("a", 0)
    assert {site.address for site in _connection_sites([here, local], named=False)} == {"127.0.0.1"}


SCHEDULERS = {"srun": srun_environments, "blaunch": blaunch_environments, "torchrun": torchrun_environments}


@contextmanager
def started(
    folder, scheduler, words, *, count=2, first=0, come=None, of_rank=None, patience=3600,
    port=None, own_port=None,
):  # fmt: skip
    """The processes of a job on this host, from rank ``first`` to ``connect_to_rank_0``, or all.

    ``own_port``: by rank, where another port than ``port`` leads to rank 0.
    """
    port, processes = str(port or free_port()), []
    told = SCHEDULERS[scheduler]((count,))
    for rank, variables in list(enumerate(told))[first : come or count]:
        leads = str((own_port or {}).get(rank, port))
        variables = {**variables, "GLUONLAB_ROOT": "127.0.0.1", "GLUONLAB_PORT": leads}
        command = [sys.executable, "-m", "gluonlab.launch", "--backend", "dist_sync"]
        more = (of_rank or {}).get(rank, [])
        processes.append(
            subprocess.Popen(
                [*command, "--patience", str(patience), "--", *words, *more], cwd=folder,
                env=clean_environment(**variables), stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8",
            )
        )  # fmt: skip
    try:
        yield processes
    finally:
        for each in processes:
            each.kill()
            each.wait()
            each.stdout.close()


@contextmanager
def relay_to(port):
    """A port that leads to ``port``, as soon as somebody listens there, and what came from there.

    For one connection.
    """
    came = bytearray()

    def copy(source, target, kept):
        with suppress(OSError):
            while True:
                piece = source.recv(4096)
                if not piece:
                    break
                kept += piece
                target.sendall(piece)
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def relay():
        client, _ = server.accept()
        wait_until(lambda: port in listening_ports())
        with client, socket.create_connection(("127.0.0.1", port)) as rank_0:
            there = Thread(target=copy, args=(client, rank_0, bytearray()))
            there.start()
            copy(rank_0, client, came)
            there.join()

    with socket.create_server(("127.0.0.1", 0)) as server:
        Thread(target=relay, daemon=True).start()
        yield server.getsockname()[1], came


def ended(folder, scheduler, words, **how):
    """How the processes of a job have ended, by rank: (status, what was said)."""
    with started(folder, scheduler, words, **how) as processes:
        return [(each.wait(HANG_LIMIT_S), each.stdout.read()) for each in processes]


@pytest.mark.parametrize(
    "scheduler", ["srun", *(pytest.param(n, marks=pytest.mark.long) for n in ("blaunch", "torchrun"))]
)
@pytest.mark.long
def test_the_processes_of_a_job_train_as_one_group(scheduler, tmp_path):
    run = [*QUICK_LAUNCH_OPTIONS, "--epochs", "1", "--out", "run"]
    (status, said), *others = ended(tmp_path, scheduler, run)
    assert status == 0, said
    assert "2 processes (dist_sync)" in said and others == [(0, "")]  # rank 0 speaks for all
    read_lines(tmp_path / "run")


@pytest.mark.long
def test_other_options_than_those_of_rank_0_are_named(tmp_path):
    run, other = [*QUICK_LAUNCH_OPTIONS, "--epochs", "1"], {1: ["--lr", "0.5"]}
    (status, said), (also, _) = ended(tmp_path, "srun", run, of_rank=other)
    assert status == also == 2
    assert said.splitlines()[-1].endswith(
        "the options of this process differ from rank 0's: here --lr, there nothing more: start all with the same ones"
    )


def test_a_port_that_is_taken_is_named(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        [(status, said)] = ended(tmp_path, "srun", QUICK_LAUNCH_OPTIONS, count=1, port=port)
    assert status == 2
    assert said.startswith(f"error: port {port} cannot be had (Address already in use): set another")


@pytest.mark.long
def test_a_rank_0_that_is_not_there_is_one_line(tmp_path):
    [(status, said)] = ended(tmp_path, "srun", QUICK_LAUNCH_OPTIONS, first=1, patience=5)
    assert status == 1 and "in 5 s (Connection refused): it was not started, or" in said


def test_why_rank_0_cannot_be_reached_is_in_the_systems_words():
    place = Membership("srun", 1, 2, 0, 1, "127.0.0.1", free_port())
    with pytest.raises(RunError) as raised:
        serve_rank_0(place, "dist_sync", QUICK_LAUNCH_OPTIONS, 0.1, {})
    assert str(raised.value).startswith(
        f"rank 1 cannot reach rank 0 at 127.0.0.1:{place.port} in 0.1 s (Connection refused): it was not started, or"
    )


@pytest.mark.parametrize("of_rank", [0, pytest.param(1, marks=pytest.mark.long)])
def test_a_signal_to_one_that_waits_for_the_others_ends_all_at_once(of_rank, tmp_path):
    """One of three ranks never comes; the patience is an hour."""
    port = free_port()
    with relay_to(port) as (own_port, came), started(
        tmp_path, "srun", QUICK_LAUNCH_OPTIONS, count=3, come=2, port=port, own_port={1: own_port}
    ) as processes:
        wait_until(lambda: b"patience" in came)  # the first thing that rank 0 tells who has come
        processes[of_rank].send_signal(signal.SIGTERM)
        assert [each.wait(HANG_LIMIT_S) for each in processes] == [143, 143]
        assert [each.stdout.read().strip() for each in processes] == ["ended by SIGTERM", ""]


@pytest.mark.long
def test_patience_ends_one_whose_rank_0_takes_no_connection(tmp_path):
    """Its queue of connections is full, and the system drops what comes."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, ExitStack() as stack:
        for _ in range(4):
            waits = stack.enter_context(socket.socket())
            waits.setblocking(False)
            waits.connect_ex(full.getsockname())
        port, began = full.getsockname()[1], time.monotonic()
        [(status, said)] = ended(tmp_path, "srun", QUICK_LAUNCH_OPTIONS, first=1, patience=5, port=port)
    assert status == 1 and time.monotonic() - began < 60  # the system would wait for minutes
    assert said.startswith(f"error: rank 1 cannot reach rank 0 at 127.0.0.1:{port} in 5 s (")


def test_a_signal_ends_one_that_does_not_find_rank_0(tmp_path):
    with started(tmp_path, "srun", QUICK_LAUNCH_OPTIONS, count=2, come=2, first=1) as [alone]:
        wait_until(lambda: handles_signal(alone.pid, signal.SIGTERM))
        alone.send_signal(signal.SIGTERM)
        assert (alone.wait(HANG_LIMIT_S), alone.stdout.read().strip()) == (143, "ended by SIGTERM")


@pytest.mark.long
def test_a_rank_that_does_not_come_is_named(tmp_path):
    (status, said), (also, other) = ended(tmp_path, "srun", QUICK_LAUNCH_OPTIONS, count=3, come=2, patience=8)
    assert status == also == 1
    assert said.startswith("error: of 3 processes that srun has started, rank 2 has not come")
    assert other == ""  # rank 0 speaks for all
