"""The scheduler's port: who takes it between the choice and the scheduler's own start."""

import socket
import subprocess
import sys

import pytest
from support.launched import each_slow_backend
from support.launcher import QUICK_LAUNCH_OPTIONS, start_launcher
from support.namespaces import require_namespaces
from support.parameter_server import free_port
from support.port_takers import occupy_scheduler_ports
from support.processes import clean_environment

from gluonlab.launch.launcher import PORT_ATTEMPTS
from gluonlab.launch.ports_and_addresses import reserve_port

pytestmark = pytest.mark.cpu_only("the processes compute on CPU devices, whoever started them")
RUN = [*QUICK_LAUNCH_OPTIONS, "--epochs", "1"]
each_backend = pytest.mark.parametrize("backend", ["dist_sync", pytest.param("horovod", marks=pytest.mark.horovod)])


def bind_port(port, reuses):
    """Return a socket that is bound to a port, with or without SO_REUSEADDR."""
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuses)
    bound.bind(("127.0.0.1", port))
    return bound


def test_a_reserved_port_is_had_by_the_scheduler_alone():
    """It, and Horovod's rendezvous, ask for it with SO_REUSEADDR."""
    keeping, answer = reserve_port(0)
    with keeping, pytest.raises(OSError, match="Address already in use"):
        bind_port(answer["port"], reuses=False)
    keeping, answer = reserve_port(answer["port"])  # free again
    with keeping, bind_port(answer["port"], reuses=True) as scheduler:
        scheduler.listen()
        assert reserve_port(answer["port"]) == (None, {"port_error": "Address already in use"})


@pytest.mark.hosts
def test_no_connection_and_nobody_who_asks_for_any_port_gets_a_reserved_one():
    """Of a range of 40 ports, in a network namespace, one is reserved, and 39 are had."""
    require_namespaces()
    script = """
import pathlib, socket
from gluonlab.launch.ports_and_addresses import reserve_port
pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").write_text("20000 20039")
keeping, answer = reserve_port(0)
server = socket.create_server(("127.0.0.1", 30000), backlog=99)
for get in [
    lambda: socket.create_connection(server.getsockname()),
    lambda: socket.create_server(("127.0.0.1", 0)),
]:
    sockets = []
    try:
        for _ in range(40):
            sockets.append(get())
    except OSError:
        pass
    had = {each.getsockname()[1] for each in sockets}
    print(len(had), answer["port"] in had)
    for each in sockets:
        # no TIME_WAIT is left
        each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\\1\\0\\0\\0\\0\\0\\0\\0")
        each.close()
"""
    words = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    ended = subprocess.run(
        [*words, sys.executable, "-c", script], env=clean_environment(), capture_output=True, text=True, timeout=60
    )
    assert ended.stdout.split() == 2 * ["39", "False"], ended.stderr


def launch_with_taken_ports(folder, backend, *options, count=1, run=(), **how):
    """Return the exit status and lines of a launcher, and the ports that another process has taken."""
    words = ["-n", count, "--backend", backend, *options, "--", *RUN, *run]
    with occupy_scheduler_ports(folder, **how) as taken, start_launcher(folder, *words) as launcher:
        status, text = launcher.wait_for_exit()
    return status, text.splitlines(), taken


@each_slow_backend
def test_a_port_that_is_taken_before_the_scheduler_has_it_costs_one_line_and_no_restart(backend, tmp_path):
    status, [warning, *lines], taken = launch_with_taken_ports(tmp_path, backend, times=1)
    assert warning == (
        f"warning: another process took port {taken[0]} of localhost before the scheduler could use it: "
        "trying another port"
    )
    assert status == 0 and all(line.startswith("[0] ") for line in lines), lines


@each_slow_backend
def test_a_requested_port_that_is_taken_is_one_line(backend, tmp_path):
    port = free_port()
    options = ["--port", port, "--max-restarts", "3"]
    status, lines, taken = launch_with_taken_ports(tmp_path, backend, *options, run=["--out", "run"], times=1)
    assert (status, taken) == (2, [port])
    assert lines == [
        f"error: --port {port} is not available on localhost (Address already in use): "
        "choose another port, or omit --port"
    ]


@pytest.mark.long
@each_backend
def test_another_port_is_chosen_a_bounded_number_of_times(backend, tmp_path):
    status, [*warnings, error], taken = launch_with_taken_ports(tmp_path, backend, count=2, times=99)
    assert status == 1 and len(taken) == PORT_ATTEMPTS and len(warnings) == PORT_ATTEMPTS - 1
    assert all(line.startswith("warning: another process took port ") for line in warnings)
    assert error.startswith("error: no port is available on localhost (other processes took 5 ports before ")


@pytest.mark.long
@each_backend
def test_who_asks_without_so_reuseaddr_is_no_hindrance(backend, tmp_path):
    status, lines, taken = launch_with_taken_ports(tmp_path, backend, times=1, reuses=False)
    assert (status, taken) == (0, [None]), lines
    assert all(line.startswith("[0] ") for line in lines), lines


@pytest.mark.long
def test_a_scheduler_that_somebody_starts_by_hand_says_in_one_line_that_its_port_is_taken():
    """And one whose address is none of this host's says so."""
    port = free_port()
    with socket.create_server(("127.0.0.1", port)):
        for address, why in [("127.0.0.1", "Address already in use"), ("192.0.2.1", "Cannot assign requested")]:
            environment = clean_environment(
                DMLC_ROLE="scheduler", DMLC_PS_ROOT_URI=address, DMLC_PS_ROOT_PORT=str(port),
                DMLC_NUM_WORKER="1", DMLC_NUM_SERVER="1",
            )  # fmt: skip
            ended = subprocess.run(
                [sys.executable, "-m", "gluonlab.launch.server_process"], env=environment,
                capture_output=True, text=True, timeout=60,
            )  # fmt: skip
            assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (1, "", 1)
            assert ended.stderr.startswith(f"error: port {port} of {address} cannot be used: {why}")
