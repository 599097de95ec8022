"""Network activity in idle-stop.py: many bytes between two updates, but no background traffic."""

import socket
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up_notebook import Quiet

HEAD = (
    "Inter-|   Receive                                                |  Transmit\n"
    " face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop\n"
)


def table(counts):
    """/proc/net/dev with {interface: (received, sent)}."""
    lines = [f"{name:>6}: {got} 12 0 0 0 0 0 0 {gave} 34 0 0 0 0 0 0\n" for name, (got, gave) in counts.items()]
    return HEAD + "".join(lines)


@pytest.fixture(scope="module")
def looked(tmp_path_factory):
    """``looked(idle_stop, [(time, counts), ...])``: what each look says."""
    path = tmp_path_factory.mktemp("proc") / "dev"

    def look(idle_stop, moments):
        network, output = idle_stop.NetworkActivity(str(path)), []
        for now, counts in moments:
            path.write_text(table(counts), encoding="ascii")
            output.append(network.find_activity(now))
        return output

    return look


BYTES = st.integers(0, 10**12)


@settings(max_examples=60, deadline=None)
@given(
    before=BYTES,
    lo=BYTES,
    seconds=st.floats(1, 3600),
    of_it=st.sampled_from([0.0, 0.3, 0.9, 1.1, 5.0, 1000.0]),
    sent=st.floats(0, 1),
)
def test_a_rate_above_the_threshold_is_use_whatever_the_interval(
    idle_stop_module, looked, before, lo, seconds, of_it, sent
):
    """Received or sent; the loopback may carry anything."""
    carried = int(of_it * idle_stop_module.BUSY_NETWORK * seconds)
    gave = int(carried * sent)
    later = {"lo": (lo + 10**12, lo), "eth0": (before + carried - gave, before + gave)}
    first, second = looked(idle_stop_module, [(5.0, {"lo": (0, 0), "eth0": (before, before)}), (5.0 + seconds, later)])
    assert first is None  # since the machine's start, not since a look
    assert (second is not None) is (of_it > 1)


def test_what_a_bridge_carries_counts_once_and_two_quiet_cards_are_quiet(idle_stop, looked):
    rate = int(0.7 * idle_stop.BUSY_NETWORK)
    still = {"eth0": (0, 0), "docker0": (0, 0)}
    moved = {"eth0": (60 * rate, 0), "docker0": (0, 60 * rate)}
    assert looked(idle_stop, [(0.0, still), (60.0, moved)]) == [None, None]


def test_counters_that_begin_anew_and_interfaces_that_come_and_go(idle_stop, looked):
    much = int(100 * 60 * idle_stop.BUSY_NETWORK)
    moments = [
        (0.0, {"eth0": (much, much)}),
        (60.0, {"eth0": (5, 5)}),  # the driver was loaded again
        (120.0, {"eth0": (5, 5), "eth1": (much, 0)}),  # all of it is since the last look
        (180.0, {"eth1": (much, 0)}),
        (240.0, {}),
        (300.0, {"eth1": (much, 0)}),
    ]
    assert [bool(output) for output in looked(idle_stop, moments)] == [False, False, True, False, False, True]
    assert looked(idle_stop, moments)[2] == "the network transferred 600.0 MB in 60 s"


def test_a_quiet_download_keeps_a_notebook_and_chatter_does_not(idle_stop, tmp_path):
    """An hour of each, looked at once a minute: 200 kB/s, then what the machine says by itself."""
    path, carried = tmp_path / "dev", 0

    class Jupyter:
        def read_state(self):
            return None, []

    network = idle_stop.NetworkActivity(str(path))
    timer = idle_stop.IdleTimer(Jupyter(), Quiet(), Quiet(), network, heartbeat="/nonexistent")
    idle = []
    for minute in range(120):
        carried += 60 * (200_000 if minute < 60 else 60_000)
        path.write_text(table({"eth0": (carried, 0)}), encoding="ascii")
        idle.append(timer.update(minute * 60.0)[0])
    assert max(idle[:60]) == 0
    assert idle[-1] == 3600


def test_without_the_table_no_network_is_at_work(idle_stop, tmp_path):
    network = idle_stop.NetworkActivity(str(tmp_path / "nothing"))
    assert [network.find_activity(0.0), network.find_activity(60.0)] == [None, None]


def test_the_numbers_of_this_machine_are_those_of_its_interfaces(idle_stop):
    """Against the kernel's other account, one file a number."""

    def account():
        return {
            card.name: sum(int((card / "statistics" / name).read_text()) for name in ("rx_bytes", "tx_bytes"))
            for card in Path("/sys/class/net").iterdir()
            if card.name != "lo" and (card / "statistics").is_dir()
        }

    before, ours, after = account(), idle_stop.NetworkActivity().byte_counts(), account()
    assert sorted(ours) == sorted(before)
    for name in ours:
        assert before[name] <= ours[name] <= after[name]


def test_the_loopback_of_this_machine_is_no_use(idle_stop):
    """Its Jupyter server, asked by the idle stop itself, answers over it."""
    network = idle_stop.NetworkActivity()
    before = network.byte_counts()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        sending = socket.create_connection(listening.getsockname())
        receiving, _ = listening.accept()
        with sending, receiving:
            thread = threading.Thread(target=sending.sendall, args=(bytes(30_000_000),))
            thread.start()
            left = 30_000_000
            while left:
                left -= len(receiving.recv(1 << 20))
            thread.join()
    after = network.byte_counts()
    assert max([after[name] - before.get(name, 0) for name in after] + [0]) < 30_000_000
