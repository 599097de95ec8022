"""gluonlab launch -n N -- PROGRAM: it starts the user's own program, once for each rank."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mxnet import nd
from support.launcher import PATIENCE_OPTIONS, start_launcher, surviving_processes
from support.pages import read_shown_program
from support.processes import clean_environment
from support.reference import relative_distance

from gluonlab.errors import ConfigError
from gluonlab.launch.__main__ import main
from gluonlab.launch.group_processes import PROCESSES_BY_BACKEND, Site, allowed_variables, parts
from gluonlab.launch.user_program import describe_start_error, is_program

pytestmark = pytest.mark.cpu_only("the processes compute on CPU devices, whoever started them")
SITES = [Site("h0", "10.0.0.1", "eth0"), Site("h1", "10.0.0.2", "eth0")]
OWN_PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])

SHELL = """\
echo "rank $GLUONLAB_RANK of $DMLC_NUM_WORKER: $*"
printf '\\tspaced\\n\\n'
echo "error: not the launcher's" >&2
read line || echo "no input"
[ "$GLUONLAB_RANK" = 1 ] || sleep 600 &
[ "$GLUONLAB_RANK" = 0 ] && wait
until [ -e go ]; do sleep 0.05; done
exit 7
"""


def test_a_program_has_its_words_its_rank_and_its_status(tmp_path):
    """One fails: the other ends, with what it has started. Options of the same name are its own."""
    (tmp_path / "own.sh").write_text(SHELL)
    words = ["--debug", "true", "--port", "9", "-n", "“a”", "", "--json"]
    with start_launcher(tmp_path, "-n", "2", "--", "sh", "own.sh", *words) as run:
        for said in ("error: not", "no input"):
            run.wait_for(f"[0] {said}")
        pids = run.process_ids()
        (tmp_path / "go").touch()
        status, text = run.wait_for_exit()
    assert status == 7
    lines = text.splitlines()
    for rank in (0, 1):
        mine = [line for line in lines if line.startswith(f"[{rank}]")]
        said = f"[{rank}] rank {rank} of 2: {' '.join(words)}"
        out = [said, f"[{rank}] \tspaced", f"[{rank}]", f"[{rank}] no input"]
        assert sorted(mine) == sorted([*out, f"[{rank}] error: not the launcher's"])
    assert lines[-1] == "error: rank 1 on localhost exited with status 7"
    assert not surviving_processes(pids.values())


@pytest.mark.long
@pytest.mark.parametrize(("processes", "servers"), [(2, 1), (3, 2)])
def test_the_program_of_the_page_trains_as_one_process_does(processes, servers, tmp_path):
    (tmp_path / "train.py").write_text(read_shown_program("train.py"))
    alone = subprocess.run(
        [sys.executable, "train.py", "--save", "one"], cwd=tmp_path, env=clean_environment(), timeout=240
    )
    own = ["-n", processes, "--servers", servers, *PATIENCE_OPTIONS, "--", "python", "train.py"]
    with start_launcher(tmp_path, *own, "--save", "many", PATH=OWN_PATH) as run:
        status, text = run.wait_for_exit()
    assert (alone.returncode, status) == (0, 0), text
    one, many = (nd.load(str(tmp_path / name)) for name in ("one", "many"))
    assert one.keys() == many.keys()
    assert relative_distance(*([a.asnumpy() for a in each.values()] for each in (one, many))) <= 1e-5


@pytest.mark.horovod
def test_horovod_finds_the_other_processes(tmp_path):
    program = (
        "import gluonlab, horovod.mxnet as hvd, mxnet as mx; hvd.init(); "
        "print('sum', hvd.allreduce(mx.nd.ones(1) * (1 + hvd.rank()), average=False).asscalar())"
    )
    words = ["-n", 3, "--backend", "horovod", *PATIENCE_OPTIONS, "--", sys.executable, "-c", program]
    with start_launcher(tmp_path, *words) as run:
        status, text = run.wait_for_exit()
    assert status == 0, text
    assert sorted(text.splitlines()) == [f"[{rank}] sum 6.0" for rank in range(3)]


ENDINGS = {"exit": "sys.exit(5)", "raise": "raise RuntimeError('own')"}


@pytest.mark.long
@pytest.mark.parametrize("how", ENDINGS)
@pytest.mark.parametrize("first", ["gluonlab, mxnet as mx", "mxnet as mx"])
def test_one_that_fails_ends_all_while_the_others_wait_for_its_gradients(how, first, tmp_path):
    """Its store alone would wait for them, and it would never end; and it has the printed rank."""
    numpy = tuple(map(int, np.__version__.split(".")[:2]))
    if numpy >= (1, 24):  # MXNet alone does not load
        first = "gluonlab, mxnet as mx"
    (tmp_path / "train.py").write_text(
        f"import os, sys\nimport {first}\nkv = mx.kv.create('dist_sync')\n"
        "assert kv.rank == int(os.environ['GLUONLAB_RANK'])\nkv.init(1, mx.nd.ones(3))\n"
        f"if kv.rank == 1:\n    {ENDINGS[how]}\n"
        "kv.push(1, mx.nd.ones(3))\nkv.pull(1, mx.nd.ones(3))\nmx.nd.waitall()\nkv._barrier()\n"
    )
    with start_launcher(tmp_path, "-n", 3, *PATIENCE_OPTIONS, "--", sys.executable, "train.py") as run:
        status, text = run.wait_for_exit()
    assert status == (5 if how == "exit" else 1), text
    assert text.splitlines()[-1] == f"error: rank 1 on localhost exited with status {status}"


CATCHING = """\
import signal, subprocess, sys, time
def leave(number, frame):
    print("got", number)
    sys.exit(int(sys.argv[1]))
for number in (1, 2, 15):
    signal.signal(number, signal.SIG_IGN if sys.argv[1] == "ignore" else leave)
subprocess.Popen(["sleep", "600"])
print("ready")
while True:
    time.sleep(0.05)
"""


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize(("own", "status"), [("0", 0), ("5", 5), ("ignore", 1)])
def test_a_signal_reaches_each_program_which_decides(number, own, status, tmp_path):
    """It saves and ends well, or with a status of its own; or hears nothing, and is killed."""
    (tmp_path / "own.py").write_text(CATCHING)
    words = ["-n", 2, "--timeout", 5, "--", sys.executable, "own.py", own]
    with start_launcher(tmp_path, *words) as run:
        run.wait_until(lambda: run.read_output().count("ready") == 2)
        pids = run.process_ids()
        run.process.send_signal(number)
        ended, text = run.wait_for_exit()
    assert ended == status, text
    if own == "ignore":
        assert text.splitlines()[-1] == "error: the processes did not stop within 5 s"
    else:
        assert sorted(text.splitlines()[2:]) == [f"[{rank}] got {int(number)}" for rank in (0, 1)]
    assert not surviving_processes(pids.values())


@pytest.mark.long
def test_a_program_is_started_again_as_often_as_restart_says(tmp_path):
    program = (
        "import os, sys; name = 'tried' + os.environ['GLUONLAB_RANK']; "
        "open(name, 'a').write('x'); sys.exit(len(open(name).read()) < 3)"
    )
    words = ["-n", 2, "--max-restarts", 2, "--", sys.executable, "-c", program]
    with start_launcher(tmp_path, *words) as run:
        status, text = run.wait_for_exit()
    assert status == 0, text
    assert text.count("warning: rank") == text.count("exited with status 1: restarting\n") == 2


def test_what_the_system_does_not_run_is_explained(tmp_path):
    for name, first, message in (
        ("no-line", "echo", "does not name its interpreter"),
        ("bad-line", "#!/no/such", "the interpreter in its first line does not exist"),
    ):
        (tmp_path / name).write_text(f"{first}\n")
        (tmp_path / name).chmod(0o755)
        with pytest.raises(OSError) as raised:
            subprocess.Popen([tmp_path / name])
        assert message in describe_start_error(f"./{name}", tmp_path, raised.value)
    assert "does not exist on this host" in describe_start_error("ls", tmp_path / "none")


def test_a_job_file_has_the_program(ended):
    words = ["-n", "4", "--print", "slurm", "--", "python", "train.py", "a b"]
    status, out, _ = ended(main, *words)
    assert status == 0 and out.endswith("--backend dist_sync -- python train.py 'a b'\n")


words_of_programs = st.lists(st.text("ab -=/", min_size=1, max_size=5), min_size=1, max_size=4)


@given(st.sampled_from(sorted(PROCESSES_BY_BACKEND)), words_of_programs, words_of_programs)
def test_a_process_of_a_scheduler_starts_its_own_program_only(backend, own, given):
    for process in parts(backend, given, [0, 1], [0], SITES, 9000):
        if process.is_worker and own != given:
            with pytest.raises(ConfigError):
                allowed_variables(process.words, process.environment, backend, own)
        elif process.is_worker:
            assert process.is_program == is_program(given)
            assert allowed_variables(process.words, process.environment, backend, own)


@given(words_of_programs)
def test_whatever_begins_with_a_dash_is_an_option_of_the_run(words):
    """As it always was: only another first word is a program."""
    [part] = [each for each in parts("dist_sync", words, [0], [0], SITES, 9000) if each.is_worker]
    is_option = words[0].startswith("-")
    assert part.is_program != is_option
    assert part.words[-len(words) :] == words
    assert (part.words[:2] == ["-m", "gluonlab.launch.worker"]) == is_option
