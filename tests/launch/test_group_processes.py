"""What each process of a group finds in its environment, and what one takes from rank 0."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gluonlab.errors import ConfigError
from gluonlab.launch.backends import BACKENDS
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


def test_every_backend_can_be_started():
    assert set(PROCESSES_BY_BACKEND) == set(BACKENDS)


@given(st.sampled_from(sorted(PROCESSES_BY_BACKEND)), placements, st.lists(st.integers(0, 3), max_size=3))
def test_ranks_are_numbered_in_order_on_their_hosts(backend, placed, servers):
    made = parts(backend, ["--epochs", "3"], placed, servers, SITES, 9000)
    workers = [part for part in made if part.is_worker]
    assert [part.host for part in workers] == placed
    assert [part.environment[RANK_VARIABLE] for part in workers] == [str(n) for n in range(len(placed))]
    assert all(part.words[-2:] == ["--epochs", "3"] for part in workers)
    assert len({part.name for part in made}) == len(made)
    assert made[0].name == "scheduler" and made[0].host == 0
    others = [part.host for part in made[1:] if not part.is_worker]
    assert others == ([] if backend == "horovod" else servers)


@given(placements)
def test_horovod_is_told_what_its_own_launcher_tells(placed):
    """Its table: a rank's place on its host, and its host's place among those that have one."""
    made = parts("horovod", [], placed, [], SITES, 9000)[1:]
    counts = [placed.count(host) for host in placed]
    for part, host, count in zip(made, placed, counts):
        told = {name[8:]: value for name, value in part.environment.items() if "HOROVOD" in name}
        local, cross = int(told["LOCAL_RANK"]), int(told["CROSS_RANK"])
        assert 0 <= local < count == int(told["LOCAL_SIZE"])
        alike = [other for other in made if other.environment["HOROVOD_LOCAL_RANK"] == str(local)]
        assert alike[cross] is part and len(alike) == int(told["CROSS_SIZE"])
        assert told["HOSTNAME"] == f"h{host}" and told["GLOO_IFACE"] == f"eth{host}"


@pytest.mark.horovod
@given(placements)
def test_horovod_would_assign_the_same(placed):
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts

    made = parts("horovod", [], placed, [], SITES, 9000)
    theirs = get_host_assignments(parse_hosts(made[0].words[-1]), len(placed))
    for part, slot in zip(made[1:], theirs):
        told = part.environment
        names = ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size")
        assert [told[f"HOROVOD_{name.upper()}"] for name in names] == [str(getattr(slot, name)) for name in names]
        assert told["HOROVOD_HOSTNAME"] == slot.hostname


MIXED_SITES = [Site("h0", "10.0.0.1", "eth0"), Site("h1", "fe80::1%eth0", "eth0"), Site("h2", "::1", "")]
backends = st.sampled_from(sorted(PROCESSES_BY_BACKEND))
words = st.lists(st.sampled_from(["--epochs", "3", "--lr", "0.1", "--flip"]), max_size=5)
RUN = ["--epochs", "3"]
OF_OTHERS = {  # variables that would open a file, load a library, or change what Python runs
    "HOROVOD_TIMELINE": "/etc/passwd", "HOROVOD_LOG_LEVEL": "trace", "DMLC_LOCAL": "1",
    "GLUONLAB_DATA": "/tmp", "GLUONLAB_TELL": "1", "GLUONLAB_COMMAND": "x", "LD_PRELOAD": "/x.so",
    "PYTHONPATH": "/tmp", "PYTHONSTARTUP": "/x.py", "MXNET_HOME": "/tmp", "PATH": "/tmp",
}  # fmt: skip


def of_members(backend, given):
    """What rank 0 asks others to start: the scheduler is its own."""
    made = parts(backend, given, [0, 1, 2], [0, 1, 2], MIXED_SITES, 9000, {"HOROVOD_CYCLE_TIME": "3"})
    assert made[0].name == "scheduler"
    return made[1:]


@given(backends, words, words)
def test_a_process_starts_what_its_own_options_say_and_nothing_else(backend, own, given):
    for part in of_members(backend, given):
        if part.is_worker and own != given:
            with pytest.raises(ConfigError, match=r"rank 0's: here .*, there .*: start"):
                allowed_variables(part.words, part.environment, backend, own)
            continue
        taken = allowed_variables(part.words, {**part.environment, **OF_OTHERS}, backend, own)
        assert taken == {n: v for n, v in part.environment.items() if n != "HOROVOD_CYCLE_TIME"}
        if part.is_worker:
            assert allowed_variables([*part.words, AUTORESUME_OPTION], part.environment, backend, own) == taken


def test_only_what_a_part_has_is_taken():
    """Every name in the table is one that `parts` sets, and is needed."""
    made = [part for backend in PROCESSES_BY_BACKEND for part in of_members(backend, RUN)]
    named = {name for part in made for name in part.environment} - {"HOROVOD_CYCLE_TIME"}
    assert named == set(VARIABLE_PATTERNS)


@given(backends, st.sampled_from(sorted(VARIABLE_PATTERNS)), st.text(max_size=20))
def test_a_value_of_another_form_is_refused(backend, name, value):
    """Where it is taken, nothing is in it that leads out of a number, an address or a name."""
    part = of_members(backend, RUN)[-1]
    try:
        taken = allowed_variables(part.words, {**part.environment, name: value}, backend, RUN)
    except ConfigError as error:
        assert len(str(error).splitlines()) == 1
    else:
        assert taken[name] == value
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
def test_what_is_no_part_of_a_group_is_not_started(role, words):
    environment = {} if role is None else {"DMLC_ROLE": role}
    with pytest.raises(ConfigError, match="is no part of a group"):
        allowed_variables(words, environment, "dist_sync", RUN)


def test_a_worker_is_not_made_a_server():
    """MXNet, once loaded, would serve, and unpickle what it is sent."""
    worker = of_members("dist_sync", RUN)[-1]
    with pytest.raises(ConfigError, match="is no part of a group"):
        allowed_variables(worker.words, {**worker.environment, "DMLC_ROLE": "server"}, "dist_sync", RUN)
    with pytest.raises(ConfigError, match="is no part of a group"):
        allowed_variables(SERVER_ARGUMENTS, {"DMLC_ROLE": "server"}, "horovod", RUN)
