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
    "-n 0 --backend dist_sync": "-n 0: must be a whole number, 1 to 4096",
    "-n two --backend dist_sync": "-n two: give a whole number, 1 to 4096",
    "-n 2 --backend dist_synk": "unknown --backend 'dist_synk': choose",
    "--backend dist_sync": "the number of processes is missing: give it with -n 2, or give hosts",
    "-- python train.py": "the number of processes is missing: give it with -n 2, or give hosts",
    f"{TWO} -- --epochs 0": "--epochs 0: ",
    f"{TWO} --timeout soon": "--timeout soon: give seconds",
    f"{TWO} --timeout 1": "--timeout 1: give seconds, 5 to 1000000",
    f"{TWO} --port 0": "--port 0: must be a whole number, 1 to 65535",
    f"{TWO} --job gpus=2": "--job gpus=2 is for job files: add --print",
    # unknown options
    f"{TWO} --epoch 1": "unknown option '--epoch': did you mean '--epo",
    f"{TWO} --servrs 3": "unknown option '--servrs': did you mean '--servers'?",
    f"{TWO} --HELP": "unknown option '--HELP': did you mean '--help'?",
    "-n 2 --launcher local -- ls": "unknown option '--launcher': see --help",
    "-n 2 --hostfil=x -- python train.py": "unknown option '--hostfil': did you mean '--hostfile'?",
    "--nproc-per-node=2 -- python train.py": "unknown option '--nproc-per-node': did you mean '-n'",
    f"{TWO} -- --servers=2": "--servers is an option of the launcher: write it before --",
    f"{TWO} -- --backend horovod": "--backend belongs before --, where it is dist_sync: leave it out",
    # hosts
    "--hosts h1,h1 --backend dist_sync": "--hosts names h1 twice",
    "-n 5 --hosts h1,h2:3 --backend dist_sync": "-n 5: the hosts take 4 (h1:1, h2:3)",
    "--hosts h1 --hostfile f --backend dist_sync": "--hosts and --hostfile contradict",
    "--hostfile none --backend dist_sync": "--hostfile none cannot be read (No such file or directory): "
    "give a file with a host",
    "--hosts [::1]:2 --backend dist_sync": "--hosts [::1]:2: '[::1]:2': an IPv6 address",
    "--hosts localhost,127.0.0.1 --backend dist_sync": "--hosts names localhost and 127.0.0.1, which are this host: "
    "name it once",
    f"{TWO} --env A=1": "--env A=1: there is no such variable here: set",
    "-n 2 --ssh ssh -- ls": "--ssh is for other hosts, and all processes are on this host: leave",
    "-n 2 --hosts localhost:2 --env HOME -- ls": "--env is for other hosts, and all processes are",
    "-n 2 --python python3 --backend dist_sync -- --epochs 1": "--python is for other hosts, and",
    # restarts
    f"{TWO} --max-restarts x": "--max-restarts x: must be a whole number, 0 to 4096",
    f"{TWO} --min-np 1": "--min-np is for restarts: add --max-restarts N",
    f"{TWO} --max-restarts 1 --min-np 3 --out r": "--min-np 3: there are 2 processes: give 2 or fewer",
    f"{TWO} --max-restarts 1": "--max-restarts 1 resumes the run in --out, which is missing: ",
    "-n 2 --backend dist_async --max-restarts 1 -- --out r": "--max-restarts 1 resumes from checkpoints, and --backend "
    "dist_async has none",
    f"{TWO} --max-restarts 1 -- --out r --compress 2bit": "--max-restarts 1 resumes from checkpoints, and --compress "
    "2bit has none: checkpoints do not contain its residuals",
    f"{TWO} --max-restarts 1 -- --out r --update-on-servers": "--max-restarts 1 resumes from checkpoints, and "
    "--update-on-servers has none",
    # Horovod
    f"{HOROVOD} --servers 1": "--servers is for parameter servers, which horovod does not have",
    f"{TWO} --cycle-time-ms 5": "--cycle-time-ms belongs to --backend horovod, ",
    "-n 2 --cycle-time-ms 2 -- ls": "--cycle-time-ms belongs to --backend horovod, and this is",
    f"{HOROVOD} --cycle-time-ms soon": "--cycle-time-ms soon: give milliseconds, 0 to 60000",
    f"{HOROVOD} --cycle-time-ms nan": "--cycle-time-ms nan: give milliseconds, 0 to 60000",
    f"{HOROVOD} --fusion-threshold-mb 1.5": "--fusion-threshold-mb 1.5: give a whole number, 0 to 65536",
    f"{HOROVOD} --fusion-threshold-mb -1": "--fusion-threshold-mb -1: must be a whole number, 0 to",
    f"{HOROVOD} --timeline-mark-cycles": "--timeline-mark-cycles: there is none: add --timeline-f",
    f"{HOROVOD} --timeline-filename ''": "--timeline-filename is empty: give a file, or leave it",
    f"{HOROVOD} --timeline-filename none/t.json": "the timeline none/t.json cannot be written (No such file or "
    "directory): name another",
    f"{HOROVOD} --timeline-filename": "--timeline-filename needs a value: write --timeline-f",
    f"{HOROVOD} -- --compress 4bit": "--compress 4bit: give 2bit:THRESHOLD, such as 2bit:0.5, or",
    # programs
    "-n 2 -- no-such-program": "program 'no-such-program' is not in PATH: write the program's",
    "-n 2 -- train.py": "'train.py' is a file in this folder, which is not in PATH: write python",
    "-n 2 -- ./train.py": "'./train.py' may not be executed: make it executable with chmod +x",
    "-n 2 -- ./run.sh": "'./run.sh' may not be executed: make it executable with chmod +x, or write its interpreter "
    "before it, as in sh ./run.sh",
    "-n 2 -- other.py": "'other.py' is not a file in this folder: write python and the path of",
    "-n 2 -- 'sh train.sh'": "'sh train.sh' is one word: write sh and its words without quotes",
    "-n 2 -- A=1 python train.py": "'A=1' is not a program: set variables before gluonlab launch",
    "-n 2 -- -c print(1)": "-c is not an option of the run: a program starts with its name, as in",
    "-n 2 -- ./none": "the file './none' does not exist",
    "-n 2 -- ./folder": "'./folder' is a folder: give a program",
    "-n 2 python train.py --port 9": "'python' is not an option: write a program after --, as in",
    "-n 2 -- python -m gluonlab.run": "python -m gluonlab.run: each process would train",
    "-n 2 -- gluonlab run --epochs 3": "gluonlab run --epochs: each process would train",
    # commands of gluonlab
    "-n 2 -- run --epochs 0": "--epochs 0: ",
    "-n 2 -- resume": "resume needs a run directory: write it after resume",
    "-n 2 -- resume --epochs 3": "resume needs a run directory: write it after resume",
    "-n 2 -- compare 1,2": "compare runs in one process: write gluonlab compare, without gluonlab launch",
    "-n 2 -- evaluate run": "evaluate runs in one process: write gluonlab evaluate",
    # job files
    "-n 2 --print sagemaker -- python train.py": "--print sagemaker with the program python: ",
    f"{JOB_FILE} slurm -n 2 --port 70000": "--port 70000: must be a whole number, 1 to 65535",
    f"{JOB_FILE} k8s -n 2 --servers none": "--servers none: give a whole number, 1 to 4096",
    f"{JOB_FILE} slurm --hosts h1": "--print slurm with --hosts: the scheduler chooses the hosts: give ",
    f"{JOB_FILE} lsf --ssh ssh": "--print lsf with --ssh: the scheduler starts the processes: leave it",
    f"{JOB_FILE} k8s --env HOME": "--print k8s with --env: the scheduler passes variables to all ",
    f"{JOB_FILE} k8s --python x": "--print k8s with --python: a job file has it as --job python=PATH",
    f"{JOB_FILE} k8s -n 2 --max-restarts 1 --min-np 1": "--print k8s with --min-np: Kubernetes end",
    f"{JOB_FILE} sagemaker --max-restarts 1": "--print sagemaker with --max-restarts: SageMaker's image starts",
    f"{JOB_FILE} sagemaker --timeout 60": "--print sagemaker with --timeout: SageMaker's image start",
    f"{JOB_FILE} slurm --max-restarts 1 -n 2 --min-np 3 -- --out run": "--min-np 3: there are 2 processes: give 2 or",
    f"{JOB_FILE} slurm --min-np 1": "--min-np is for restarts: add --max-restarts N",
    f"{JOB_FILE} slurm --max-restarts 1": "--max-restarts 1 resumes the run in --out, which is missing: ",
}


@pytest.fixture
def check_mistake(ended, empty_cwd):
    """Return ``check_mistake(message, *arguments)``, which runs the launcher in an empty folder."""

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
        message = f"--port {port} on localhost: Address already in use: choose "
        check_mistake(message, "-n", "1", "--backend", "dist_sync", "--port", port)


def test_a_member_of_a_job_may_not_start_a_group(check_mistake, monkeypatch):
    for name, value in list(srun_environments((2,)))[1].items():
        monkeypatch.setenv(name, value)
    message = "-n starts a group, and srun has already started this process as one of 2: "
    check_mistake(message, *TWO.split(), "--", *QUICK_LAUNCH_OPTIONS)


def test_options_for_starting_are_refused_if_another_launcher_has_started(check_mistake, monkeypatch):
    """MXNet's launch.py, SageMaker's image and horovodrun do not say how to start again."""
    for name, value in (("RANK", "0"), ("SIZE", "1"), ("LOCAL_RANK", "0"), ("LOCAL_SIZE", "1")):
        monkeypatch.setenv(f"HOROVOD_{name}", value)
    message = "--max-restarts is for the process that starts a group, and horovodrun has already started this process"
    check_mistake(message, "--backend", "horovod", "--max-restarts", "1", "--", "--out", "run")


@pytest.mark.parametrize("option", ["--ssh", "--env", "--python"])
def test_options_for_other_hosts_are_refused_under_a_scheduler(option, check_mistake, monkeypatch):
    for name, value in next(iter(srun_environments((2,)))).items():
        monkeypatch.setenv(name, value)
    arguments = (option, "HOME", "--backend", "dist_sync", "--", "--epochs", "1")
    check_mistake(f"{option} is for other hosts, and ", *arguments)


@pytest.mark.parametrize("layout", [(1,), (2,), (1, 1)], ids=str)
def test_only_a_process_that_is_alone_may_start_a_group(layout):
    """As in an allocation of one task: srun -n 1 python -m gluonlab.launch -n 4 ..."""
    context = main.make_context("launch", TWO.split())
    for environ in srun_environments(layout):
        if sum(layout) == 1:
            check_not_in_group(context, membership(environ))
        else:
            with pytest.raises(ConfigError, match=f"as one of {sum(layout)}: "):
                check_not_in_group(context, membership(environ))


def test_options_for_a_single_process_are_refused():
    def option_names(command):
        return {name for option in command.params for name in (*option.opts, *option.secondary_opts)}

    options = {*option_names(run), *run.moved}
    assert options - option_names(worker) - option_names(main) == set(SINGLE_PROCESS_OPTIONS)
    for option in SINGLE_PROCESS_OPTIONS:
        with pytest.raises(ConfigError, match=f"^{option} is for one process: leave it out, or wr"):
            validate_run_arguments("dist_sync", (option, "2"), 0, main, worker)
