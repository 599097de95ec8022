"""What a process that a scheduler has started takes from rank 0, and what it does not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gluonlab.errors import ConfigError
from gluonlab.launch.parts import AGAIN, BY_BACKEND, FORMS, RENDEZVOUS, SERVE, Site, allowed, parts

SITES = [Site("h0", "10.0.0.1", "eth0"), Site("h1", "fe80::1%eth0", "eth0"), Site("h2", "::1", "")]
backends = st.sampled_from(sorted(BY_BACKEND))
words = st.lists(st.sampled_from(["--epochs", "3", "--lr", "0.1", "--flip"]), max_size=5)
RUN = ["--epochs", "3"]
OF_OTHERS = {  # variables that would open a file, load a library, or change what Python runs
    "HOROVOD_TIMELINE": "/etc/passwd", "HOROVOD_LOG_LEVEL": "trace", "DMLC_LOCAL": "1",
    "GLUONLAB_DATA": "/tmp", "GLUONLAB_TELL": "1", "GLUONLAB_COMMAND": "x", "LD_PRELOAD": "/x.so",
    "PYTHONPATH": "/tmp", "PYTHONSTARTUP": "/x.py", "MXNET_HOME": "/tmp", "PATH": "/tmp",
}  # fmt: skip


def of_members(backend, given):
    """What rank 0 asks others to start: the scheduler is its own."""
    made = parts(backend, given, [0, 1, 2], [0, 1, 2], SITES, 9000, {"HOROVOD_CYCLE_TIME": "3"})
    assert made[0].name == "scheduler"
    return made[1:]


@given(backends, words, words)
def test_a_process_starts_what_its_own_options_say_and_nothing_else(backend, own, given):
    for part in of_members(backend, given):
        if part.is_worker and own != given:
            with pytest.raises(ConfigError, match=r"rank 0's: here .*, there .*: start"):
                allowed(part.words, part.environment, backend, own)
            continue
        taken = allowed(part.words, {**part.environment, **OF_OTHERS}, backend, own)
        assert taken == {n: v for n, v in part.environment.items() if n != "HOROVOD_CYCLE_TIME"}
        if part.is_worker:
            assert allowed([*part.words, AGAIN], part.environment, backend, own) == taken


def test_only_what_a_part_has_is_taken():
    """Every name in the table is one that `parts` sets, and is needed."""
    made = [part for backend in BY_BACKEND for part in of_members(backend, RUN)]
    named = {name for part in made for name in part.environment} - {"HOROVOD_CYCLE_TIME"}
    assert named == set(FORMS)


@given(backends, st.sampled_from(sorted(FORMS)), st.text(max_size=20))
def test_a_value_of_another_form_is_refused(backend, name, value):
    """Where it is taken, nothing is in it that leads out of a number, an address or a name."""
    part = of_members(backend, RUN)[-1]
    try:
        taken = allowed(part.words, {**part.environment, name: value}, backend, RUN)
    except ConfigError as error:
        assert len(str(error).splitlines()) == 1
    else:
        assert taken[name] == value
        assert not set(value) & set("/\\ \n\0=") and len(value) <= 255


@pytest.mark.parametrize(
    "words",
    [
        ["-c", "print(1)"], ["-m", "http.server"], ["-m", "gluonlab.launch.worker.other"], [],
        [*RENDEZVOUS, "0.0.0.0", "80", "h1:1"], SERVE,
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("role", [None, "scheduler", "worker"])
def test_what_is_no_part_of_a_group_is_not_started(role, words):
    environment = {} if role is None else {"DMLC_ROLE": role}
    with pytest.raises(ConfigError, match="is no part of a group"):
        allowed(words, environment, "dist_sync", RUN)


def test_a_worker_is_not_made_a_server():
    """MXNet, once loaded, would serve, and unpickle what it is sent."""
    worker = of_members("dist_sync", RUN)[-1]
    with pytest.raises(ConfigError, match="is no part of a group"):
        allowed(worker.words, {**worker.environment, "DMLC_ROLE": "server"}, "dist_sync", RUN)
    with pytest.raises(ConfigError, match="is no part of a group"):
        allowed(SERVE, {"DMLC_ROLE": "server"}, "horovod", RUN)
