"""Each launcher's environment, as its documentation gives it: ranks, sizes and one root.

The environments are made for layouts of processes on hosts; what must be found is the layout.
"""

import json
from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.launched_environments import (
    LAUNCHERS,
    blaunch_environments,
    host_names,
    jsrun_environments,
    lsf_job_variables,
    open_mpi_4_environments,
    open_mpi_environments,
    process_places,
    srun_environments,
    torchrun_environments,
)

from gluonlab.errors import ConfigError
from gluonlab.host.launcher_environment import HostSlots
from gluonlab.launch.process_membership import FIRST_PORT, PORT_COUNT, membership, read_job_allocation

LAYOUTS = [(4,), (2, 2, 2), (3, 1, 2), (1,)]  # processes on each host


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_every_process_finds_its_rank_and_all_agree_on_the_root(launcher, layout):
    members = [membership(environ) for environ in LAUNCHERS[launcher](layout)]
    root = "127.0.0.1" if len(layout) == 1 else "node07"
    assert [(each.rank, each.local_rank, each.local_size, each.size, each.root) for each in members] == [
        (rank, local, layout[node], sum(layout), root) for rank, node, local in process_places(layout)
    ]
    [port] = {each.port for each in members}
    assert FIRST_PORT <= port < FIRST_PORT + PORT_COUNT


@given(st.lists(st.integers(1, 5), min_size=1, max_size=5), st.data())
def test_any_layout_is_found_by_srun_and_blaunch(layout, data):
    """A host may occur several times in LSF's list."""
    for launcher in (srun_environments, blaunch_environments):
        ranks = [membership(environ) for environ in launcher(layout)]
        assert [(each.rank, each.local_rank) for each in ranks] == [
            (rank, local) for rank, _, local in process_places(layout)
        ]
    twice = data.draw(st.integers(1, 3))
    job = {**lsf_job_variables(layout), "LSB_MCPU_HOSTS": lsf_job_variables(layout)["LSB_MCPU_HOSTS"] * twice}
    ranks = [membership({**job, "LSF_PM_TASKID": str(n + 1)}) for n in range(sum(layout) * twice)]
    for host in range(len(layout)):
        begin = sum(layout[:host])
        on_it = [ranks[lap * sum(layout) + begin + n].local_rank for lap in range(twice) for n in range(layout[host])]
        assert on_it == list(range(twice * layout[host]))


@pytest.mark.parametrize("layout", [(2, 2), (4, 1), (3, 1, 2), (2,)], ids=str)
def test_the_root_of_jsrun_is_the_first_host_where_the_jobs_script_has_none_of_its_own(layout):
    """The script's host has one slot: a first host with more than that runs tasks."""
    for environ in jsrun_environments(layout):
        without = {**environ, "LSB_MCPU_HOSTS": lsf_job_variables(layout)["LSB_MCPU_HOSTS"]}
        assert membership(without).root == membership(environ).root


@pytest.mark.parametrize("count", [1, 3, 12])
def test_a_pod_or_a_host_of_sagemaker_is_one_process(count):
    pods = [
        {"JOB_COMPLETION_INDEX": str(index), "GLUONLAB_WORLD_SIZE": str(count),
         "GLUONLAB_MASTER_ADDR": "train-0.train", "GLUONLAB_PORT": "9091"}
        for index in range(count)
    ]  # fmt: skip
    hosts = [f"algo-{number}" for number in range(1, count + 1)]
    machines = [{"SM_HOSTS": json.dumps(hosts), "SM_CURRENT_HOST": host} for host in hosts]
    for environs, root in ((pods, "train-0.train"), (machines, "algo-1" if count > 1 else "127.0.0.1")):
        members = [membership(environ) for environ in environs]
        assert sorted(each.rank for each in members) == list(range(count))
        assert {(each.size, each.root, each.local_rank, each.local_size) for each in members} == {(count, root, 0, 1)}
        assert len({each.port for each in members}) == 1


def test_the_inner_launcher_counts_also_in_sagemaker():
    """sagemaker_mpi_enabled: mpirun on the first host, four processes on each."""
    hosts = {"SM_HOSTS": '["algo-1", "algo-2"]', "SM_CURRENT_HOST": "algo-2"}
    last = [{**environ, **hosts} for environ in open_mpi_environments((4, 4))][-1]
    member = membership(last)
    assert (member.launcher, member.rank, member.size, member.local_rank) == ("Open MPI", 7, 8, 3)


def test_processes_of_one_host_have_it_for_root_where_nobody_tells():
    one = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
    assert membership(one).root == "127.0.0.1"
    assert membership({**one, "PMI_SIZE": "4"}).root is None
    member = membership({**one, "PMI_SIZE": "4", "GLUONLAB_MASTER_ADDR": "a", "GLUONLAB_PORT": "77"})
    assert (member.root, member.port) == ("a", 77)
    horovod = {
        "HOROVOD_RANK": "0", "HOROVOD_SIZE": "2", "HOROVOD_LOCAL_RANK": "0",
        "HOROVOD_LOCAL_SIZE": "2", "HOROVOD_GLOO_RENDEZVOUS_ADDR": "10.0.0.1",
    }  # fmt: skip
    assert membership(horovod).root == "127.0.0.1"


@pytest.mark.parametrize(
    ("uri", "root"),
    [
        ("3195338752.0;tcp://10.153.72.131,172.17.0.1:10000", "10.153.72.131"),
        ("3236233216.0;tcp://172.20.102.82:33559;tcp://172.40.102.82:33559", "172.20.102.82"),
        ("723386368.0;usock;tcp://192.168.0.103:56672", "192.168.0.103"),
        ("1.0;tcp6://[2001:db8::1]:10000", "2001:db8::1"),
        ("1.0;tcp6://[2001:db8::1,2001:db8::2]:10000", "2001:db8::1"),
    ],
)
def test_mpiruns_host_is_found_in_the_forms_that_users_have_shown(uri, root):
    """Open MPI 1 to 4, from its list of mails and its issues."""
    [*_, last] = open_mpi_4_environments((2, 2))
    assert membership({**last, "OMPI_MCA_orte_hnp_uri": uri}).root == root


def test_a_port_that_torchrun_itself_listens_at_is_not_given_out():
    """TORCHELASTIC_USE_AGENT_STORE: torch.distributed.rendezvous asks the same."""
    [environ] = torchrun_environments((1,))
    assert membership({**environ, "TORCHELASTIC_USE_AGENT_STORE": "False"}).port == 29500
    assert membership(environ).port != 29500


def test_two_jobs_and_two_steps_have_other_ports():
    [environ] = srun_environments((1,))
    jobs = [{**environ, "SLURM_JOB_ID": str(job)} for job in range(20)]
    jobs += [{**environ, "SLURM_STEP_ID": str(step)} for step in range(1, 20)]
    assert len({membership(each).port for each in jobs}) == 39


def test_a_role_of_the_parameter_server_counts_before_all_else():
    [*_, environ] = srun_environments((2, 2))
    role = {
        "DMLC_ROLE": "server", "DMLC_NUM_WORKER": "4", "DMLC_NUM_SERVER": "2",
        "DMLC_PS_ROOT_URI": "10.0.0.7", "DMLC_PS_ROOT_PORT": "9091",
    }  # fmt: skip
    member = membership({**environ, **role})
    expected = ("server", None, 4, "10.0.0.7", 9091)
    assert (member.role, member.rank, member.size, member.root, member.port) == expected


# --- shells and scripts in an allocation

JOB = {
    "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-3]", "SLURM_NODELIST": "n[1-3]",
    "SLURM_TASKS_PER_NODE": "2(x2),1", "SLURM_NTASKS": "5",
}  # fmt: skip
SCRIPT = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}
ALONE = {**SCRIPT, "SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_NODELIST": "n1"}


@pytest.mark.parametrize(
    "more",
    [
        {},  # salloc
        SCRIPT,  # sbatch
        {**ALONE, "SLURM_STEP_ID": "4294967290"},  # salloc with use_interactive_step
        {**ALONE, "SLURM_STEP_ID": "4294967291"},
        {**ALONE, "SLURM_STEP_ID": "0", "SLURM_PTY_PORT": "43210"},  # srun --pty bash
    ],
    ids=["salloc", "sbatch", "interactive step", "batch step", "pty"],
)
def test_a_shell_in_slurms_allocation_is_no_member_and_knows_its_hosts(more):
    environ = {**JOB, **more}
    assert membership(environ) is None
    assert read_job_allocation(environ) == [HostSlots("n1", 2), HostSlots("n2", 2), HostSlots("n3", 1)]


def test_a_step_smaller_than_its_job_does_not_contradict_it():
    environ = {**JOB, **ALONE, "SLURM_STEP_ID": "0", "SLURM_PTY_PORT": "1"}
    environ["SLURM_TASKS_PER_NODE"] = "1"
    assert read_job_allocation(environ) == [HostSlots(f"n{number}", 1) for number in (1, 2, 3)]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_shell_of_bsub_is_no_member_and_knows_its_hosts(layout):
    environ = lsf_job_variables(layout)
    assert membership(environ) is None
    assert read_job_allocation(environ) == [HostSlots(*pair) for pair in zip(host_names(layout), layout)]


# --- what is missing, senseless or contradictory

[STEP] = list(srun_environments((3, 1)))[2:3]
[TASK] = list(blaunch_environments((2, 2)))[3:]
[MPI] = list(open_mpi_environments((2, 2)))[3:]


def but(environ, **changes):
    return {name: text for name, text in {**environ, **changes}.items() if text is not None}


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        (but(STEP, SLURM_PROCID=None), "SLURM_PROCID"),
        (but(STEP, SLURM_PROCID="4"), "SLURM_PROCID"),
        (but(STEP, SLURM_PROCID="-1"), "SLURM_PROCID"),
        (but(STEP, SLURM_PROCID="1; rm -rf /"), "SLURM_PROCID"),
        (but(STEP, SLURM_STEP_ID="\u00b2", SLURM_PROCID="4"), "SLURM_PROCID"),
        (but(STEP, SLURM_LOCALID="3"), "SLURM_LOCALID"),
        (but(STEP, SLURM_NODEID="2"), "SLURM_NODEID"),
        (but(STEP, SLURM_STEP_NUM_TASKS="0"), "SLURM_STEP_NUM_TASKS"),
        (but(STEP, SLURM_STEP_NUM_TASKS=None, SLURM_NTASKS=None), "SLURM_STEP_NUM_TASKS"),
        (but(STEP, SLURM_STEP_TASKS_PER_NODE="2,1"), "SLURM_STEP_TASKS_PER_NODE"),
        (but(STEP, SLURM_STEP_TASKS_PER_NODE="2(x2)", SLURM_STEP_NODELIST="a"), "SLURM_STEP_NODEL"),
        (but(STEP, SLURM_STEP_NODELIST="node[7"), "SLURM_STEP_NODELIST"),
        (but(STEP, SLURM_STEP_NODELIST=None, SLURM_NODELIST=None, SLURM_JOB_NODELIST=None), "SLURM_STEP_NODELIST"),
        (but(TASK, LSF_PM_TASKID="0"), "LSF_PM_TASKID"),
        (but(TASK, LSF_PM_TASKID="5"), "LSF_PM_TASKID"),
        (but(TASK, LSB_DJOB_NUMPROC="9"), "LSB_DJOB_NUMPROC"),
        (but(TASK, LSB_MCPU_HOSTS=None, LSB_HOSTS=None), "LSB_MCPU_HOSTS"),
        (but(TASK, LSB_MCPU_HOSTS=None, LSB_HOSTS=None, LSB_DJOB_NUMPROC=None), "LSB_DJOB_NUMPROC"),
        (but(MPI, OMPI_COMM_WORLD_SIZE=None), "OMPI_COMM_WORLD_SIZE"),
        (but(MPI, OMPI_COMM_WORLD_RANK="\u0663"), "OMPI_COMM_WORLD_RANK"),
        (but(MPI, OMPI_COMM_WORLD_LOCAL_SIZE="9"), "OMPI_COMM_WORLD_LOCAL_SIZE"),
        (but(MPI, PMIX_NAMESPACE="prterun--oProxyCommand=x-1@1"), "PMIX_NAMESPACE"),
        (but(MPI, GLUONLAB_MASTER_ADDR="a b"), "GLUONLAB_MASTER_ADDR"),
        (but(MPI, GLUONLAB_PORT="65536"), "GLUONLAB_PORT"),
        ({"WORLD_SIZE": "2"}, "RANK"),
        ({"PMI_RANK": "0"}, "PMI_SIZE"),
        ({"JOB_COMPLETION_INDEX": "0"}, "GLUONLAB_WORLD_SIZE"),
        ({"JOB_COMPLETION_INDEX": "0", "GLUONLAB_WORLD_SIZE": "2"}, "GLUONLAB_MASTER_ADDR"),
        ({"SM_HOSTS": '["a"]'}, "SM_CURRENT_HOST"),
        ({"SM_HOSTS": '["a"]', "SM_CURRENT_HOST": "b"}, "SM_CURRENT_HOST"),
        ({"SM_HOSTS": "a,b", "SM_CURRENT_HOST": "a"}, "SM_HOSTS"),
        ({"SM_HOSTS": '["a", "a"]', "SM_CURRENT_HOST": "a"}, "SM_HOSTS"),
        ({"SM_HOSTS": "[" * 100000, "SM_CURRENT_HOST": "a"}, "SM_HOSTS"),
        ({"SM_HOSTS": '["-x"]', "SM_CURRENT_HOST": "-x"}, "SM_HOSTS"),
        ({"DMLC_ROLE": "boss"}, "DMLC_ROLE"),
        ({"DMLC_ROLE": "worker", "DMLC_NUM_WORKER": "2"}, "DMLC_PS_ROOT_URI"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_impossible_environment_is_an_error_that_names_the_variable(environ, named):
    with pytest.raises(ConfigError, match=named) as caught:
        membership(environ)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("layout", [(2, 2), (3, 1), (1,)], ids=str)
@pytest.mark.parametrize(
    ("launcher", "variable", "first"),
    [
        (srun_environments, "SLURM_PROCID", 0),
        (blaunch_environments, "LSF_PM_TASKID", 1),
        (open_mpi_environments, "OMPI_COMM_WORLD_RANK", 0),
    ],
    ids=["srun", "blaunch", "Open MPI"],
)
def test_a_number_beyond_the_last_is_told_which_there_are(launcher, variable, first, layout):
    numbers = [int(environ[variable]) for environ in launcher(layout)]
    assert numbers == list(range(first, first + sum(layout)))
    [*_, last] = launcher(layout)
    for beyond in (numbers[-1] + 1, numbers[-1] + 9):
        said = f"{variable}={beyond}, .* must be from {first} to {numbers[-1]}: "
        with pytest.raises(ConfigError, match=said):
            membership({**last, variable: str(beyond)})


VARIABLES = sorted({*STEP, *TASK, *MPI, "SM_HOSTS", "SM_CURRENT_HOST", "RANK", "WORLD_SIZE"})
TEXTS = st.sampled_from(["0", "1", "2", "3", "", "-1", "x[1-2]", "a 1", "[", "2(x2)"]) | st.text(
    st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), max_size=8
)


@given(st.dictionaries(st.sampled_from(VARIABLES), TEXTS, max_size=8), st.booleans())
@example({"PATH": "/bin", "RANK": "7"}, False)
def test_any_environment_has_a_place_none_or_an_error(changes, step):
    environ = {**(STEP if step else {}), **changes}
    with suppress(ConfigError):
        read_job_allocation(environ)
    with suppress(ConfigError):
        member = membership(environ)
        assert member is None or (0 <= member.rank < member.size and 0 < member.port < 65536)


@pytest.mark.parametrize(
    ("size", "root"), [("GLUONLAB_WORLD_SIZE", "GLUONLAB_MASTER_ADDR"), ("GLUONLAB_PROCESSES", "GLUONLAB_ROOT")]
)
def test_old_names_of_variables_are_read(size, root):
    member = membership({"JOB_COMPLETION_INDEX": "1", size: "2", root: "train-0.train"})
    assert (member.rank, member.size, member.root) == (1, 2, "train-0.train")
