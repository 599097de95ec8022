"""Launchers whose agents say anything, and agents whose launchers do: one line, no traceback."""

import asyncio
import json
import signal
import socket
import subprocess
import sys

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.processes import clean_environment
from support.small_group import group

from gluonlab.errors import ConfigError
from gluonlab.launch.agent import Agent
from gluonlab.launch.attempt import Attempt, Failure
from gluonlab.launch.connections import Connection, Way
from gluonlab.launch.hosts import Host
from gluonlab.launch.parts import RANK, Part

HANGS = 240  # seconds: only what hangs takes so long
NAMES = st.sampled_from(["rank 0", "server 0", "rank 7", "", "\x1b[2J"])
OF_AGENTS = st.one_of(
    st.fixed_dictionaries({
        "of": NAMES, "stream": st.sampled_from(["out", "err", "came"]),
        "line": st.sampled_from(["arrived", "left", "left more", "error: \x1b", ""]) | st.text(),
    }),
    st.fixed_dictionaries({"ended": NAMES, "status": st.integers(-300, 300)}),
    st.fixed_dictionaries({"stopped": NAMES, "seconds": st.floats() | st.integers(0, 2 * HANGS)}),
    st.fixed_dictionaries({"came": st.integers(0, 20)}),
    st.just({"all_ended": True}), st.just({"gone": True}), st.just({"port": 7}),
)  # fmt: skip
OF_LAUNCHERS = st.one_of(
    st.fixed_dictionaries({"patience": st.floats()}),
    st.fixed_dictionaries({"port": st.integers(-1, 70000)}),
    st.fixed_dictionaries({
        "start": NAMES, "words": st.lists(st.text(max_size=3), max_size=2),
        "folder": st.text(max_size=3),
        "environment": st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2),
    }),
    st.fixed_dictionaries({"signal": st.integers(0, 20), "to": st.lists(NAMES, max_size=2)}),
    st.fixed_dictionaries({"printed": st.integers(-9, 9)}),
    st.fixed_dictionaries({"done": st.integers(-1, 300)}),
)  # fmt: skip


def words(messages):
    return "".join(json.dumps(each) + "\n" for each in messages).encode()


async def ends():
    """Two ends of one connection, each a reader and a writer."""
    return [await asyncio.open_connection(sock=each) for each in socket.socketpair()]


def of_one_rank(connection, inbox, lines):
    parts = [Part("server 0", 0, [], {}), Part("rank 0", 0, [], {RANK: "0"})]
    return Attempt(parts, [connection], inbox, lambda *a: lines.append(a), HANGS, "/", {})


def attempted(said, hangs_up=True):
    """How an attempt ends whose only agent says this; and the lines that it passed on."""

    async def attempting():
        (reader, writer), (_, theirs) = await ends()
        lines, inbox = [], asyncio.Queue()
        connection = Connection(Host("h1", 1), Way(patience=HANGS), writer)
        connection.begin(reader, {"here": "h1", "pid": 1, "addresses": {}}, inbox)
        attempt = of_one_rank(connection, inbox, lines)
        theirs.write(said)
        if hangs_up:
            theirs.write_eof()
        return await asyncio.wait_for(attempt.run(), HANGS), lines

    return asyncio.run(attempting())


@settings(max_examples=60)
@given(st.lists(OF_AGENTS, max_size=6))
@example([{"ended": "rank 0", "status": -9}])
def test_whatever_an_agent_says_the_attempt_ends_with_a_reason(said):
    failure, lines = attempted(words(said))
    assert failure is None or isinstance(failure, Failure)
    assert {who for who, *_ in lines} <= {"rank 0", "server 0"}
    if said == [{"ended": "rank 0", "status": -9}]:
        assert str(failure) == "rank 0 on h1 was killed by SIGKILL"


@settings(max_examples=60)
@given(st.binary(max_size=100))
def test_whatever_bytes_an_agent_sends_the_attempt_ends_with_one_line(said):
    failure, lines = attempted(said)
    assert str(failure).startswith("host h1 has ") and str(failure).isprintable() and not lines


HOSTILE = {
    '{"of": "rank 7", "stream": "out", "line": "x"}': (
        "speaks of 'rank 7', which it was not given to start"
    ),
    '{"ended": "rank 0"}': """has said what is no message: '{"ended": "rank 0"}'""",
    '{"stopped": "rank 0", "seconds": NaN}': (
        """has said what is no message: '{"stopped": "rank 0", "seconds": NaN}'"""
    ),
}


@pytest.mark.parametrize("said", HOSTILE)
def test_an_agent_that_says_it_is_named(said):
    failure, _ = attempted(f"{said}\n".encode(), hangs_up=False)
    assert str(failure) == f"host h1 {HOSTILE[said]}"


@settings(max_examples=60)
@given(st.lists(OF_LAUNCHERS, max_size=6) | st.binary(max_size=100))
def test_whatever_a_launcher_says_an_agent_starts_nothing_and_ends(said):
    started = []

    def refused(message):
        started.append(message["start"])
        raise ConfigError("nothing is to be started")

    async def serving():
        (reader, writer), (answers, theirs) = await ends()
        agent = Agent(reader, writer, checked=refused)
        theirs.write(said if isinstance(said, bytes) else words(said))
        theirs.write_eof()
        await asyncio.wait_for(agent.serve(), HANGS)
        return agent, await answers.read()

    agent, answers = asyncio.run(serving())
    for line in answers.splitlines():
        json.loads(line)
    assert answers.count(b'"ended"') == len(started)
    assert agent.fault is None or str(agent.fault).isprintable()


def test_an_agent_says_in_one_line_what_it_cannot_read():
    done = subprocess.run(
        [sys.executable, "-m", "gluonlab.launch.agent"], env=clean_environment(),
        input='{"start": 1}\n', capture_output=True, text=True, timeout=HANGS, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (
        1, "the launcher has said what is no message: '{\"start\": 1}'\n"
    )  # fmt: skip


def test_an_agent_answers_on_its_output_where_its_input_is_a_socket():
    """As asyncio makes them before Python 3.10."""
    theirs, ours = socket.socketpair()
    with ours, theirs, subprocess.Popen(
        [sys.executable, "-m", "gluonlab.launch.agent"], env=clean_environment(), stdin=theirs,
        stdout=subprocess.PIPE,
    ) as agent:  # fmt: skip
        theirs.close()
        ours.shutdown(socket.SHUT_WR)
        hello, _ = agent.communicate(timeout=HANGS)
    assert json.loads(hello.splitlines()[0])["pid"] == agent.pid and agent.returncode == 0


def test_a_process_that_has_a_hostile_name_for_a_line_speaks_to_no_terminal(tmp_path):
    code = 'sys.stdout.write("\\x1b[2J\\x9b\\r\\0\\u202e")\nsys.stdout.flush()\ntell("left")\n'
    with group(tmp_path, {"rank 0": code}) as run:
        assert run.stdout.read() == b"[0] \\x1b[2J\\x9b\\r\\x00\\u202e\n"


def test_a_signal_that_comes_while_the_others_end_is_not_lost():
    """Whoever asks for the end wants no restart after a failure of a moment before."""

    async def attempting():
        (reader, writer), (heard, theirs) = await ends()
        inbox = asyncio.Queue()
        connection = Connection(Host("h1", 1), Way(patience=HANGS), writer)
        connection.begin(reader, {"here": "h1", "pid": 1, "addresses": {}}, inbox)
        attempt = of_one_rank(connection, inbox, [])
        theirs.write(words([{"ended": "rank 0", "status": -9}]))
        running = asyncio.ensure_future(attempt.run())
        while "end" not in json.loads(await asyncio.wait_for(heard.readline(), HANGS)):
            pass
        theirs.write(words([{"came": int(signal.SIGTERM)}, {"all_ended": True}]))
        return await asyncio.wait_for(running, HANGS), attempt

    failure, attempt = asyncio.run(attempting())
    assert failure.who == "rank 0 on h1" and attempt.signal == signal.SIGTERM
