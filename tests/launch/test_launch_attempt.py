"""Attempts and agents wait for the other end with patience, and report any nonsense in one line."""

import asyncio
import json
import signal
import socket
import subprocess
import sys

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.gatherings import HANG_LIMIT_S
from support.processes import clean_environment
from support.small_group import start_small_group

from gluonlab.errors import ConfigError
from gluonlab.launch.agent_connections import AgentConnection, SshOptions
from gluonlab.launch.group_processes import RANK_VARIABLE, ProcessSpec
from gluonlab.launch.host_agent import HostAgent
from gluonlab.launch.hosts import Host
from gluonlab.launch.launch_attempt import FAILURE_WINDOW_S, AttemptFailure, LaunchAttempt

RANKS = [ProcessSpec(f"rank {rank}", 0, [], {RANK_VARIABLE: str(rank)}) for rank in range(3)]
SERVER = ProcessSpec("server 0", 0, [], {})


def make_attempt(connection, processes, patience, on_line=print, inbox=None):
    return LaunchAttempt(processes, [connection], inbox or asyncio.Queue(), on_line, patience, "/", {})


def watch_attempt(processes, patience, messages_by_time, monkeypatch=None, start=7.0):
    """Return the failures, and the reason why the agent is lost, at each of some times.

    ``messages_by_time``: {seconds since the start: messages of the agent at this time}.
    """
    now = start
    if monkeypatch:
        for module in ("launch_attempt", "agent_connections"):
            monkeypatch.setattr(f"gluonlab.launch.{module}.liveness_clock", lambda: now)

    async def watch():
        nonlocal now
        connection = AgentConnection(Host("h1", 1), SshOptions(patience=patience))
        attempt, results = make_attempt(connection, processes, patience), []
        for seconds, messages in messages_by_time.items():
            now = start + seconds
            for message in messages:
                attempt._handle_message(connection, message)
            attempt._record_stalled_processes(0 if monkeypatch else seconds)
            results.append(([str(failure) for failure in attempt._failures], connection.loss_reason))
        return results

    return asyncio.run(watch())


def status_messages(*statuses):
    """``statuses``: for each rank, what it reports."""
    return [
        {"process": f"rank {rank}", "stream": "status", "line": status}
        for rank, reported in enumerate(statuses)
        for status in reported
    ]


LATE = (
    "rank 1, rank 2 did not start within {0:g} s: if the machine is only busy, increase the limit with --timeout {1:g}"
)
CUT_OFF = "rank 1, rank 2 could not connect to the other processes: check that no firewall blocks the port"


@pytest.mark.parametrize(("patience", "start"), [(5, 30), (100, 100)])
def test_missing_ranks_are_named_in_time_and_not_earlier(patience, start):
    """A process has time to load MXNet on a busy host, however short the patience."""
    arrived, joined = ("arrived",), ("arrived", "joined")
    for statuses, early, late, failure in (
        ((arrived, (), ()), 0.99, 1.01, LATE.format(start, 4 * start)),
        ((joined, arrived, arrived), 1.99, 2.01, CUT_OFF),
    ):
        messages = {early * start: status_messages(*statuses), late * start: []}
        assert watch_attempt(RANKS, patience, messages) == [([], None), ([failure], None)]
    assert watch_attempt(RANKS, patience, {1000 * start: status_messages(*[joined] * 3)}) == [([], None)]


@pytest.mark.parametrize("patience", [4, 30, 3600])
def test_a_silent_agent_and_a_stopped_process_are_lost_after_half_of_the_patience(patience, monkeypatch):
    messages = {
        share * patience: [{"process": "rank 0", "suspended_s": share * patience}] for share in (0.4, 0.49, 0.51)
    }
    silent = f"has sent no heartbeat for {0.51 * patience:.0f} s"
    stopped = f"rank 0 on h1 was suspended for {0.51 * patience:.0f} s"
    results = watch_attempt(RANKS[:1], patience, messages, monkeypatch)
    assert results == [([], None), ([], None), ([stopped], silent)]


@pytest.mark.parametrize("end_time", [0.25, 5.0, 1e6])
@pytest.mark.parametrize("count", [0, 1, 2])
def test_a_server_may_end_while_ranks_leave_within_the_window_and_no_earlier(count, end_time, monkeypatch):
    """``count`` of two ranks have left the group, and need no server."""
    statuses = [("arrived", "joined", "left")] * count + [("arrived", "joined")] * (2 - count)
    ended = {"process": "server 0", "exit_status": 0}
    messages = {0: [*status_messages(*statuses), ended], 0.99 * FAILURE_WINDOW_S: [], 1.01 * FAILURE_WINDOW_S: []}
    results = watch_attempt([*RANKS[:2], SERVER], 60, messages, monkeypatch, start=end_time)
    failures = ["server 0 on h1 exited with status 0 before the training ended"] if count < 2 else []
    assert [failed for failed, _ in results] == [[], [], failures]


NAMES = st.sampled_from(["rank 0", "server 0", "rank 7", "", "\x1b[2J"])
STATUS_LINES = st.sampled_from(["arrived", "left", "left more", "error: \x1b", ""])
SUSPENSIONS = st.floats() | st.integers(0, 2 * HANG_LIMIT_S)


def message_forms(*forms):
    return st.one_of(*map(st.fixed_dictionaries, forms))


AGENT_MESSAGES = message_forms(
    {"process": NAMES, "stream": st.sampled_from(["out", "err", "status"]), "line": STATUS_LINES | st.text()},
    {"process": NAMES, "exit_status": st.integers(-300, 300)},
    {"process": NAMES, "suspended_s": SUSPENSIONS},
    {"signal": st.integers(0, 20)},
    *({name: st.just(value)} for name, value in (("all_ended", True), ("loss_reason", "x"), ("port", 7))),
)
WORDS = st.text(max_size=3)
LAUNCHER_MESSAGES = message_forms(
    {"start": NAMES, "words": st.lists(WORDS, max_size=2), "folder": WORDS,
     "environment": st.dictionaries(WORDS, WORDS, max_size=2)},
    {"signal": st.integers(0, 20), "processes": st.lists(NAMES, max_size=2)},
    {"patience": st.floats()}, {"port": st.integers(-1, 70000)}, {"printed": st.integers(-9, 9)},
    {"exit_status": st.integers(-1, 300)},
)  # fmt: skip


def encode_messages(messages):
    return "".join(json.dumps(message) + "\n" for message in messages).encode()


async def open_socket_pair():
    """Return the two ends of a connection, each a reader and a writer."""
    return [await asyncio.open_connection(sock=end) for end in socket.socketpair()]


async def connect_attempt(lines):
    """Return an attempt with one rank and one server, and the agent's end of its connection."""
    (reader, writer), agent = await open_socket_pair()
    inbox = asyncio.Queue()
    connection = AgentConnection(Host("h1", 1), SshOptions(patience=HANG_LIMIT_S), writer)
    connection.start_listening(reader, {"hostname": "h1", "pid": 1, "addresses": {}}, inbox)
    attempt = make_attempt(connection, [SERVER, RANKS[0]], HANG_LIMIT_S, lambda *line: lines.append(line), inbox)
    return attempt, agent


def run_attempt(data, hangs_up=True):
    """Return the failure of an attempt whose only agent sends ``data``, and the forwarded lines."""

    async def run():
        lines = []
        attempt, (_, writer) = await connect_attempt(lines)
        writer.write(data)
        if hangs_up:
            writer.write_eof()
        return await asyncio.wait_for(attempt.run(), HANG_LIMIT_S), lines

    return asyncio.run(run())


@settings(max_examples=60)
@given(st.lists(AGENT_MESSAGES, max_size=6))
@example([{"process": "rank 0", "exit_status": -9}])
def test_an_attempt_ends_with_a_reason_whatever_its_agent_sends(messages):
    failure, lines = run_attempt(encode_messages(messages))
    assert failure is None or isinstance(failure, AttemptFailure)
    assert {process for process, *_ in lines} <= {"rank 0", "server 0"}
    if messages == [{"process": "rank 0", "exit_status": -9}]:
        assert str(failure) == "rank 0 on h1 was killed by SIGKILL"


@settings(max_examples=60)
@given(st.binary(max_size=100))
def test_an_attempt_ends_with_one_line_whatever_bytes_its_agent_sends(data):
    failure, lines = run_attempt(data)
    assert str(failure).startswith(("host h1 has ", "host h1 sent ")) and str(failure).isprintable() and not lines


@pytest.mark.parametrize(
    "message",
    ['{"process": "rank 7", "stream": "out", "line": "x"}', '{"process": "rank 0"}',
     '{"process": "rank 0", "suspended_s": NaN}'],
)  # fmt: skip
def test_an_agent_that_breaks_the_protocol_is_named(message):
    failure, _ = run_attempt(f"{message}\n".encode(), hangs_up=False)
    reason = f"sent an invalid message: '{message}'"
    if "rank 7" in message:
        reason = "reported 'rank 7', which it was not asked to start"
    assert str(failure) == f"host h1 {reason}"


@settings(max_examples=60)
@given(st.lists(LAUNCHER_MESSAGES, max_size=6) | st.binary(max_size=100))
def test_an_agent_starts_nothing_and_ends_whatever_a_launcher_sends(sent):
    requests = []

    def refuse(message):
        requests.append(message["start"])
        raise ConfigError("nothing is to be started")

    async def serve():
        (reader, writer), (answers, launcher) = await open_socket_pair()
        agent = HostAgent(reader, writer, check_request=refuse)
        launcher.write(sent if isinstance(sent, bytes) else encode_messages(sent))
        launcher.write_eof()
        await asyncio.wait_for(agent.serve(), HANG_LIMIT_S)
        return agent, await answers.read()

    agent, answers = asyncio.run(serve())
    assert sum("exit_status" in json.loads(line) for line in answers.splitlines()) == len(requests)
    assert agent.message_error is None or str(agent.message_error).isprintable()


AGENT_COMMAND = [sys.executable, "-m", "gluonlab.launch.host_agent"]


def test_an_agent_says_in_one_line_what_it_cannot_read():
    agent = subprocess.run(
        AGENT_COMMAND, env=clean_environment(), input='{"start": 1}\n', capture_output=True, text=True,
        timeout=HANG_LIMIT_S,
    )  # fmt: skip
    assert (agent.returncode, agent.stderr) == (1, "the launcher sent an invalid message: '{\"start\": 1}'\n")


def test_an_agent_answers_on_its_output_where_its_input_is_a_socket():
    """As asyncio makes them before Python 3.10."""
    launcher, own = socket.socketpair()
    with own, launcher, subprocess.Popen(
        AGENT_COMMAND, env=clean_environment(), stdin=launcher, stdout=subprocess.PIPE
    ) as agent:
        launcher.close()
        own.shutdown(socket.SHUT_WR)
        hello, _ = agent.communicate(timeout=HANG_LIMIT_S)
    assert json.loads(hello.splitlines()[0])["pid"] == agent.pid and agent.returncode == 0


def test_a_line_of_control_characters_is_escaped(tmp_path):
    code = 'sys.stdout.write("\\x1b[2J\\x9b\\r\\0\\u202e")\nsys.stdout.flush()\ntell("left")\n'
    with start_small_group(tmp_path, {"rank 0": code}) as run:
        assert run.stdout.read() == b"[0] \\x1b[2J\\x9b\\r\\x00\\u202e\n"


def test_a_signal_that_comes_while_the_others_end_is_not_lost():
    """Whoever asks for the end wants no restart after a failure of a moment before."""

    async def run():
        attempt, (reader, writer) = await connect_attempt([])
        writer.write(encode_messages([{"process": "rank 0", "exit_status": -9}]))
        running = asyncio.ensure_future(attempt.run())
        while "end" not in json.loads(await asyncio.wait_for(reader.readline(), HANG_LIMIT_S)):
            pass
        writer.write(encode_messages([{"signal": int(signal.SIGTERM)}, {"all_ended": True}]))
        return await asyncio.wait_for(running, HANG_LIMIT_S), attempt

    failure, attempt = asyncio.run(run())
    assert failure.source == "rank 0 on h1" and attempt.signal == signal.SIGTERM
