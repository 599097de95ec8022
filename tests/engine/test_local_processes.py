"""Processes of a host share its cores. Their number comes from launchers or from their group."""

import json
import os
import subprocess
import sys

import pytest
from support.parameter_server import start_workers
from support.processes import clean_environment

from gluonlab.engine import local_processes
from gluonlab.engine.cpu_threads import set_threads, threads_per_device
from gluonlab.errors import GluonlabWarning
from gluonlab.host import resources

pytestmark = pytest.mark.cpu_only("cores that processes share, for the threads of CPU devices")
LOOPBACK = {"DMLC_ROLE": "worker", "DMLC_NUM_WORKER": "3", "DMLC_PS_ROOT_URI": "127.0.0.1"}
ELSEWHERE = {**LOOPBACK, "DMLC_PS_ROOT_URI": "10.0.0.7"}
PREFIXES = ("OMPI_COMM_WORLD", "MV2_COMM_WORLD", "HOROVOD", "PMI", "PALS", "JSM_NAMESPACE")
LOCAL_SIZES = [f"{prefix}_LOCAL_SIZE" for prefix in PREFIXES]
LOCAL_SIZES += ["MPI_LOCALNRANKS", "LOCAL_WORLD_SIZE", "PYTEST_XDIST_WORKER_COUNT"]
LSF = {"LSB_MCPU_HOSTS": "a 2 b 3"}
STEP = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}


@pytest.fixture
def environment(monkeypatch):
    return lambda variables: [monkeypatch.setenv(*variable) for variable in variables.items()]


@pytest.mark.parametrize(
    ("variables", "processes"),
    [
        ({}, 1),
        *(({name: "4"}, 4) for name in LOCAL_SIZES),
        # two hosts of four each
        ({**ELSEWHERE, "DMLC_NUM_WORKER": "2", "BYTEPS_LOCAL_SIZE": "4"}, 4),
        # one in the other: the larger number is safe
        ({"LOCAL_WORLD_SIZE": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "3"}, 3),
        *(({"LOCAL_WORLD_SIZE": value}, 1) for value in ("many", "0", "")),
        ({**STEP, "SLURM_STEP_TASKS_PER_NODE": "4"}, 4),
        ({**STEP, "SLURM_STEP_TASKS_PER_NODE": "2(x3),1", "SLURM_NODEID": "2"}, 2),
        ({**STEP, "SLURM_STEP_TASKS_PER_NODE": "2(x3),1", "SLURM_NODEID": "3"}, 1),
        ({**STEP, "SLURM_STEP_TASKS_PER_NODE": "1,3"}, 3),  # the node is not known
        # the job could have more than this step
        ({**STEP, "SLURM_STEP_TASKS_PER_NODE": "1", "SLURM_TASKS_PER_NODE": "8"}, 1),
        ({"SLURM_TASKS_PER_NODE": "2(x2)"}, 2),
        ({"SLURM_NTASKS_PER_NODE": "6"}, 6),
        # a job's script, which is not a task
        ({"SLURM_JOB_ID": "7", "SLURM_TASKS_PER_NODE": "8"}, 1),
        ({**STEP, "SLURM_STEP_TASKS_PER_NODE": "2(x3"}, 1),
        *(({**LSF, "LSF_PM_TASKID": task}, count) for task, count in (("3", 3), ("2", 2), ("6", 1), ("0", 1))),
        (LSF, 1),  # a job's script
        ({"LSF_PM_TASKID": "1", "LSB_MCPU_HOSTS": "a"}, 1),
        (LOOPBACK, 3),
        ({**ELSEWHERE, "DMLC_JOB_CLUSTER": "local"}, 3),
        ({**LOOPBACK, "DMLC_PS_ROOT_URI": "localhost"}, 3),
        ({**LOOPBACK, "DMLC_ROLE": "server"}, 1),
        ({**ELSEWHERE, "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, 2),  # launch.py --launcher mpi
        ({**ELSEWHERE, "DMLC_NUM_WORKER": "1"}, 1),
    ],
    ids=str,
)
def test_the_launchers_variables_tell_the_number_of_processes_of_a_host(environment, variables, processes):
    environment(variables)
    assert local_processes.local_process_count() == (processes, True)


def test_workers_of_a_scheduler_elsewhere_assume_one_host_until_their_group_knows_better(environment, monkeypatch):
    environment(ELSEWHERE)
    assert local_processes.local_process_count() == (3, False)
    monkeypatch.setattr(local_processes, "_reported_count", [])
    local_processes.set_local_process_count(1)
    assert local_processes.local_process_count() == (1, True)
    assert threads_per_device(1) == resources.available_cores()


@pytest.mark.parametrize(
    ("cores", "processes", "threads"), [(8, 2, 4), (8, 3, 2), (2, 2, 1), (2, 5, 1), (1, 2, 1), (7, 2, 3), (64, 8, 8)]
)
def test_each_process_takes_its_share_of_the_cores(environment, monkeypatch, cores, processes, threads):
    environment({"LOCAL_WORLD_SIZE": str(processes)})
    monkeypatch.setattr(resources, "available_cores", lambda: cores)
    assert threads_per_device(1) == threads
    assert threads_per_device(2) == 1


@pytest.mark.parametrize(
    ("own", "all_cores", "limit", "processes", "threads"),
    [
        (8, 8, None, 2, 4),  # not bound
        (4, 8, None, 2, 4),  # each bound to its half
        (1, 8, None, 2, 1),  # each bound to a core
        (8, 16, None, 4, 4),  # two on each socket
        (4, 0, None, 2, 2),  # the parent is not visible
        (64, 64, 4, 2, 2),
        (32, 64, 4, 4, 1),  # each bound to a socket; the container's limit is for all of them
        (64, 64, 2, 3, 1),
        (32, 64, None, 2, 32),
        (64, 64, 4, 1, 4),
    ],
)
def test_bound_processes_use_all_their_cores_and_share_a_containers_limit(
    monkeypatch, own, all_cores, limit, processes, threads
):
    monkeypatch.setattr(resources, "core_limit", lambda: limit)
    monkeypatch.setattr(resources, "_physical_cores", lambda cpus: cpus)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(all_cores if pid else own)))
    monkeypatch.setattr(os, "getppid", lambda: 2**22 + 1)  # of no process; 1, if the parent of pytest has exited
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_SIZE", str(processes))
    assert local_processes.cores_per_process() == threads


def test_slurm_tells_the_cpus_of_all_tasks_together(environment, monkeypatch):
    environment({**STEP, "SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_CPUS_ON_NODE": "8"})
    monkeypatch.setattr(resources, "available_cores", lambda: 4)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(4)))
    assert local_processes.cores_per_process() == 4
    environment({"SLURM_CPUS_ON_NODE": "4"})
    assert local_processes.cores_per_process() == 2


def test_a_launcher_is_found_behind_shells_that_it_has_bound(python):
    # The shells have the launcher's variable and one core; pytest, which started them, has neither.
    code = "from gluonlab.engine import local_processes; print(local_processes._launcher_cpus())"
    environment = clean_environment(
        OMPI_COMM_WORLD_LOCAL_SIZE="2", CODE=code, PYTHON=sys.executable, CPU=str(min(os.sched_getaffinity(0)))
    )
    shell = 'taskset -c $CPU sh -c \'"$PYTHON" -c "$CODE"; true\'; true'
    process = subprocess.run(["sh", "-c", shell], env=environment, capture_output=True, text=True)
    assert int(process.stdout) == len(os.sched_getaffinity(0)), process.stderr


def test_one_device_warns_if_the_number_of_local_workers_is_unknown(environment, monkeypatch):
    import mxnet as mx

    set_threads([mx.cpu(0), mx.cpu(1)])
    environment(ELSEWHERE)
    monkeypatch.setattr(resources, "available_cores", lambda: 6)
    with pytest.warns(GluonlabWarning, match="up to 3 workers may share the 6 cores of this host, so this one uses 2"):
        assert set_threads([mx.cpu(0)]) == 2
    assert set_threads([mx.cpu(0)]) == 2  # once
    set_threads([mx.cpu(0), mx.cpu(1)])


def test_decoders_take_their_share_of_the_cores(environment, monkeypatch, tmp_path):
    from support.image_folders import write_image_folder

    from gluonlab.data.sets import image_file_dataset, image_folder

    environment({"LOCAL_WORLD_SIZE": "4"})
    monkeypatch.setattr(resources, "available_cores", lambda: 8)
    started, real = [], image_file_dataset.DecoderPool
    make_pool = lambda size, processes, *more: started.append(processes) or real(size, processes, *more)  # noqa: E731
    monkeypatch.setattr(image_file_dataset, "DecoderPool", make_pool)
    write_image_folder(tmp_path)
    image_folder.load_folder(tmp_path)
    assert started == [2]


# --- real workers of MXNet's parameter server

REPORT = """
import json, os, socket, sys, gluonlab
if sys.argv[1] == "other hosts":
    socket.gethostname = lambda: str(os.getpid())
from gluonlab.engine.local_processes import local_process_count
from gluonlab.devices import devices
from gluonlab.launch.parameter_server_group import ParameterServer
from gluonlab.engine.cpu_threads import threads_per_device
from support import workers
before, group, [ctx] = local_process_count(), ParameterServer(), devices("cpu")
print(json.dumps([before, local_process_count(), threads_per_device(1), workers.openmp_team_size(ctx)]))
"""


@pytest.mark.long
@pytest.mark.parametrize(("count", "hosts"), [(2, "one host"), (3, "one host"), (2, "other hosts")])
def test_workers_of_one_host_share_its_cores(count, hosts):
    # Workers whose hosts have other names each have all cores, although the environment cannot tell.
    with start_workers(count, REPORT, hosts) as workers:
        results = [json.loads(worker.communicate(timeout=120)[0]) for worker in workers]
    sharing = count if hosts == "one host" else 1
    share = max(1, resources.available_cores() // sharing)
    assert [result[1:] for result in results] == [[[sharing, True], share, share]] * count
    if hosts == "one host":
        assert [result[0] for result in results] == [[count, True]] * count
