"""Rank 0 gathers the processes that a scheduler has started, each once, and they are one group."""

import asyncio
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager, suppress
from threading import Thread

import pytest
from support.gatherings import HANG_LIMIT_S, connect_to_rank_0, hello_message, run_rendezvous
from support.launched_environments import blaunch_environments, srun_environments, torchrun_environments
from support.launcher import QUICK_LAUNCH_OPTIONS, listening_ports
from support.parameter_server import free_port, kill_processes, require_parameter_server
from support.processes import clean_environment
from support.waiting import wait_until
from support.worker_processes import handles_signal

from gluonlab.errors import RunError
from gluonlab.launch.agent_connections import AgentConnection, SshOptions
from gluonlab.launch.hosts import Host
from gluonlab.launch.launcher import _connection_addresses
from gluonlab.launch.process_membership import Membership
from gluonlab.launch.scheduler_tasks import serve_rank_0
from gluonlab.runs.run_reader import read_lines

pytestmark = pytest.mark.cpu_only("the processes compute on CPU devices, whoever started them")
NONSENSE = {
    "an endless rank": b'{"hostname": "h", "pid": 1, "addresses": {}, "rank": Infinity, "size": 3}\n',
    "a rank that is none": hello_message(3),
    "rank 0 itself": hello_message(0),
    "another size": hello_message(1, size=4),
    "no addresses": b'{"hostname": "h", "pid": 1, "rank": 1, "size": 3}\n',
    "a rank in words": hello_message("1"), "another protocol": b"GET / HTTP/1.0\r\n\r\n", "nothing": b"",
    "a very long line": b"x" * 2**21,
}  # fmt: skip


@pytest.mark.parametrize("name", NONSENSE)
def test_a_connection_that_sends_nonsense_is_refused_and_the_ranks_are_accepted(name):
    async def work(rendezvous, membership, signals):
        reader, writer = await connect_to_rank_0(membership, NONSENSE[name])
        if name == "nothing":
            writer.close()
        elif name == "a very long line":
            writer.transport.abort()
        else:
            assert await asyncio.wait_for(reader.read(), HANG_LIMIT_S) == b""
        for rank in (2, 1):
            await connect_to_rank_0(membership, hello_message(rank))
        return await rendezvous.wait_for_ranks([1, 2])

    assert [each.rank for each in run_rendezvous(work)] == [1, 2]


def test_the_first_of_two_connections_with_one_rank_stays():
    async def work(rendezvous, membership, signals):
        await connect_to_rank_0(membership, hello_message(1, pid=11))
        await connect_to_rank_0(membership, hello_message(2))
        while len(rendezvous._connected) < 2:
            await asyncio.sleep(0.01)
        second, _ = await connect_to_rank_0(membership, hello_message(1, pid=12, hostname="other"))
        assert await asyncio.wait_for(second.read(), HANG_LIMIT_S) == b""  # sent away
        return await rendezvous.wait_for_ranks([1, 2])

    assert [each.hostname for each in run_rendezvous(work)] == ["h1", "h2"]


def test_a_rank_that_has_gone_may_be_started_again():
    async def work(rendezvous, membership, signals):
        _, writer = await connect_to_rank_0(membership, hello_message(1))
        await connect_to_rank_0(membership, hello_message(2))
        first = await rendezvous.wait_for_ranks([1, 2])
        await connect_to_rank_0(membership, hello_message(1, hostname="again"))  # it waits until the first is missed
        writer.close()
        while first[0].loss_reason is None:
            await asyncio.sleep(0.01)
        return [*first, *await rendezvous.wait_for_ranks([1])]

    *first, again = run_rendezvous(work)
    assert (first[0].loss_reason, again.loss_reason) == ("has closed the connection", None)
    assert (again.rank, again.hostname) == (1, "again")


def test_several_missing_ranks_are_one_line_and_the_others_are_connected():
    async def work(rendezvous, membership, signals):
        await connect_to_rank_0(membership, hello_message(1, 4))
        await connect_to_rank_0(membership, b"\n")
        while len(rendezvous._connected) < 1 or rendezvous._strangers < 1:
            await asyncio.sleep(0.01)
        return await rendezvous.wait_for_ranks([1, 2, 3])

    one, two, three = run_rendezvous(work, size=4, patience=0.1)
    assert one.rank == 1 and isinstance(two, RunError) and two is three
    assert str(two).startswith("srun started 4 processes, but rank 2, 3 did not connect to rank 0")
    assert str(two).endswith("; 1 other connections were refused")


def test_a_signal_to_a_waiting_rank_reaches_rank_0():
    async def work(rendezvous, membership, signals):
        await connect_to_rank_0(membership, hello_message(1), {"signal": 15})
        waiting = asyncio.ensure_future(rendezvous.wait_for_ranks([1, 2]))
        while not signals:
            await asyncio.sleep(0.01)
        assert not waiting.done()  # rank 2 has not come
        return signals

    assert run_rendezvous(work) == [15]


def make_connection(host, rank, address=None, launcher_address=None):
    async def make():  # Python 3.8 and 3.9 want a loop for it
        connection = AgentConnection(Host(host), SshOptions(), rank=rank)
        connection.address, connection.launcher_address = address, launcher_address
        return connection

    return asyncio.run(make())


@pytest.mark.parametrize("swapped", [False, True])
def test_hosts_get_addresses_that_all_of_them_reach(swapped):
    """Rank 1 comes over the loopback device, as rank 0's own name leads there, rank 2 does not."""
    others = [
        make_connection("a", 1, "127.0.0.1", "127.0.1.1"), make_connection("b", 2, "192.0.2.2", "192.0.2.1")
    ]  # fmt: skip
    connections = [make_connection("a", 0), *(others[::-1] if swapped else others)]
    addresses = [site.address for site in _connection_addresses(connections, named=False)]
    expected = {None: "192.0.2.1", "127.0.0.1": "192.0.2.1", "192.0.2.2": "192.0.2.2"}
    assert addresses == [expected[connection.address] for connection in connections]


def test_a_single_host_gets_its_loopback_address():
    connections = [make_connection("a", 0), make_connection("a", 1, "127.0.0.1", "127.0.0.1")]
    assert {site.address for site in _connection_addresses(connections, named=False)} == {"127.0.0.1"}


SCHEDULERS = {"srun": srun_environments, "blaunch": blaunch_environments, "torchrun": torchrun_environments}


@contextmanager
def start_job(
    folder, scheduler, words, *, count=2, first=0, come=None, of_rank=None, patience=3600, port=None, own_port=None
):
    """Start the processes of a job on this host, from rank ``first`` to rank ``come``, or all.

    ``own_port``: by rank, where another port than ``port`` leads to rank 0.
    """
    require_parameter_server()
    port, processes = str(port or free_port()), []
    for rank, variables in list(enumerate(SCHEDULERS[scheduler]((count,))))[first : come or count]:
        rank_0_port = str((own_port or {}).get(rank, port))
        environment = clean_environment(**variables, GLUONLAB_MASTER_ADDR="127.0.0.1", GLUONLAB_PORT=rank_0_port)
        command = [sys.executable, "-m", "gluonlab.launch", "--backend", "dist_sync", "--timeout", str(patience)]
        process = subprocess.Popen(
            [*command, "--", *words, *(of_rank or {}).get(rank, [])], cwd=folder, env=environment,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8",
        )  # fmt: skip
        processes.append(process)
    try:
        yield processes
    finally:
        kill_processes(processes)
        for process in processes:
            process.stdout.close()


@contextmanager
def relay_to(port):
    """Relay one connection to ``port``, as soon as a process listens there.

    Yield the relay's port, and the bytes that came from ``port``.
    """
    received = bytearray()

    def copy(source, target, copied):
        with suppress(OSError):
            while True:
                data = source.recv(4096)
                if not data:
                    break
                copied += data
                target.sendall(data)
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def relay():
        client, _ = server.accept()
        wait_until(lambda: port in listening_ports())
        with client, socket.create_connection(("127.0.0.1", port)) as rank_0:
            there = Thread(target=copy, args=(client, rank_0, bytearray()))
            there.start()
            copy(rank_0, client, received)
            there.join()

    with socket.create_server(("127.0.0.1", 0)) as server:
        Thread(target=relay, daemon=True).start()
        yield server.getsockname()[1], received


def run_job(folder, scheduler, words, **how):
    """Return (exit status, output) of each process of a job."""
    with start_job(folder, scheduler, words, **how) as processes:
        return [(process.wait(HANG_LIMIT_S), process.stdout.read()) for process in processes]


@pytest.mark.parametrize(
    "scheduler", ["srun", *(pytest.param(n, marks=pytest.mark.long) for n in ("blaunch", "torchrun"))]
)
@pytest.mark.long
def test_the_processes_of_a_job_train_as_one_group(scheduler, tmp_path):
    run = [*QUICK_LAUNCH_OPTIONS, "--epochs", "1", "--out", "run"]
    (status, output), *others = run_job(tmp_path, scheduler, run)
    assert status == 0, output
    assert "2 processes (dist_sync)" in output and others == [(0, "")]  # rank 0 speaks for all
    read_lines(tmp_path / "run")


@pytest.mark.long
def test_other_options_than_those_of_rank_0_are_named(tmp_path):
    run, other = [*QUICK_LAUNCH_OPTIONS, "--epochs", "1"], {1: ["--lr", "0.5"]}
    (status, output), (other_status, _) = run_job(tmp_path, "srun", run, of_rank=other)
    assert status == other_status == 2
    assert output.splitlines()[-1].endswith(
        "the options of this process differ from those of rank 0 (--lr here, no more options on rank 0): "
        "start all processes with the same options"
    )


def test_a_port_that_is_taken_is_named(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        [(status, output)] = run_job(tmp_path, "srun", QUICK_LAUNCH_OPTIONS, count=1, port=port)
    assert status == 2
    assert output.startswith(f"error: port {port} is not available (Address already in use): set another")


def test_why_rank_0_cannot_be_reached_is_in_the_systems_words():
    port = free_port()
    message = f"^rank 1 could not connect to rank 0 at 127.0.0.1:{port} within 0.1 s .Connection refused.: check"
    with pytest.raises(RunError, match=message):
        membership = Membership("srun", 1, 2, 0, 1, "127.0.0.1", port)
        serve_rank_0(membership, "dist_sync", QUICK_LAUNCH_OPTIONS, 0.1, {})


@pytest.mark.parametrize("of_rank", [0, pytest.param(1, marks=pytest.mark.long)])
def test_a_signal_to_one_that_waits_for_the_others_ends_all_at_once(of_rank, tmp_path):
    """One of three ranks never comes; the patience is an hour."""
    port = free_port()
    with relay_to(port) as (own_port, received), start_job(
        tmp_path, "srun", QUICK_LAUNCH_OPTIONS, count=3, come=2, port=port, own_port={1: own_port}
    ) as processes:
        wait_until(lambda: b"patience" in received)  # the first thing that rank 0 tells who has come
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
        [(status, output)] = run_job(tmp_path, "srun", QUICK_LAUNCH_OPTIONS, first=1, patience=5, port=port)
    assert status == 1 and time.monotonic() - began < 60  # the system would wait for minutes
    assert output.startswith(f"error: rank 1 could not connect to rank 0 at 127.0.0.1:{port} within 5 s (")


def test_a_signal_ends_one_that_does_not_find_rank_0(tmp_path):
    with start_job(tmp_path, "srun", QUICK_LAUNCH_OPTIONS, count=2, come=2, first=1) as [alone]:
        wait_until(lambda: handles_signal(alone.pid, signal.SIGTERM))
        alone.send_signal(signal.SIGTERM)
        assert (alone.wait(HANG_LIMIT_S), alone.stdout.read().strip()) == (143, "ended by SIGTERM")


@pytest.mark.long
def test_a_rank_that_does_not_come_is_named(tmp_path):
    (status, output), (other_status, other) = run_job(
        tmp_path, "srun", QUICK_LAUNCH_OPTIONS, count=3, come=2, patience=8
    )
    assert status == other_status == 1
    assert output.startswith("error: srun started 3 processes, but rank 2 did not connect to rank 0 within 8 s")
    assert other == ""  # rank 0 speaks for all
