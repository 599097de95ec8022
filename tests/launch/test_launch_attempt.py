"""Attempts and agents: their patience with the other end, and whatever that says is one line."""

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
from support.small_group import start_small_group

from gluonlab.errors import ConfigError
from gluonlab.launch.agent_connections import AgentConnection, SshOptions
from gluonlab.launch.group_processes import RANK_VARIABLE, ProcessSpec
from gluonlab.launch.host_agent import HostAgent
from gluonlab.launch.hosts import Host
from gluonlab.launch.launch_attempt import FAILURE_WINDOW_S, AttemptFailure, LaunchAttempt

LATE = "did not start within {0:g} s: where the machine is only busy, --patience {1:g} gives them"
CUT_OFF = "found no way to the others: is a port closed?"


def fails_after(seconds, patience, told):
    """The failures of an attempt that is so old. ``told``: by rank, what each has said."""

    async def look():
        connection, inbox = (AgentConnection(Host("h1", 1), SshOptions(patience=patience)), asyncio.Queue())
        parts = [ProcessSpec(f"rank {n}", 0, [], {RANK_VARIABLE: str(n)}) for n in range(len(told))]
        attempt = LaunchAttempt(parts, [connection], inbox, print, patience, "/", {})
        for part, lines in zip(parts, told):
            for line in lines:
                attempt._handle_message(connection, {"of": part.name, "stream": "came", "line": line})
        attempt._check_progress(seconds)
        return [str(each) for each in attempt._failures]

    return asyncio.run(look())


@pytest.mark.parametrize(("patience", "start"), [(5, 30), (100, 100)])
def test_ranks_that_do_not_come_are_named_in_time_and_not_before(patience, start):
    """Time to load MXNet on a busy host is there, however short the patience."""
    nothing = [("arrived",), (), ()]
    assert fails_after(0.99 * start, patience, nothing) == []
    [said] = fails_after(1.01 * start, patience, nothing)
    assert said.startswith(f"rank 1, rank 2 {LATE.format(start, 4 * start)}")
    alone = [("arrived", "joined"), ("arrived",), ("arrived",)]
    assert fails_after(1.99 * start, patience, alone) == []
    assert fails_after(2.01 * start, patience, alone) == [f"rank 1, rank 2 {CUT_OFF}"]
    together = [("arrived", "joined")] * 3
    assert fails_after(1000 * start, patience, together) == []


@pytest.mark.parametrize("patience", [4, 30, 3600])
def test_an_agent_is_lost_when_it_was_silent_for_half_of_the_patience_and_not_before(patience, monkeypatch):
    """And so is a process that somebody has stopped for as long."""
    now = 7.0
    for module in ("launch_attempt", "agent_connections"):
        monkeypatch.setattr(f"gluonlab.launch.{module}.liveness_clock", lambda: now)

    async def look():
        nonlocal now
        connection = AgentConnection(Host("h1", 1), SshOptions(patience=patience))
        part = ProcessSpec("rank 0", 0, [], {RANK_VARIABLE: "0"})
        attempt, said = (LaunchAttempt([part], [connection], asyncio.Queue(), print, patience, "/", {}), [])
        for share in (0.4, 0.49, 0.51):
            now = 7.0 + share * patience
            attempt._handle_message(connection, {"stopped": "rank 0", "seconds": share * patience})
            attempt._check_progress(0)
            said.append((connection.loss_reason, [str(each) for each in attempt._failures]))
        return said

    silent = f"has given no sign of life for {0.51 * patience:.0f} s"
    stopped = f"rank 0 on h1 has been stopped for {0.51 * patience:.0f} s"
    assert asyncio.run(look()) == [(None, []), (None, []), (silent, [stopped])]


@pytest.mark.parametrize("ended_at", [0.25, 5.0, 1e6])
@pytest.mark.parametrize("left", [0, 1, 2])
def test_a_server_may_end_before_ranks_that_leave_within_the_window_and_no_earlier(left, ended_at, monkeypatch):
    """``left``: so many of two ranks have left the group, and need no server."""
    now = ended_at
    monkeypatch.setattr("gluonlab.launch.launch_attempt.liveness_clock", lambda: now)

    async def look():
        nonlocal now
        connection = AgentConnection(Host("h1", 1), SshOptions(patience=60))
        parts = [ProcessSpec(f"rank {n}", 0, [], {RANK_VARIABLE: str(n)}) for n in range(2)]
        parts.append(ProcessSpec("server 0", 0, [], {}))
        attempt = LaunchAttempt(parts, [connection], asyncio.Queue(), print, 60, "/", {})
        for part in parts[:2]:
            for line in ("arrived", "joined"):
                attempt._handle_message(connection, {"of": part.name, "stream": "came", "line": line})
        for part in parts[:left]:
            attempt._handle_message(connection, {"of": part.name, "stream": "came", "line": "left"})
        attempt._handle_message(connection, {"ended": "server 0", "status": 0})
        said = []
        for later in (0, 0.99 * FAILURE_WINDOW_S, 1.01 * FAILURE_WINDOW_S):
            now = ended_at + later
            attempt._check_progress(0)
            said.append([str(each) for each in attempt._failures])
        return said

    early = ["server 0 on h1 ended with status 0, before the training did"]
    assert asyncio.run(look()) == [[], [], early if left < 2 else []]


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
    parts = [ProcessSpec("server 0", 0, [], {}), ProcessSpec("rank 0", 0, [], {RANK_VARIABLE: "0"})]
    return LaunchAttempt(parts, [connection], inbox, lambda *a: lines.append(a), HANGS, "/", {})


def attempted(said, hangs_up=True):
    """How an attempt ends whose only agent says this; and the lines that it passed on."""

    async def attempting():
        (reader, writer), (_, theirs) = await ends()
        lines, inbox = [], asyncio.Queue()
        connection = AgentConnection(Host("h1", 1), SshOptions(patience=HANGS), writer)
        connection.start_listening(reader, {"here": "h1", "pid": 1, "addresses": {}}, inbox)
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
    assert failure is None or isinstance(failure, AttemptFailure)
    assert {who for who, *_ in lines} <= {"rank 0", "server 0"}
    if said == [{"ended": "rank 0", "status": -9}]:
        assert str(failure) == "rank 0 on h1 was killed by SIGKILL"


@settings(max_examples=60)
@given(st.binary(max_size=100))
def test_whatever_bytes_an_agent_sends_the_attempt_ends_with_one_line(said):
    failure, lines = attempted(said)
    assert str(failure).startswith("host h1 has ") and str(failure).isprintable() and not lines


HOSTILE = {
    '{"of": "rank 7", "stream": "out", "line": "x"}': ("speaks of 'rank 7', which it was not given to start"),
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
        agent = HostAgent(reader, writer, checked=refused)
        theirs.write(said if isinstance(said, bytes) else words(said))
        theirs.write_eof()
        await asyncio.wait_for(agent.serve(), HANGS)
        return agent, await answers.read()

    agent, answers = asyncio.run(serving())
    for line in answers.splitlines():
        json.loads(line)
    assert answers.count(b'"ended"') == len(started)
    assert agent.message_error is None or str(agent.message_error).isprintable()


def test_an_agent_says_in_one_line_what_it_cannot_read():
    done = subprocess.run(
        [sys.executable, "-m", "gluonlab.launch.host_agent"], env=clean_environment(),
        input='{"start": 1}\n', capture_output=True, text=True, timeout=HANGS, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (
        1, "the launcher has said what is no message: '{\"start\": 1}'\n"
    )  # fmt: skip


def test_an_agent_answers_on_its_output_where_its_input_is_a_socket():
    """As asyncio makes them before Python 3.10."""
    theirs, ours = socket.socketpair()
    with ours, theirs, subprocess.Popen(
        [sys.executable, "-m", "gluonlab.launch.host_agent"], env=clean_environment(), stdin=theirs,
        stdout=subprocess.PIPE,
    ) as agent:  # fmt: skip
        theirs.close()
        ours.shutdown(socket.SHUT_WR)
        hello, _ = agent.communicate(timeout=HANGS)
    assert json.loads(hello.splitlines()[0])["pid"] == agent.pid and agent.returncode == 0


def test_a_process_that_has_a_hostile_name_for_a_line_speaks_to_no_terminal(tmp_path):
    code = 'sys.stdout.write("\\x1b[2J\\x9b\\r\\0\\u202e")\nsys.stdout.flush()\ntell("left")\n'
    with start_small_group(tmp_path, {"rank 0": code}) as run:
        assert run.stdout.read() == b"[0] \\x1b[2J\\x9b\\r\\x00\\u202e\n"


def test_a_signal_that_comes_while_the_others_end_is_not_lost():
    """Whoever asks for the end wants no restart after a failure of a moment before."""

    async def attempting():
        (reader, writer), (heard, theirs) = await ends()
        inbox = asyncio.Queue()
        connection = AgentConnection(Host("h1", 1), SshOptions(patience=HANGS), writer)
        connection.start_listening(reader, {"here": "h1", "pid": 1, "addresses": {}}, inbox)
        attempt = of_one_rank(connection, inbox, [])
        theirs.write(words([{"ended": "rank 0", "status": -9}]))
        running = asyncio.ensure_future(attempt.run())
        while "end" not in json.loads(await asyncio.wait_for(heard.readline(), HANGS)):
            pass
        theirs.write(words([{"came": int(signal.SIGTERM)}, {"all_ended": True}]))
        return await asyncio.wait_for(running, HANGS), attempt

    failure, attempt = asyncio.run(attempting())
    assert failure.who == "rank 0 on h1" and attempt.signal == signal.SIGTERM
