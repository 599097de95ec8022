"""Processes of one host share its cores: how many there are, by each launcher's variables and by
the group itself.
"""

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
STEP = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}


@pytest.fixture
def environment(monkeypatch):
    def change(variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return change


@pytest.mark.parametrize(
    ("variables", "processes"),
    [
        ({}, 1),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, 4),
        ({"MPI_LOCALNRANKS": "2"}, 2),
        ({"MV2_COMM_WORLD_LOCAL_SIZE": "2"}, 2),
        ({"HOROVOD_LOCAL_SIZE": "8"}, 8),
        ({"LOCAL_WORLD_SIZE": "5"}, 5),
        ({"PMI_LOCAL_SIZE": "6"}, 6),
        ({"PALS_LOCAL_SIZE": "6"}, 6),
        ({"JSM_NAMESPACE_LOCAL_SIZE": "6"}, 6),
        ({"PYTEST_XDIST_WORKER_COUNT": "4"}, 4),
        # two hosts of four each
        ({**ELSEWHERE, "DMLC_NUM_WORKER": "2", "BYTEPS_LOCAL_SIZE": "4"}, 4),
        # one in the other: the larger number is safe
        ({"LOCAL_WORLD_SIZE": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "3"}, 3),
        ({"LOCAL_WORLD_SIZE": "many"}, 1),
        ({"LOCAL_WORLD_SIZE": "0"}, 1),
        ({"LOCAL_WORLD_SIZE": ""}, 1),
        ({**STEP, "SLURM_STEP_TASKS_PER_NODE": "4"}, 4),
        ({**STEP, "SLURM_STEP_TASKS_PER_NODE": "2(x3),1", "SLURM_NODEID": "2"}, 2),
        ({**STEP, "SLURM_STEP_TASKS_PER_NODE": "2(x3),1", "SLURM_NODEID": "3"}, 1),
        ({**STEP, "SLURM_STEP_TASKS_PER_NODE": "1,3"}, 3),  # which node this is, nobody says
        # the job could have more than this step
        ({**STEP, "SLURM_STEP_TASKS_PER_NODE": "1", "SLURM_TASKS_PER_NODE": "8"}, 1),
        ({"SLURM_TASKS_PER_NODE": "2(x2)"}, 2),
        ({"SLURM_NTASKS_PER_NODE": "6"}, 6),
        # a job's script, which is none of its tasks
        ({"SLURM_JOB_ID": "7", "SLURM_TASKS_PER_NODE": "8"}, 1),
        ({**STEP, "SLURM_STEP_TASKS_PER_NODE": "2(x3"}, 1),
        ({"LSF_PM_TASKID": "3", "LSB_MCPU_HOSTS": "a 2 b 3"}, 3),
        ({"LSF_PM_TASKID": "2", "LSB_MCPU_HOSTS": "a 2 b 3"}, 2),
        ({"LSB_MCPU_HOSTS": "a 2 b 3"}, 1),  # a job's script
        ({"LSF_PM_TASKID": "6", "LSB_MCPU_HOSTS": "a 2 b 3"}, 1),
        ({"LSF_PM_TASKID": "0", "LSB_MCPU_HOSTS": "a 2"}, 1),
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
def test_the_processes_of_a_host_by_its_launcher(environment, variables, processes):
    environment(variables)
    assert local_processes.local_process_count() == (processes, True)


def test_workers_of_another_hosts_scheduler_take_the_safe_part_until_their_group_has_told(environment, monkeypatch):
    environment(ELSEWHERE)
    assert local_processes.local_process_count() == (3, False)
    monkeypatch.setattr(local_processes, "_reported_count", [])
    local_processes.set_local_process_count(1)
    assert local_processes.local_process_count() == (1, True)
    assert threads_per_device(1) == resources.available_cores()


@pytest.mark.parametrize(
    ("cores", "processes", "threads"), [(8, 2, 4), (8, 3, 2), (2, 2, 1), (2, 5, 1), (1, 2, 1), (7, 2, 3), (64, 8, 8)]
)
def test_each_process_takes_its_part_of_the_cores(environment, monkeypatch, cores, processes, threads):
    environment({"LOCAL_WORLD_SIZE": str(processes)})
    monkeypatch.setattr(resources, "available_cores", lambda: cores)
    assert threads_per_device(1) == threads
    assert threads_per_device(2) == 1


def test_what_the_user_asks_for_counts_before_the_part(environment):
    environment({"LOCAL_WORLD_SIZE": "64", "OMP_NUM_THREADS": "3"})
    assert threads_per_device(1) == 3
    assert threads_per_device(1, requested=5) == 5


@pytest.mark.parametrize(
    ("own", "all_together", "processes", "threads"),
    [
        (8, 8, 2, 4),  # nobody is bound
        (4, 8, 2, 4),  # each to its half
        (1, 8, 2, 1),  # each to a core
        (8, 16, 4, 4),  # two to each socket
        (4, 0, 2, 2),  # who started them is not seen
    ],
)
def test_cores_that_the_launcher_has_bound_a_process_to_are_all_its_own(
    monkeypatch, own, all_together, processes, threads
):
    monkeypatch.setattr(resources, "available_cores", lambda: own)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(all_together if pid else own)))
    # nobody's; 1, if who started these tests has ended
    monkeypatch.setattr(os, "getppid", lambda: 2**22 + 1)
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_SIZE", str(processes))
    assert local_processes.cores_per_process() == threads


@pytest.mark.parametrize(
    ("limit", "own", "processes", "threads"),
    [
        (4, 64, 2, 2),
        (4, 32, 4, 1),  # each bound to a socket of the machine's; the limit is for all of them
        (2, 64, 3, 1),
        (None, 32, 2, 32),
        (4, 64, 1, 4),
    ],
)
def test_a_containers_limit_is_shared_wherever_processes_are_bound(monkeypatch, limit, own, processes, threads):
    monkeypatch.setattr(resources, "core_limit", lambda: limit)
    monkeypatch.setattr(resources, "_physical_cores", lambda cpus: cpus)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64 if pid else own)))
    monkeypatch.setattr(os, "getppid", lambda: 2**22 + 1)
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_SIZE", str(processes))
    assert local_processes.cores_per_process() == threads


def test_slurm_tells_how_many_cpus_its_tasks_have_together(environment, monkeypatch):
    environment({**STEP, "SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_CPUS_ON_NODE": "8"})
    monkeypatch.setattr(resources, "available_cores", lambda: 4)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(4)))
    assert local_processes.cores_per_process() == 4
    environment({"SLURM_CPUS_ON_NODE": "4"})
    assert local_processes.cores_per_process() == 2


def test_a_launcher_is_found_behind_shells_that_it_has_bound(python):
    """The shell has the launcher's variable, too, and the one core; this process, which started it,
    has neither.
    """
    code = "from gluonlab.engine import local_processes; print(local_processes._launcher_cpus())"
    variables = {"OMPI_COMM_WORLD_LOCAL_SIZE": "2", "CODE": code, "PYTHON": sys.executable}
    shell = 'taskset -c $CPU sh -c \'"$PYTHON" -c "$CODE"; true\'; true'
    cpu = min(os.sched_getaffinity(0))
    done = subprocess.run(
        ["sh", "-c", shell], env=clean_environment(CPU=str(cpu), **variables), capture_output=True, text=True
    )
    assert int(done.stdout) == len(os.sched_getaffinity(0)), done.stderr


def test_one_device_warns_where_the_workers_of_its_host_are_not_known(environment, monkeypatch):
    import mxnet as mx

    set_threads([mx.cpu(0), mx.cpu(1)])
    environment(ELSEWHERE)
    monkeypatch.setattr(resources, "available_cores", lambda: 6)
    with pytest.warns(GluonlabWarning, match="up to 3 workers may share this host's 6 cores: this one computes with 2"):
        assert set_threads([mx.cpu(0)]) == 2
    assert set_threads([mx.cpu(0)]) == 2  # once
    set_threads([mx.cpu(0), mx.cpu(1)])


def test_decoders_take_their_part_too(environment, monkeypatch, tmp_path):
    from support.image_folders import write_image_folder

    from gluonlab.data.sets import image_file_splits, image_folder

    environment({"LOCAL_WORLD_SIZE": "4"})
    monkeypatch.setattr(resources, "available_cores", lambda: 8)
    started, real = [], image_file_splits.DecoderPool
    monkeypatch.setattr(
        image_file_splits,
        "DecoderPool",
        lambda size, processes, *more: started.append(processes) or real(size, processes, *more),
    )
    write_image_folder(tmp_path)
    image_folder.load_folder(tmp_path)
    assert started == [2]


# --- real workers of MXNet's parameter server

SAYS = (
    "import json, gluonlab\nfrom gluonlab.engine.local_processes import local_process_count\n"
    "from gluonlab.devices import devices\n"
    "from gluonlab.launch.parameter_server_group import ParameterServer\n"
    "from gluonlab.engine.cpu_threads import threads_per_device\nfrom support import workers\n"
    "before = local_process_count()\ngroup = ParameterServer()\n[ctx] = devices('cpu')\n"
    "print(json.dumps([before, local_process_count(), threads_per_device(1), "
    "workers.openmp_team_size(ctx)]))"
)


@pytest.mark.parametrize(
    ("count", "cores"),
    [(2, resources.available_cores()), pytest.param(3, resources.available_cores(), marks=pytest.mark.long)],
    ids=str,
)
@pytest.mark.long
def test_workers_of_one_host_each_take_their_part_of_its_cores(count, cores):
    with start_workers(count, SAYS) as workers:
        said = [json.loads(worker.communicate(timeout=120)[0]) for worker in workers]
    part = max(1, cores // count)
    assert said == [[[count, True], [count, True], part, part]] * count


@pytest.mark.long
def test_workers_that_call_themselves_otherwise_are_on_other_hosts():
    """Two workers whose hosts have other names: each has all cores, although the environment could
    not tell.
    """
    named = SAYS.replace(
        "import json, gluonlab\n", "import json, os, socket, gluonlab\nsocket.gethostname = lambda: str(os.getpid())\n"
    )
    with start_workers(2, named) as workers:
        said = [json.loads(worker.communicate(timeout=120)[0]) for worker in workers]
    assert [(group, threads) for _, group, threads, _ in said] == [([1, True], resources.available_cores())] * 2
