"""Hosts in words and files, and which process goes to which of them."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gluonlab.errors import ConfigError
from gluonlab.launch.hosts import Host, assign_ranks, parse_hosts, read_hostfile, server_hosts, total_capacity

names = st.from_regex(r"[a-z][a-z0-9.-]{0,8}", fullmatch=True)
some_hosts = st.lists(
    st.builds(Host, names, st.none() | st.integers(0, 5)), min_size=1, max_size=5, unique_by=lambda host: host.name
)


@given(some_hosts)
def test_hosts_are_read_as_they_are_written(hosts):
    text = ",".join(h.name if h.slots is None else f"{h.name}:{h.slots}" for h in hosts)
    assert parse_hosts(text) == hosts


@given(
    some_hosts,
    st.lists(st.sampled_from(["", "# nothing", "   "]), max_size=3),
    st.booleans(),
    st.sampled_from(["utf-8", "utf-8-sig"]),
    st.sampled_from(["\n", "\r\n"]),
)
def test_hostfiles_are_read_as_they_are_written(tmp_path_factory, hosts, between, mpi, encoding, newline):
    """Editors of Windows put a byte order mark before it."""
    form = "{} slots={}  # of Open MPI" if mpi else "{}:{}"
    lines = [h.name if h.slots is None else form.format(h.name, h.slots) for h in hosts]
    file = tmp_path_factory.mktemp("hosts") / "file"
    file.write_bytes(newline.join(between + lines).encode(encoding))
    assert read_hostfile(str(file)) == hosts


@given(some_hosts, st.none() | st.integers(1, 30))
def test_processes_fill_the_hosts_in_their_order(hosts, count):
    if len(hosts) == 1 and hosts[0].slots is None:
        assert assign_ranks(count, hosts) == [0] * (count or 1)
        return
    if total_capacity(hosts) == 0 or (count or 0) > total_capacity(hosts):
        with pytest.raises(ConfigError):
            assign_ranks(count, hosts)
        return
    placed = assign_ranks(count, hosts)
    assert placed == sorted(placed) and len(placed) == (count or total_capacity(hosts))
    for number, host in enumerate(hosts):
        takes = 1 if host.slots is None else host.slots
        full = number < placed[-1]
        assert placed.count(number) == takes if full else placed.count(number) <= takes
    only = [number for number, host in enumerate(hosts) if host.slots == 0]
    assert server_hosts(hosts, placed) == (only or sorted(set(placed)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("h1,h1:2", "contains h1 twice: list the host only once, with all its processes, as in h1:2"),
        (
            "h1,H1",
            "contains h1 and H1, which are the same host: list the host only once, with all its processes, as in",
        ),
        ("ann@h1:2,h1", "contains ann@h1 and h1, which are the same host: list the host only once"),
        ("h1,,h2", "'' is not a host: use NAME or NAME:PROCESSES"),
        ("h1:two", "the number of processes must be from 0 to 4096, as in h1:4"),
        ("h1:-1", "the number of processes must be from 0 to 4096"),
        ("h1:99999999999999999999", "the number of processes must be from 0 to 4096"),
        ("-oProxyCommand=touch x", "is not a host"),  # an option of ssh
        ("h1;reboot", "is not a host"),
    ],
)
def test_an_invalid_host_is_named(text, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        parse_hosts(text)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        *((content, r"--hostfile .*hosts") for content in (b"", b"# h1\n", b"\xff\xfe", b"h1 slots=x")),
        *(
            (line.encode(), f"line 1: '{line}' is not a host name with .*: write h1 slots")
            for line in ("h1 slots=2 max_slots=4", "h1 slots = 2", "h1 2")
        ),
        (b"h1 slots=2\nh2\nh1\n", r"^--hostfile .*hosts contains h1 twice: list the host only once"),
        (None, "cannot be read"),
    ],
)
def test_a_hostfile_with_a_mistake_is_named(content, message, tmp_path):
    if content is not None:
        (tmp_path / "hosts").write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        read_hostfile(str(tmp_path / "hosts"))
