"""python -m gluonlab.launch --hosts: machines with addresses of their own, reached over ssh.

They are network namespaces, each with an sshd, and keys made for the test; part of make
check-launch, which needs root, iproute2 and OpenSSH.
"""

import os
import re
import signal

import numpy as np
import pytest
from support.launcher import QUICK_LAUNCH_OPTIONS, have_same_bits, start_launcher, surviving_processes
from support.namespaces import create_hosts, require_namespaces
from support.run_files import read_metrics

pytestmark = [pytest.mark.hosts, pytest.mark.cpu_only("the processes compute on CPU devices, whoever started them")]
RUN = [*QUICK_LAUNCH_OPTIONS, "--threads", "1", "--epochs", "6", "--momentum", "0.9", "--checkpoint-every", "16 steps"]


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """A host for servers, and two for workers."""
    require_namespaces()
    with create_hosts(tmp_path_factory.mktemp("hosts"), "h0", "h1", "h2") as network:
        yield network


def launch_on_hosts(three, folder, *words, hosts="h0:0,h1,h2", backend="dist_sync", **more):
    """``words`` take precedence over the options that all tests give."""
    common = ["--hosts", hosts, "--ssh", three.ssh, "--backend", backend, "--timeout", "12"]
    return start_launcher(folder, *common, *words, before=three.inside, **more)


@pytest.fixture(scope="module")
def whole(three, tmp_path_factory):
    """The folder of the undisturbed run. Of two workers' numbers there is one sum: every backend
    has its bits.
    """
    folder = tmp_path_factory.mktemp("whole")
    with launch_on_hosts(three, folder, "--", *RUN, "--out", "run") as run:
        status, text = run.wait_for_exit()
    assert status == 0, text
    return folder / "run"


def cut_off(run, three):
    three.set_link_state("h2", "down")


FAULTS = {
    "a worker is killed": (
        lambda run, three: os.kill(run.process_ids()["rank 1"], signal.SIGKILL),
        "rank 1 on h2 was killed by SIGKILL",
    ),
    "a link is down": (cut_off, "host h2 has sent no heartbeat for"),
    "a worker is stopped": (
        lambda run, three: os.kill(run.process_ids()["rank 1"], signal.SIGSTOP),
        "rank 1 on h2 was suspended for",
    ),
}


def faults(backend, *usual):
    """Yield all faults, of which only the ``usual`` ones are not long tests."""
    for name in FAULTS:
        marks = [pytest.mark.horovod] * (backend == "horovod") + [pytest.mark.long] * (name not in usual)
        yield pytest.param(name, backend, marks=marks)


@pytest.mark.parametrize(("name", "backend"), [*faults("dist_sync", "a link is down"), *faults("horovod")])
def test_what_fails_ends_all_in_time(name, backend, three, tmp_path):
    fault, said = FAULTS[name]
    run = ["--", *RUN, "--epochs", "90000", "--out", "run"]  # hours
    with launch_on_hosts(three, tmp_path, *run, backend=backend) as run:
        run.wait_for("epoch     1/90000")
        pids = set(run.process_ids().values())
        fault(run, three)
        try:
            status, text = run.wait_for_exit()
            assert not surviving_processes(pids)  # the agent of a host that is cut off ends by itself
        finally:
            three.set_link_state("h2", "up")
    assert status != 0 and text.splitlines()[-1].startswith(f"error: {said}"), text


@pytest.mark.parametrize(
    ("name", "backend"),
    [*faults("dist_sync", "a link is down", "a worker is stopped"), *faults("horovod", "a worker is killed")],
)
def test_restarted_it_has_the_bits_of_the_undisturbed_run(name, backend, three, whole, tmp_path):
    fault, said = FAULTS[name]
    run = ["--max-restarts", "1", "--", *RUN, "--out", "run"]
    with launch_on_hosts(three, tmp_path, *run, backend=backend) as run:
        run.wait_for("epoch 1/6")  # it takes some seconds in all
        fault(run, three)
        if name == "a link is down":
            run.wait_for("warning: ")
            three.set_link_state("h2", "up")
        status, text = run.wait_for_exit()
    assert status == 0, text
    assert f"warning: {said}" in text
    assert have_same_bits(whole, tmp_path / "run")


@pytest.mark.long
@pytest.mark.horovod
def test_a_host_whose_name_leads_to_itself_alone_is_named(three, tmp_path):
    """As 127.0.1.1 does, which Horovod would tell the other hosts."""
    before = three.set_address("h2", "127.0.1.1")
    try:
        with launch_on_hosts(three, tmp_path, "--", *RUN, backend="horovod") as run:
            status, text = run.wait_for_exit(60)
    finally:
        three.set_address("h2", before)
    assert status == 2
    [error] = [line for line in text.splitlines() if "error: " in line]
    assert re.match("error: rank 1 on h2: the name of this host, .*, resolves to 127.0", error)
    assert error.endswith(f"map the name to {before} in /etc/hosts")


def test_when_a_host_is_gone_for_good_the_others_go_on_with_the_same_batches(three, tmp_path):
    """The losses of the steps show which images a batch had.

    Weights cannot show it: sums of three workers are rounded in the order in which they arrive. Near
    a ReLU's zero this decides whether a gradient is zero, and changes weights by up to 0.03 after 172
    steps, and losses by a twelfth of the difference between two batches.
    """
    run, hosts, slow = [*RUN, "--epochs", "4"], "h0,h1,h2", ["--timeout", "30"]
    with launch_on_hosts(three, tmp_path, *slow, "--", *run, "--out", "whole", hosts=hosts, output="all") as whole:
        assert whole.wait_for_exit(120)[0] == 0, whole.read_output()
    words = [*slow, "--max-restarts", "1", "--min-np", "2", "--", *run, "--out", "run"]
    with launch_on_hosts(three, tmp_path, *words, hosts=hosts) as fewer:
        fewer.wait_for("epoch 2/4")
        try:
            cut_off(fewer, three)
            status, text = fewer.wait_for_exit(120)
        finally:
            three.set_link_state("h2", "up")
    assert status == 0, text
    assert "continuing with 2 workers" in text
    resumed, expected = (
        [line for line in read_metrics(tmp_path / name) if line["kind"] == "step"] for name in ("run", "whole")
    )
    assert [line["images"] for line in resumed] == [line["images"] for line in expected]
    losses, expected_losses = (np.array([line["loss"] for line in lines]) for lines in (resumed, expected))
    batch_difference = np.abs(expected_losses[1:] - expected_losses[:-1]).mean()
    assert np.abs(losses - expected_losses).mean() <= batch_difference / 4


REFUSALS = {  # what is given to ssh -> what it says
    "-p 9": "Connection refused",
    "-o PubkeyAuthentication=no": "Permission denied",
    "-o UserKnownHostsFile=/dev/null": "Host key verification failed",
}


@pytest.mark.parametrize("words", REFUSALS)
def test_a_host_that_refuses_ssh_is_one_line_with_its_reason(words, three, tmp_path):
    with launch_on_hosts(three, tmp_path, "--ssh", f"{three.ssh} {words}", "--", *RUN, hosts="h1") as run:
        status, text = run.wait_for_exit(30)
    assert (status, text.count("\n")) == (1, 1)
    assert text.startswith("error: host h1: cannot start the agent: ")
    assert REFUSALS[words] in text and f": check the connection with {three.ssh} {words} -o BatchMode=yes" in text
