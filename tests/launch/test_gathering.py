"""Rank 0 takes each rank once, and none who says what no rank would."""

import asyncio
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.gatherings import HANGS, come, gathered, hello

from gluonlab.errors import RunError
from gluonlab.launch.connections import Connection, Way
from gluonlab.launch.hosts import Host
from gluonlab.launch.launcher import _sites_of

NONSENSE = {
    "an endless rank": b'{"here": "h", "pid": 1, "addresses": {}, "rank": Infinity, "size": 3}\n',
    "a rank that is none": hello(3),
    "rank 0 itself": hello(0),
    "another size": hello(1, size=4),
    "no addresses": b'{"here": "h", "pid": 1, "rank": 1, "size": 3}\n',
    "a rank in words": hello("1"),
    "another protocol": b"GET / HTTP/1.0\r\n\r\n",
    "nothing": b"",
    "a very long line": b"x" * 2**21,
}


@pytest.mark.parametrize("name", NONSENSE)
def test_who_says_nonsense_is_sent_away_and_the_others_are_taken(name):
    async def work(gathering, place, signals):
        reader, writer = await come(place, NONSENSE[name])
        if name == "nothing":
            writer.close()
        elif name == "a very long line":
            writer.transport.abort()
        else:
            assert await asyncio.wait_for(reader.read(), HANGS) == b""
        for rank in (2, 1):
            await come(place, hello(rank))
        return await gathering.ranks([1, 2])

    assert [each.rank for each in gathered(work)] == [1, 2]


def test_who_comes_first_with_a_rank_stays():
    async def work(gathering, place, signals):
        await come(place, hello(1, pid=11))
        await come(place, hello(2))
        while len(gathering._come) < 2:
            await asyncio.sleep(0.01)
        second, _ = await come(place, hello(1, pid=12, here="other"))
        assert await asyncio.wait_for(second.read(), HANGS) == b""  # sent away
        return await gathering.ranks([1, 2])

    assert [each.here for each in gathered(work)] == ["h1", "h2"]


def test_who_has_gone_may_be_started_again():
    async def work(gathering, place, signals):
        _, writer = await come(place, hello(1))
        await come(place, hello(2))
        first = await gathering.ranks([1, 2])
        await come(place, hello(1, here="again"))  # it waits until the first is missed
        writer.close()
        while first[0].gone is None:
            await asyncio.sleep(0.01)
        return [*first, *await gathering.ranks([1])]

    *first, again = gathered(work)
    assert (first[0].gone, again.gone) == ("has ended the connection", None)
    assert (again.rank, again.here) == (1, "again")


def test_several_that_do_not_come_are_one_line_and_those_that_came_are_there():
    async def work(gathering, place, signals):
        await come(place, hello(1, 4))
        await come(place, b"\n")
        while len(gathering._come) < 1 or gathering._strangers < 1:
            await asyncio.sleep(0.01)
        return await gathering.ranks([1, 2, 3])

    one, two, three = gathered(work, size=4, patience=0.1)
    assert one.rank == 1 and isinstance(two, RunError) and two is three
    assert str(two).startswith("of 4 processes that srun has started, rank 2, 3 has not come to")
    assert str(two).endswith("; 1 that came to it were none of them")


def test_a_signal_to_one_that_waits_is_heard():
    async def work(gathering, place, signals):
        await come(place, hello(1), {"came": 15})
        waiting = asyncio.ensure_future(gathering.ranks([1, 2]))
        while not signals:
            await asyncio.sleep(0.01)
        assert not waiting.done()  # rank 2 has not come
        return signals

    assert gathered(work) == [15]


MESSAGES = st.dictionaries(
    st.sampled_from(["of", "line", "stream", "ended", "status", "stopped", "seconds", "came", "x"]),
    st.integers(-3, 300) | st.floats() | st.text(max_size=4) | st.none(), max_size=3,
)  # fmt: skip


@settings(max_examples=8)
@given(st.lists(st.binary(max_size=60) | MESSAGES, min_size=12, max_size=12))
def test_whatever_one_says_later_it_ends_with_one_line(said):
    size = 1 + len(said)

    async def work(gathering, place, signals):
        writers = [(await come(place, hello(rank, size)))[1] for rank in range(1, size)]
        found = await gathering.ranks(range(1, size))
        for writer, words in zip(writers, said):
            writer.write(words if isinstance(words, bytes) else json.dumps(words).encode() + b"\n")
            writer.write_eof()
        while any(each.gone is None for each in found):
            await asyncio.sleep(0.005)
        return [each.gone for each in found]

    for why in gathered(work, size=size):
        assert why.startswith(("has ended the connection", "has said what is no message: "))
        assert why.isprintable()


def connection(host, rank):
    async def make():  # Python 3.8 and 3.9 want a loop for it
        return Connection(Host(host), Way(), rank=rank)

    return asyncio.run(make())


@pytest.mark.parametrize("first", [0, 1])
def test_hosts_are_told_an_address_that_all_of_them_reach(first):
    """Rank 1 comes over the loopback device, as rank 0's own name leads there, rank 2 does not."""
    local = connection("a", 1)
    local.address, local.own_address = "127.0.0.1", "127.0.1.1"
    far = connection("b", 2)
    far.address, far.own_address = "192.0.2.2", "192.0.2.1"
    here = connection("a", 0)
    others = [local, far] if first == 0 else [far, local]
    found = [site.address for site in _sites_of([here, *others], named=False)]
    expected = {None: "192.0.2.1", "127.0.0.1": "192.0.2.1", "192.0.2.2": "192.0.2.2"}
    assert found == [expected[each.address] for each in (here, *others)]


def test_one_host_alone_is_told_its_loopback_address():
    local = connection("a", 1)
    local.address, local.own_address = "127.0.0.1", "127.0.0.1"
    here = connection("a", 0)
    assert {site.address for site in _sites_of([here, local], named=False)} == {"127.0.0.1"}
