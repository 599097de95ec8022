"""What each process of a group finds in its environment, and what one takes from rank 0."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gluonlab.errors import ConfigError
from gluonlab.launch.group_processes import (
    AUTORESUME_OPTION,
    PROCESSES_BY_BACKEND,
    RANK_VARIABLE,
    RENDEZVOUS_ARGUMENTS,
    SERVER_ARGUMENTS,
    VARIABLE_PATTERNS,
    Site,
    allowed_variables,
    parts,
)

placements = st.lists(st.integers(0, 3), min_size=1, max_size=4).map(
    lambda sizes: [host for host, size in enumerate(sizes) for _ in range(size)] or [0]
)
SITES = [Site(f"h{n}", f"10.0.0.{n}", f"eth{n}") for n in range(4)]


@given(st.sampled_from(sorted(PROCESSES_BY_BACKEND)), placements, st.lists(st.integers(0, 3), max_size=3))
def test_ranks_are_numbered_in_order_on_their_hosts(backend, placed, servers):
    processes = parts(backend, RUN, placed, servers, SITES, 9000)
    workers = [process for process in processes if process.is_worker]
    expected = [(host, str(rank), RUN) for rank, host in enumerate(placed)]
    assert [(worker.host, worker.environment[RANK_VARIABLE], worker.words[-2:]) for worker in workers] == expected
    assert len({process.name for process in processes}) == len(processes)
    assert (processes[0].name, processes[0].host) == ("scheduler", 0)
    server_hosts = [process.host for process in processes[1:] if not process.is_worker]
    assert server_hosts == ([] if backend == "horovod" else servers)


@given(placements)
def test_horovod_gets_the_variables_of_its_own_launcher(placed):
    """Its table: a rank's place on its host, and its host's place among those that have one."""
    workers = parts("horovod", [], placed, [], SITES, 9000)[1:]
    for worker, host in zip(workers, placed):
        variables = {name[8:]: value for name, value in worker.environment.items() if "HOROVOD" in name}
        local, cross = int(variables["LOCAL_RANK"]), int(variables["CROSS_RANK"])
        assert 0 <= local < placed.count(host) == int(variables["LOCAL_SIZE"])
        alike = [other for other in workers if other.environment["HOROVOD_LOCAL_RANK"] == str(local)]
        assert alike[cross] is worker and len(alike) == int(variables["CROSS_SIZE"])
        assert variables["HOSTNAME"] == f"h{host}" and variables["GLOO_IFACE"] == f"eth{host}"


@pytest.mark.horovod
@given(placements)
def test_horovod_would_assign_the_same(placed):
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts

    scheduler, *workers = parts("horovod", [], placed, [], SITES, 9000)
    slots = get_host_assignments(parse_hosts(scheduler.words[-1]), len(placed))
    for worker, slot in zip(workers, slots):
        names = ("hostname", "rank", "size", "local_rank", "local_size", "cross_rank", "cross_size")
        variables = [worker.environment[f"HOROVOD_{name.upper()}"] for name in names]
        assert variables == [str(getattr(slot, name)) for name in names]


MIXED_SITES = [Site("h0", "10.0.0.1", "eth0"), Site("h1", "fe80::1%eth0", "eth0"), Site("h2", "::1", "")]
backends = st.sampled_from(sorted(PROCESSES_BY_BACKEND))
words = st.lists(st.sampled_from(["--epochs", "3", "--lr", "0.1", "--flip"]), max_size=5)
RUN = ["--epochs", "3"]
FOREIGN_VARIABLES = {  # variables that would open a file, load a library, or change what Python runs
    "HOROVOD_TIMELINE": "/etc/passwd", "HOROVOD_LOG_LEVEL": "trace", "DMLC_LOCAL": "1",
    "GLUONLAB_DATA": "/tmp", "GLUONLAB_TELL": "1", "GLUONLAB_COMMAND": "x", "LD_PRELOAD": "/x.so",
    "PYTHONPATH": "/tmp", "PYTHONSTARTUP": "/x.py", "MXNET_HOME": "/tmp", "PATH": "/tmp",
}  # fmt: skip


def member_processes(backend, words):
    """Return the processes that rank 0 requests of others; it starts the scheduler itself."""
    settings = {"HOROVOD_CYCLE_TIME": "3"}
    scheduler, *processes = parts(backend, words, [0, 1, 2], [0, 1, 2], MIXED_SITES, 9000, settings)
    assert scheduler.name == "scheduler"
    return processes


@given(backends, words, words)
def test_a_process_starts_only_workers_with_its_own_options(backend, own, requested):
    for process in member_processes(backend, requested):
        words, environment = process.words, process.environment
        if process.is_worker and own != requested:
            with pytest.raises(ConfigError, match=r"those of rank 0 \(.* here, .* on rank 0\): start"):
                allowed_variables(words, environment, backend, own)
            continue
        allowed = allowed_variables(words, {**environment, **FOREIGN_VARIABLES}, backend, own)
        assert allowed == {name: value for name, value in environment.items() if name != "HOROVOD_CYCLE_TIME"}
        if process.is_worker:
            assert allowed_variables([*words, AUTORESUME_OPTION], environment, backend, own) == allowed


def test_the_allowed_variables_are_those_that_parts_sets():
    processes = [process for backend in PROCESSES_BY_BACKEND for process in member_processes(backend, RUN)]
    names = {name for process in processes for name in process.environment}
    assert names - {"HOROVOD_CYCLE_TIME"} == set(VARIABLE_PATTERNS)


@given(backends, st.sampled_from(sorted(VARIABLE_PATTERNS)), st.text(max_size=20))
def test_a_value_of_another_form_is_refused(backend, name, value):
    """An allowed value has nothing in it that leads out of a number, an address or a name."""
    worker = member_processes(backend, RUN)[-1]
    try:
        allowed = allowed_variables(worker.words, {**worker.environment, name: value}, backend, RUN)
    except ConfigError as error:
        assert len(str(error).splitlines()) == 1
    else:
        assert allowed[name] == value
        assert not set(value) & set("/\\ \n\0=") and len(value) <= 255


@pytest.mark.parametrize(
    "words",
    [
        ["-c", "print(1)"], ["-m", "http.server"], ["-m", "gluonlab.launch.worker.other"], [],
        [*RENDEZVOUS_ARGUMENTS, "0.0.0.0", "80", "h1:1"], SERVER_ARGUMENTS,
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("role", [None, "scheduler", "worker"])
def test_a_process_that_is_not_part_of_a_group_is_not_started(role, words):
    environment = {} if role is None else {"DMLC_ROLE": role}
    with pytest.raises(ConfigError, match="does not belong to this job"):
        allowed_variables(words, environment, "dist_sync", RUN)


def test_a_worker_is_not_made_a_server():
    """MXNet, once loaded, would serve, and unpickle what it is sent."""
    worker = member_processes("dist_sync", RUN)[-1]
    for words, backend in ((worker.words, "dist_sync"), (SERVER_ARGUMENTS, "horovod")):
        with pytest.raises(ConfigError, match="does not belong to this job"):
            allowed_variables(words, {**worker.environment, "DMLC_ROLE": "server"}, backend, RUN)
