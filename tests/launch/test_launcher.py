"""python -m gluonlab.launch -n N: it starts all processes of a group, and leaves none."""

import json
import os
import random
import re
import shlex
import signal
import time

import pytest
from support.launched import option_words, parameter_vectors
from support.launcher import (
    PATIENCE_OPTIONS,
    QUICK_LAUNCH_OPTIONS,
    have_same_bits,
    listening_ports,
    start_launcher,
    surviving_processes,
)
from support.reference import relative_distance
from support.run_files import read_metrics
from support.worker_processes import handles_signal

from gluonlab import TrainConfig
from gluonlab.runs.run_reader import read_lines
from gluonlab.training.loop import train
from gluonlab.training.reporter import Reporter

pytestmark = pytest.mark.cpu_only("the processes compute on CPU devices, whoever started them")
TWO = ["-n", "2", "--backend", "dist_sync"]
SOON = ["--timeout", "16"]
LONG = [*QUICK_LAUNCH_OPTIONS, "--epochs", "40000", "--checkpoint-every", "16 steps", "--out", "run"]


@pytest.mark.parametrize(
    ("workers", "servers", "backend"),
    [
        pytest.param(3, 2, "dist_sync", marks=pytest.mark.long),  # test_launch has fewer
        pytest.param(4, 1, "dist_sync", marks=pytest.mark.long),
        pytest.param(3, 1, "dist_device_sync", marks=pytest.mark.long),
        pytest.param(3, None, "horovod", marks=pytest.mark.horovod),
    ],
)
def test_processes_train_as_one_with_as_many_devices(workers, servers, backend, tmp_path):
    """Ragged batches, momentum, clipping, cosine and warm-up; rank 0 speaks, with its number."""
    options = dict(
        model="mlp", dataset="synthetic", global_batch_size=1001, epochs=2, lr=0.05, momentum=0.9,
        clip_norm=1.0, lr_schedule="cosine", warmup_epochs=0.5, mixup=0.2,
    )  # fmt: skip
    words = [*(["--servers", servers] if servers else []), "-n", workers, "--backend", backend, "--"]
    with start_launcher(tmp_path, *words, *option_words(**options, devices="cpu*1", out="many")) as many:
        status, text = many.wait_for_exit()
    assert status == 0, text
    assert all(line.startswith("[0] ") for line in text.splitlines())
    one = train(TrainConfig(**options, devices=f"cpu*{workers}", out=str(tmp_path / "one")), reporter=Reporter())
    assert relative_distance(parameter_vectors(tmp_path / "many"), parameter_vectors(one.run_dir)) <= 1e-5
    assert len(read_lines(tmp_path / "many")) == len(read_lines(one.run_dir))


@pytest.mark.parametrize(
    "backend", [pytest.param("dist_sync", marks=pytest.mark.long), pytest.param("horovod", marks=pytest.mark.horovod)]
)
def test_a_worker_that_is_killed_is_replaced_and_the_bits_stay(backend, tmp_path):
    two = ["-n", "2", "--backend", backend]
    run = [*QUICK_LAUNCH_OPTIONS, "--epochs", "3", "--checkpoint-every", "16 steps", "--momentum", "0.9"]
    with start_launcher(tmp_path, *two, "--", *run, "--out", "whole", output="said-whole") as whole:
        assert whole.wait_for_exit()[0] == 0
    with start_launcher(tmp_path, *two, "--max-restarts", "1", "--", *run, "--out", "run") as killed:
        killed.wait_for("epoch 1/3")
        pids = killed.process_ids()
        os.kill(pids["rank 1"], signal.SIGKILL)
        status, text = killed.wait_for_exit()
    assert status == 0, text
    assert "warning: rank 1 on localhost was killed by SIGKILL: restarting" in text
    assert "Traceback" not in text
    assert have_same_bits(tmp_path / "whole", tmp_path / "run")
    assert not list((tmp_path / "run").rglob("*.part"))
    steps = [line["step"] for line in read_metrics(tmp_path / "run") if line["kind"] == "step"]
    assert steps == list(range(1, 3 * 64 + 1))
    assert not surviving_processes(pids.values())


ENDING = [signal.SIGKILL, signal.SIGTERM, signal.SIGINT]  # agents and servers hear only the first
FAULTS = [  # the process, its signal, the launcher's status, and the message
    ("rank 1", signal.SIGKILL, 137, "rank 1 on localhost was killed by SIGKILL"),
    ("server", signal.SIGKILL, 137, "server 0 on localhost was killed by SIGKILL"),
    ("scheduler", signal.SIGINT, 130, "scheduler on localhost was killed by SIGINT"),
    ("agent 0", signal.SIGKILL, 1, "host localhost has closed the connection"),
    ("rank 0", signal.SIGSTOP, 1, "rank 0 on localhost was suspended for 8 s"),
    ("server", signal.SIGSTOP, 1, "server 0 on localhost was suspended for 8 s"),
    ("scheduler", signal.SIGSTOP, 1, "scheduler on localhost was suspended for 8 s"),
    ("agent 0", signal.SIGSTOP, 1, "host localhost has sent no heartbeat for 8 s"),
]


@pytest.mark.long
@pytest.mark.parametrize(("name", "number", "status", "message"), FAULTS)
def test_when_a_process_dies_all_end_and_it_is_named(name, number, status, message, tmp_path):
    with start_launcher(tmp_path, *TWO, *SOON, "--", *LONG) as run:
        run.wait_for("epoch     2/40000")
        pids = run.process_ids()
        os.kill(pids[name], number)
        ended, text = run.wait_for_exit()
    assert ended == status, text
    # as soon as half of the patience is over; a busy machine looks later
    seconds = re.search(r"for (\d+) s$", text.rstrip())
    assert seconds is None or int(seconds[1]) >= 8
    assert re.sub(r"for \d+ s$", "for 8 s", text.splitlines()[-1]) == f"error: {message}"
    assert not surviving_processes(pids.values())
    read_lines(tmp_path / "run")  # whole


def test_a_signal_ends_all_ranks_after_one_step_and_says_how_to_go_on(tmp_path):
    with start_launcher(tmp_path, *TWO, *PATIENCE_OPTIONS, "--", *LONG) as run:
        run.wait_for("epoch     1/40000")
        pids = run.process_ids()
        run.process.send_signal(signal.SIGTERM)
        status, text = run.wait_for_exit()
    assert status == 128 + signal.SIGTERM
    words = " ".join([*TWO, *PATIENCE_OPTIONS])
    on = f"to resume: gluonlab launch {words} -- resume run"
    assert text.count("[0] ended by SIGTERM: ") == text.count(on) == 1
    assert text.count("[1] ended by SIGTERM: ") == 1 and "error" not in text
    assert not surviving_processes(pids.values())


def handles_sigterm(run):
    return handles_signal(run.process.pid, signal.SIGTERM)


MOMENTS = {
    # By its last import, which Python prints, gluonlab takes SIGINT. Before, a signal ends Python.
    "imports": (signal.SIGINT, lambda run: "gluonlab.launch.agent_connections" in run.read_output()),
    "handles signals": (signal.SIGINT, handles_sigterm),
    "has workers": (signal.SIGHUP, lambda run: {"rank 0", "rank 1"} <= run.process_ids().keys()),
}


def end_by_signal(run, number):
    """Send a signal to a launcher whose workers have not begun to train: it just ends."""
    run.process.send_signal(number)
    status, text = run.wait_for_exit()
    lines = [line for line in text.splitlines() if not line.startswith("import time: ")]
    assert status in (128 + number, -number), text
    assert not any("error" in line or "terminate" in line for line in lines), text


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_signal_ends_a_launcher_as_soon_as_it_handles_signals(moment, tmp_path):
    number, has_come = MOMENTS[moment]
    variables = {"PYTHONPROFILEIMPORTTIME": "1"} if moment == "imports" else {}
    with start_launcher(tmp_path, *TWO, *PATIENCE_OPTIONS, "--", *LONG, **variables) as run:
        run.wait_until(lambda: has_come(run))
        end_by_signal(run, number)


@pytest.mark.long
@pytest.mark.parametrize("after", [0.2 * n for n in range(25)])
def test_a_signal_ends_a_launcher_at_any_later_moment(after, tmp_path):
    """Its workers load, they wait for each other, or they train."""
    number = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP][round(10 * after) % 3]
    with start_launcher(tmp_path, *TWO, *PATIENCE_OPTIONS, "--", *LONG) as run:
        run.wait_until(lambda: handles_sigterm(run))
        time.sleep(after)
        end_by_signal(run, number)


@pytest.mark.long
def test_a_mistake_that_a_worker_finds_is_said_once(tmp_path):
    with start_launcher(tmp_path, *TWO, "--", "--dataset", "folder:data") as run:
        status, text = run.wait_for_exit()
    assert status == 2
    [error] = [line for line in text.splitlines() if "error: " in line]
    assert error.startswith("error: data does not exist: ")  # every rank has found it


@pytest.mark.long
def test_the_words_to_go_on_with_do(tmp_path):
    again = ["--max-restarts", "1", "--"]
    long = [*QUICK_LAUNCH_OPTIONS, "--epochs", "3", "--out", "run"]
    with start_launcher(tmp_path, *TWO, *again, *long) as run:
        run.wait_for("epoch 2/3")
        run.process.send_signal(signal.SIGTERM)
        status, said = run.wait_for_exit()
    [words] = re.findall(r"to resume: gluonlab launch (.*-- resume \S+)", said)
    with start_launcher(tmp_path, *shlex.split(words), output="then") as run:
        then, said = run.wait_for_exit()
    assert (status, then) == (143, 0), said
    epochs = [line["epoch"] for line in read_metrics(tmp_path / "run") if line["kind"] == "epoch"]
    assert epochs == [1, 2, 3]


@pytest.mark.long
def test_json_is_only_rank_zeros_and_variables_of_this_shell_do_not_matter(tmp_path):
    """The address over which this shell was reached may be gone; and PORT, where MXNet's servers would
    listen, may be a web server's.
    """
    stale = {"SSH_CONNECTION": "198.51.100.9 5000 198.51.100.8 22", "PORT": "0"}
    with start_launcher(tmp_path, *TWO, "--", *QUICK_LAUNCH_OPTIONS, "--epochs", "1", "--json", **stale) as run:
        status, text = run.wait_for_exit()
    assert status == 0 and json.loads(text)["run_dir"]


@pytest.mark.long
@pytest.mark.parametrize("seed", range(40))
def test_whatever_dies_whenever_nothing_is_left(seed, tmp_path):
    """No process, no port, and no half-written file under its name; the folder can be read."""
    moment = random.Random(seed)
    with start_launcher(tmp_path, *TWO, *SOON, "--", *LONG) as run:
        if moment.random() < 0.7:
            run.wait_for("epoch     1/40000")
        time.sleep(moment.uniform(0, 3))
        pids = {**run.process_ids(), "launcher": run.process.pid}
        name = moment.choice(sorted(pids))
        numbers = ENDING if name == "launcher" or "rank" in name else [signal.SIGKILL]
        ports = listening_ports(pids.values())
        os.kill(pids[name], moment.choice(numbers))
        run.process.wait(240)
    assert not surviving_processes(pids.values())
    assert not ports & listening_ports()
    if (tmp_path / "run").exists():
        read_lines(tmp_path / "run")
        half = [path for path in (tmp_path / "run").rglob("*.part") if path.name[0] != "."]
        assert not half  # hidden ones are removed by who goes on
