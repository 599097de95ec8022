"""A mistake in the launcher's arguments is one line, before anything starts."""

import shlex
import socket

import pytest
from support.launched_environments import srun_environments
from support.launcher import QUICK_LAUNCH_OPTIONS

from gluonlab.errors import ConfigError
from gluonlab.launch.__main__ import main
from gluonlab.launch.check_launcher_arguments import SINGLE_PROCESS_OPTIONS, check_not_in_group, validate_run_arguments
from gluonlab.launch.process_membership import membership
from gluonlab.launch.worker.__main__ import main as worker
from gluonlab.run import main as run

TWO = "-n 2 --backend dist_sync"
HOROVOD = "-n 2 --backend horovod"
JOB_FILE = "--backend dist_sync --print"
MISTAKES = {
    "-n 0 --backend dist_sync": "-n 0: must be a whole number from 1 to 4096",
    "-n two --backend dist_sync": "-n two: must be a whole number from 1 to 4096",
    "-n 2 --backend dist_synk": "unknown --backend 'dist_synk': choose",
    "--backend dist_sync": "the number of processes is missing: add an option such as -n 2 or --hosts",
    "-- python train.py": "the number of processes is missing: add an option such as -n 2 or --hosts",
    f"{TWO} -- --epochs 0": "--epochs 0: ",
    f"{TWO} --timeout soon": "--timeout soon: must be a number of seconds from",
    f"{TWO} --timeout 1": "--timeout 1: must be a number of seconds from 5 to 1000000",
    f"{TWO} --port 0": "--port 0: must be a whole number from 1 to 65535",
    f"{TWO} --job gpus=2": "--job gpus=2 is only valid for job files: add --print",
    # unknown options
    f"{TWO} --epoch 1": "unknown option '--epoch': did you mean '--epo",
    f"{TWO} --servrs 3": "unknown option '--servrs': did you mean '--servers'?",
    f"{TWO} --HELP": "unknown option '--HELP': did you mean '--help'?",
    "-n 2 --launcher local -- ls": "unknown option '--launcher': see --help",
    "-n 2 --hostfil=x -- python train.py": "unknown option '--hostfil': did you mean '--hostfile'?",
    "--nproc-per-node=2 -- python train.py": "unknown option '--nproc-per-node': did you mean '-n'",
    f"{TWO} -- --servers=2": "--servers is an option of gluonlab launch: move it before --",
    f"{TWO} -- --backend horovod": "--backend is an option of gluonlab launch (now dist_sync): move",
    # hosts
    "--hosts h1,h1 --backend dist_sync": "--hosts contains h1 twice",
    "-n 5 --hosts h1,h2:3 --backend dist_sync": "-n 5: the hosts only have 4 slots (h1:1, h2:3)",
    "--hosts h1 --hostfile f --backend dist_sync": "--hosts and --hostfile cannot be used together",
    "--hostfile none --backend dist_sync": "--hostfile none cannot be read (No such file or directory): "
    "pass a file with one host per line",
    "--hosts [::1]:2 --backend dist_sync": "--hosts [::1]:2: '[::1]:2' is an IPv6 address",
    "--hosts localhost,127.0.0.1 --backend dist_sync": "--hosts contains localhost and 127.0.0.1, which are this host: "
    "list the host only once",
    f"{TWO} --env A=1": "--env A=1: this environment variable is not set: set",
    "-n 2 --ssh ssh -- ls": "--ssh only applies to other hosts, but all processes run on this host: omit --ssh",
    "-n 2 --hosts localhost:2 --env HOME -- ls": "--env only applies to other hosts, but all processes run",
    "-n 2 --python python3 --backend dist_sync -- --epochs 1": "--python only applies to other hosts, but",
    # restarts
    f"{TWO} --max-restarts x": "--max-restarts x: must be a whole number from 0 to 4096",
    f"{TWO} --min-np 1": "--min-np only applies to restarts: add --max-restarts N",
    f"{TWO} --max-restarts 1 --min-np 3 --out r": "--min-np 3 is more than the number of processes, 2: pass 2 or fewer",
    f"{TWO} --max-restarts 1": "--max-restarts 1 needs a directory from which to resume the run: ",
    "-n 2 --backend dist_async --max-restarts 1 -- --out r": "--max-restarts 1 requires checkpoints, which --backend "
    "dist_async does not support",
    f"{TWO} --max-restarts 1 -- --out r --compress 2bit": "--max-restarts 1 requires checkpoints, which --compress "
    "2bit does not support because its residuals are not saved",
    f"{TWO} --max-restarts 1 -- --out r --update-on-servers": "--max-restarts 1 requires checkpoints, which "
    "--update-on-servers does not support",
    # Horovod
    f"{HOROVOD} --servers 1": "--servers sets the number of parameter servers, which --backend horovod does not use",
    f"{TWO} --cycle-time-ms 5": "--cycle-time-ms only applies to --backend horovod, ",
    "-n 2 --cycle-time-ms 2 -- ls": "--cycle-time-ms only applies to --backend horovod, but",
    f"{HOROVOD} --cycle-time-ms soon": "--cycle-time-ms soon: must be a number of milliseconds from 0 to 60000",
    f"{HOROVOD} --cycle-time-ms nan": "--cycle-time-ms nan: must be a number of milliseconds from 0 to 60000",
    f"{HOROVOD} --fusion-threshold-mb 1.5": "--fusion-threshold-mb 1.5: must be a whole number from 0 to 65536",
    f"{HOROVOD} --fusion-threshold-mb -1": "--fusion-threshold-mb -1: must be a whole number from 0 to",
    f"{HOROVOD} --timeline-mark-cycles": "--timeline-mark-cycles requires a timeline: add --timeline-f",
    f"{HOROVOD} --timeline-filename ''": "--timeline-filename is empty: pass a file name, or omit --timeline",
    f"{HOROVOD} --timeline-filename none/t.json": "the timeline none/t.json cannot be written (No such file or "
    "directory): pass another",
    f"{HOROVOD} --timeline-filename": "--timeline-filename needs a value: write --timeline-f",
    f"{HOROVOD} -- --compress 4bit": "--compress 4bit: use 2bit:THRESHOLD, such as 2bit:0.5, or",
    # programs
    "-n 2 -- no-such-program": "program 'no-such-program' is not in PATH: write the program's",
    "-n 2 -- train.py": "'train.py' is in the current directory, which is not in PATH: write python",
    "-n 2 -- ./train.py": "'./train.py' is not executable: run chmod +x",
    "-n 2 -- ./run.sh": "'./run.sh' is not executable: run chmod +x, or write its interpreter "
    "before it, as in sh ./run.sh",
    "-n 2 -- other.py": "'other.py' is not in the current directory: write python and the path of",
    "-n 2 -- 'sh train.sh'": "'sh train.sh' is passed as one word: write sh and its arguments without quotes",
    "-n 2 -- A=1 python train.py": "'A=1' is not a program: set variables before gluonlab launch",
    "-n 2 -- -c print(1)": "-c is not an option of gluonlab run: to run a program, start with its name",
    "-n 2 -- ./none": "the program './none' does not exist",
    "-n 2 -- ./folder": "'./folder' is a directory: pass a program",
    "-n 2 python train.py --port 9": "'python' is not an option: write a program after --, as in",
    "-n 2 -- python -m gluonlab.run": "python -m gluonlab.run would train independently in each process",
    "-n 2 -- gluonlab run --epochs 3": "gluonlab run --epochs would train independently in each process",
    # commands of gluonlab
    "-n 2 -- run --epochs 0": "--epochs 0: ",
    "-n 2 -- resume": "resume requires a run directory: add it",
    "-n 2 -- resume --epochs 3": "resume requires a run directory: add it",
    "-n 2 -- compare 1,2": "compare runs in a single process: use gluonlab compare without gluonlab launch",
    "-n 2 -- evaluate run": "evaluate runs in a single process: use gluonlab evaluate",
    # job files
    "-n 2 --print sagemaker -- python train.py": "--print sagemaker does not support the program python, ",
    f"{JOB_FILE} slurm -n 2 --port 70000": "--port 70000: must be a whole number from 1 to 65535",
    f"{JOB_FILE} k8s -n 2 --servers none": "--servers none: must be a whole number from 1 to 4096",
    f"{JOB_FILE} slurm --hosts h1": "--print slurm cannot be combined with --hosts, because the scheduler",
    f"{JOB_FILE} lsf --ssh ssh": "--print lsf cannot be combined with --ssh, because the scheduler",
    f"{JOB_FILE} k8s --env HOME": "--print k8s cannot be combined with --env, because the scheduler passes",
    f"{JOB_FILE} k8s --python x": "--print k8s cannot be combined with --python, because the job file starts Python",
    f"{JOB_FILE} k8s -n 2 --max-restarts 1 --min-np 1": "--print k8s does not support --min-np",
    f"{JOB_FILE} sagemaker --max-restarts 1": "--print sagemaker does not support --max-restarts",
    f"{JOB_FILE} sagemaker --timeout 60": "--print sagemaker does not support --timeout",
    f"{JOB_FILE} slurm --max-restarts 1 -n 2 --min-np 3 -- --out run": "--min-np 3 is more than the number of",
    f"{JOB_FILE} slurm --min-np 1": "--min-np only applies to restarts: add --max-restarts N",
    f"{JOB_FILE} slurm --max-restarts 1": "--max-restarts 1 needs a directory from which to resume the run: ",
}


@pytest.fixture
def check_mistake(monkeypatch, ended, empty_cwd):
    """Return ``check_mistake(message, *arguments)``, which runs the launcher in an empty folder.

    The launcher does not check the platform. On ARM, this would be the first error.
    """
    monkeypatch.setattr("gluonlab.launch.__main__.check_platform", lambda backend, hosts: None)

    def check(message, *arguments):
        status, out, err = ended(main, *arguments)
        assert (status, out, err.count("\n")) == (2, "", 1), err
        assert err.startswith(f"error: {message}")

    return check


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_is_one_line(words, check_mistake, empty_cwd):
    for name in ("train.py", "run.sh"):
        (empty_cwd / name).touch(0o644)
    (empty_cwd / "folder").mkdir()
    check_mistake(MISTAKES[words], *shlex.split(words))


def test_a_port_in_use_is_named_before_anything_starts(check_mistake):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        message = f"--port {port} is not available on localhost (Address already in use): choose "
        check_mistake(message, "-n", "1", "--backend", "dist_sync", "--port", port)


def test_a_member_of_a_job_may_not_start_a_group(check_mistake, monkeypatch):
    for name, value in list(srun_environments((2,)))[1].items():
        monkeypatch.setenv(name, value)
    message = "-n starts a new job, but srun has already started this process in a job of 2 processes: "
    check_mistake(message, *TWO.split(), "--", *QUICK_LAUNCH_OPTIONS)


def test_options_for_starting_are_refused_if_another_launcher_has_started(check_mistake, monkeypatch):
    """MXNet's launch.py, SageMaker's image and horovodrun do not say how to start again."""
    for name, value in (("RANK", "0"), ("SIZE", "1"), ("LOCAL_RANK", "0"), ("LOCAL_SIZE", "1")):
        monkeypatch.setenv(f"HOROVOD_{name}", value)
    message = (
        "--max-restarts only applies to the process that starts a job, but horovodrun has already started this process"
    )
    check_mistake(message, "--backend", "horovod", "--max-restarts", "1", "--", "--out", "run")


@pytest.mark.parametrize("option", ["--ssh", "--env", "--python"])
def test_options_for_other_hosts_are_refused_under_a_scheduler(option, check_mistake, monkeypatch):
    for name, value in next(iter(srun_environments((2,)))).items():
        monkeypatch.setenv(name, value)
    arguments = (option, "HOME", "--backend", "dist_sync", "--", "--epochs", "1")
    check_mistake(f"{option} only applies to other hosts, but ", *arguments)


@pytest.mark.parametrize("layout", [(1,), (2,), (1, 1)], ids=str)
def test_only_a_process_that_is_alone_may_start_a_group(layout):
    """As in an allocation of one task: srun -n 1 python -m gluonlab.launch -n 4 ..."""
    context = main.make_context("launch", TWO.split())
    for environ in srun_environments(layout):
        if sum(layout) == 1:
            check_not_in_group(context, membership(environ))
        else:
            with pytest.raises(ConfigError, match=f"in a job of {sum(layout)} processes: "):
                check_not_in_group(context, membership(environ))


def test_options_for_a_single_process_are_refused():
    def option_names(command):
        return {name for option in command.params for name in (*option.opts, *option.secondary_opts)}

    options = {*option_names(run), *run.moved}
    assert options - option_names(worker) - option_names(main) == set(SINGLE_PROCESS_OPTIONS)
    for option in SINGLE_PROCESS_OPTIONS:
        with pytest.raises(ConfigError, match=f"^{option} only works in a single process: omit it, or use"):
            validate_run_arguments("dist_sync", (option, "2"), 0, main, worker)
