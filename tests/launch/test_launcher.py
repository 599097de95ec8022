"""python -m gluonlab.launch -n N: it starts all processes of a group, and leaves none."""

import json
import os
import random
import re
import shlex
import signal
import socket
import time

import pytest
from support.launched_environments import srun_environments
from support.launcher import (
    PATIENCE_OPTIONS,
    QUICK_LAUNCH_OPTIONS,
    have_same_bits,
    listening_ports,
    load_parameters,
    start_launcher,
    surviving_processes,
)
from support.reference import relative_distance
from support.run_files import read_metrics
from support.worker_processes import handles_signal

from gluonlab import TrainConfig
from gluonlab.errors import ConfigError
from gluonlab.launch.__main__ import main
from gluonlab.launch.check_launcher_arguments import SINGLE_PROCESS_OPTIONS, check_not_in_group, validate_run_arguments
from gluonlab.launch.process_membership import membership
from gluonlab.launch.worker.__main__ import main as worker
from gluonlab.run import main as run
from gluonlab.runs.run_reader import read_lines
from gluonlab.training.loop import train
from gluonlab.training.reporter import Reporter

pytestmark = pytest.mark.cpu_only("the processes compute on CPU devices, whoever started them")
TWO = ["-n", "2", "--backend", "dist_sync"]
SOON = ["--patience", "16"]
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
    said = [w for name, v in options.items() for w in (f"--{name.replace('_', '-')}", v)]
    words = ["-n", workers, "--backend", backend, "--"]
    if servers:
        words = ["--servers", servers, *words]
    with start_launcher(tmp_path, *words, *said, "--devices", "cpu*1", "--out", "many") as many:
        status, text = many.wait_for_exit()
    assert status == 0, text
    assert all(line.startswith("[0] ") for line in text.splitlines())
    one = train(TrainConfig(**options, devices=f"cpu*{workers}", out=str(tmp_path / "one")), reporter=Reporter())
    mine, theirs = (load_parameters(folder) for folder in (tmp_path / "many", one.run_dir))
    mine = [mine[name].asnumpy() for name in theirs]
    assert relative_distance(mine, [array.asnumpy() for array in theirs.values()]) <= 1e-5
    assert len(read_lines(tmp_path / "many")) == len(read_lines(one.run_dir))


@pytest.mark.parametrize(
    "backend", [pytest.param("dist_sync", marks=pytest.mark.long), pytest.param("horovod", marks=pytest.mark.horovod)]
)
def test_a_worker_that_is_killed_is_replaced_and_the_bits_stay(backend, tmp_path):
    two = ["-n", "2", "--backend", backend]
    run = [*QUICK_LAUNCH_OPTIONS, "--epochs", "3", "--checkpoint-every", "16 steps", "--momentum", "0.9"]
    with start_launcher(tmp_path, *two, "--", *run, "--out", "whole", output="said-whole") as whole:
        assert whole.wait_for_exit()[0] == 0
    with start_launcher(tmp_path, *two, "--restart", "1", "--", *run, "--out", "run") as killed:
        killed.wait_for("epoch 1/3")
        pids = killed.process_ids()
        os.kill(pids["rank 1"], signal.SIGKILL)
        status, text = killed.wait_for_exit()
    assert status == 0, text
    assert "warning: rank 1 on localhost was killed by SIGKILL: starting again" in text
    assert "Traceback" not in text
    assert have_same_bits(tmp_path / "whole", tmp_path / "run")
    assert not list((tmp_path / "run").rglob("*.part"))
    steps = [line["step"] for line in read_metrics(tmp_path / "run") if line["kind"] == "step"]
    assert steps == list(range(1, 3 * 64 + 1))
    assert not surviving_processes(pids.values())


ENDING = [signal.SIGKILL, signal.SIGTERM, signal.SIGINT]  # agents and servers hear only the first
ENDS = [  # what is killed, or stopped, by what; the launcher's status, and what is said
    ("rank 1", signal.SIGKILL, 137, "error: rank 1 on localhost was killed by SIGKILL"),
    ("server", signal.SIGKILL, 137, "error: server 0 on localhost was killed by SIGKILL"),
    ("scheduler", signal.SIGINT, 130, "error: scheduler on localhost was killed by SIGINT"),
    ("agent 0", signal.SIGKILL, 1, "error: host localhost has ended the connection"),
    ("rank 0", signal.SIGSTOP, 1, "error: rank 0 on localhost has been stopped for 8 s"),
    ("server", signal.SIGSTOP, 1, "error: server 0 on localhost has been stopped for 8 s"),
    ("scheduler", signal.SIGSTOP, 1, "error: scheduler on localhost has been stopped for 8 s"),
    ("agent 0", signal.SIGSTOP, 1, "error: host localhost has given no sign of life for 8 s"),
]


@pytest.mark.long
@pytest.mark.parametrize(("name", "number", "status", "said"), ENDS)
def test_when_something_dies_all_end_and_it_is_named(name, number, status, said, tmp_path):
    with start_launcher(tmp_path, *TWO, *SOON, "--", *LONG) as run:
        run.wait_for("epoch     2/40000")
        pids = run.process_ids()
        os.kill(pids[name], number)
        ended, text = run.wait_for_exit()
    assert ended == status, text
    # as soon as half of the patience is over; a busy machine looks later
    last, seconds = text.splitlines()[-1], 8
    if "for 8 s" in said:
        seconds = int(re.search(r"for (\d+) s$", last)[1])
    assert last == said.replace("for 8 s", f"for {seconds} s") and seconds >= 8
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
    on = f"to go on: python -m gluonlab.launch {words} -- --resume run"
    assert text.count("[0] ended by SIGTERM: ") == text.count(on) == 1
    assert text.count("[1] ended by SIGTERM: ") == 1 and "error" not in text
    assert not surviving_processes(pids.values())


def imports(run):
    """gluonlab itself takes SIGINT by now. The last import that Python names is far behind it."""
    return "gluonlab.launch.agent_connections" in run.read_output()


def handles_signals(run):
    """The command has begun, and has no agent yet, or just has one."""
    return handles_signal(run.process.pid, signal.SIGTERM)


def has_workers(run):
    """They have been started, and load MXNet."""
    return {"rank 0", "rank 1"} <= run.process_ids().keys()


MOMENTS = {
    "imports": (signal.SIGINT, imports),
    "handles signals": (signal.SIGINT, handles_signals),
    "has workers": (signal.SIGHUP, has_workers),
}


def end_by(run, number):
    """Send a signal to a launcher whose workers have not begun to train: it just ends."""
    run.process.send_signal(number)
    status, text = run.wait_for_exit()
    said = [line for line in text.splitlines() if not line.startswith("import time: ")]
    assert status in (128 + number, -number), text
    assert not any("error" in line or "terminate" in line for line in said), text


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_signal_ends_a_launcher_as_soon_as_it_can_hear_it(moment, tmp_path):
    """Before that a signal ends Python, which has not come to gluonlab."""
    number, has_come = MOMENTS[moment]
    # Python prints each import that it has made
    variables = {"PYTHONPROFILEIMPORTTIME": "1"} if has_come is imports else {}
    with start_launcher(tmp_path, *TWO, *PATIENCE_OPTIONS, "--", *LONG, **variables) as run:
        run.wait_until(lambda: has_come(run))
        end_by(run, number)


@pytest.mark.long
@pytest.mark.parametrize("after", [0.2 * n for n in range(25)])
def test_a_signal_ends_a_launcher_at_any_later_moment(after, tmp_path):
    """Its workers load, they wait for each other, or they train."""
    number = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP][round(10 * after) % 3]
    with start_launcher(tmp_path, *TWO, *PATIENCE_OPTIONS, "--", *LONG) as run:
        run.wait_until(lambda: handles_signals(run))
        time.sleep(after)
        end_by(run, number)


@pytest.mark.long
def test_a_mistake_that_a_worker_finds_is_said_once(tmp_path):
    with start_launcher(tmp_path, *TWO, "--", "--dataset", "folder:data") as run:
        status, text = run.wait_for_exit()
    assert status == 2
    [error] = [line for line in text.splitlines() if "error: " in line]
    assert error.startswith("error: data does not exist: ")  # every rank has found it


MISTAKES = {
    "-n 0 --backend dist_sync": "error: -n 0: give a whole number, 1 to 4096",
    "-n two --backend dist_sync": "error: -n two: give a whole number, 1 to 4096",
    "-n 2 --backend dist_synk": "error: unknown --backend 'dist_synk': choose",
    "--hosts h1,h1 --backend dist_sync": "error: --hosts names h1 twice",
    "-n 5 --hosts h1,h2:3 --backend dist_sync": "error: -n 5: the hosts take 4 (h1:1, h2:3)",
    "-n 2 --backend horovod --servers 1": "error: --servers belongs to dist_sync",
    "-n 2 --backend dist_sync -- --epochs 0": "error: --epochs 0: ",
    "-n 2 --backend dist_sync --epoch 1": "error: unknown option '--epoch': did you mean '--epo",
    "-n 2 --backend dist_sync --patience soon": "error: --patience soon: give seconds",
    "-n 2 --backend dist_sync --port 0": "error: --port 0: give a whole number, 1 to 65535",
    "-n 2 --backend dist_sync --min-workers 1": "error: --min-workers says how to start again: add",
    "-n 2 --backend dist_sync --restart 1 --min-workers 3 --out r": (
        "error: --min-workers 3: there are 2: give 2 or fewer"
    ),
    "-n 2 --backend dist_sync --restart 1": "error: --restart 1 goes on with the run in --out",
    "--hosts h1 --hostfile f --backend dist_sync": "error: --hosts and --hostfile contradict",
    "--hostfile none --backend dist_sync": (
        "error: --hostfile none cannot be read (No such file or directory): give a file with a host"
    ),
    "--backend dist_sync": "error: no scheduler has started this process as one of several: say",
    "--hosts [::1]:2 --backend dist_sync": "error: --hosts [::1]:2: '[::1]:2': an IPv6 address",
    "-n 2 --backend dist_sync --env A=1": "error: --env A=1: there is no such variable here: set",
    "-n 2": "error: --backend NAME is missing (how processes exchange gradients: dist_sync, ",
    "--hosts localhost,127.0.0.1 --backend dist_sync": (
        "error: --hosts names localhost and 127.0.0.1, which are this host: name it once"
    ),
    "-n 2 --backend dist_async --restart 1 -- --out r": (
        "error: --restart 1 goes on from checkpoints, and --backend dist_async has none"
    ),
    "-n 2 --backend dist_sync --restart 1 -- --out r --compress 2bit": (
        "error: --restart 1 goes on from checkpoints, and --compress 2bit has none: what 2 bits "
        "have left over is in no checkpoint"
    ),
    "-n 2 --backend dist_sync --restart 1 -- --out r --update-on-servers": (
        "error: --restart 1 goes on from checkpoints, and --update-on-servers has none"
    ),
    "-n 2 --backend dist_sync --servrs 3": ("error: unknown option '--servrs': did you mean '--servers'?"),
    "-n 2 --backend dist_sync -- --servers=2": ("error: --servers is an option of the launcher: write it before --"),
    "-n 2 --backend dist_sync -- --backend horovod": (
        "error: --backend stands before --, and is dist_sync there: leave it out"
    ),
    "-n 2 --backend dist_sync --job gpus=2": "error: --job gpus=2 is for job files: add --print",
}


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_is_one_line(words, ended, empty_cwd, monkeypatch):
    for name in ("DMLC_ROLE", "HOROVOD_RANK"):
        monkeypatch.delenv(name, raising=False)
    status, out, err = ended(main, *words.split())
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(MISTAKES[words])


def test_a_host_that_cannot_be_reached_is_named(ended, empty_cwd):
    words = ["--hosts", "no-such-host.invalid", "--ssh", "false", "--backend", "dist_sync"]
    status, _, err = ended(main, *words)
    assert status == 1
    assert err.startswith("error: host no-such-host.invalid: no agent can be started there: ")


def test_a_group_in_each_process_of_a_job_is_refused(ended, empty_cwd, monkeypatch):
    for name, value in list(srun_environments((2,)))[1].items():
        monkeypatch.setenv(name, value)
    status, out, err = ended(main, *TWO, "--", *QUICK_LAUNCH_OPTIONS)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("error: -n starts a group, and srun has started this process as one of 2, which are one: ")


@pytest.mark.parametrize("layout", [(1,), (2,), (1, 1)], ids=str)
def test_whoever_is_started_alone_may_start_a_group(layout):
    """As in an allocation of one task: srun -n 1 python -m gluonlab.launch -n 4 ..."""
    context = main.make_context("launch", list(TWO))
    for environ in srun_environments(layout):
        if sum(layout) == 1:
            check_not_in_group(context, membership(environ))
        else:
            with pytest.raises(ConfigError, match=f"as one of {sum(layout)}, which are one"):
                check_not_in_group(context, membership(environ))


@pytest.mark.long
def test_what_this_shell_has_for_others_does_not_matter(tmp_path):
    """The address over which it was reached may be one of a host, or of a session, that is no more;
    and PORT, where MXNet's servers would listen, that of a web server.
    """
    stale = "198.51.100.9 5000 198.51.100.8 22"
    words = [*TWO, "--", *QUICK_LAUNCH_OPTIONS, "--epochs", "1"]
    with start_launcher(tmp_path, *words, SSH_CONNECTION=stale, PORT="0") as run:
        status, said = run.wait_for_exit()
    assert status == 0, said


@pytest.mark.long
def test_the_words_to_go_on_with_do(tmp_path):
    again = ["--restart", "1", "--"]
    long = [*QUICK_LAUNCH_OPTIONS, "--epochs", "3", "--out", "run"]
    with start_launcher(tmp_path, *TWO, *again, *long) as run:
        run.wait_for("epoch 2/3")
        run.process.send_signal(signal.SIGTERM)
        status, said = run.wait_for_exit()
    [words] = re.findall(r"python -m gluonlab\.launch (.*--resume \S+)", said)
    with start_launcher(tmp_path, *shlex.split(words), output="then") as run:
        then, said = run.wait_for_exit()
    assert (status, then) == (143, 0), said
    epochs = [line["epoch"] for line in read_metrics(tmp_path / "run") if line["kind"] == "epoch"]
    assert epochs == [1, 2, 3]


@pytest.mark.long
def test_json_is_rank_zeros_alone(tmp_path):
    words = [*TWO, "--", *QUICK_LAUNCH_OPTIONS, "--epochs", "1", "--json"]
    with start_launcher(tmp_path, *words) as run:
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


def test_a_port_that_somebody_has_is_named_before_anything_starts(ended, empty_cwd):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        status, out, err = ended(main, "-n", "1", "--backend", "dist_sync", "--port", port)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"error: --port {port} on localhost: Address already in use: choose ")


def test_what_only_one_process_can_is_told_so():
    def names(command):
        return {name for each in command.params for name in (*each.opts, *each.secondary_opts)}

    assert names(run) - names(worker) - names(main) == set(SINGLE_PROCESS_OPTIONS)
    for option in SINGLE_PROCESS_OPTIONS:
        with pytest.raises(ConfigError, match=f"^{option} is for one process: leave it out, or wr"):
            validate_run_arguments("dist_sync", (option, "2"), 0, main, worker)
