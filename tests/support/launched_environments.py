"""Environment variables that launchers set for their processes, by their documentation.

Each function takes a layout, the number of processes on each host, and yields the variables of each
rank. The first host is node07.
"""


def host_names(layout):
    return [f"node{number:02d}" for number in range(7, 7 + len(layout))]


def process_places(layout):
    """Return (rank, host number, local rank) of all processes, host by host."""
    places = [(node, local) for node, count in enumerate(layout) for local in range(count)]
    return [(rank, node, local) for rank, (node, local) in enumerate(places)]


def format_counts(layout):
    return ",".join(map(str, layout))


def srun_environments(layout):
    nodes = f"node[07-{6 + len(layout):02d}]" if len(layout) > 1 else "node07"
    for rank, node, local in process_places(layout):
        yield {
            "SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "0", "SLURM_PROCID": str(rank),
            "SLURM_LOCALID": str(local), "SLURM_NODEID": str(node), "SLURM_JOB_NODELIST": nodes,
            "SLURM_NODELIST": nodes, "SLURM_STEP_NODELIST": nodes, "SLURM_NTASKS": str(sum(layout)),
            "SLURM_STEP_NUM_TASKS": str(sum(layout)), "SLURM_STEP_NUM_NODES": str(len(layout)),
            "SLURM_STEP_TASKS_PER_NODE": format_counts(layout),
            "SLURM_TASKS_PER_NODE": format_counts(layout),
            "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.1", "SLURM_GTIDS": "0",
        }  # fmt: skip


def lsf_job_variables(layout):
    pairs = list(zip(host_names(layout), layout))
    return {
        "LSB_JOBID": "815", "LSB_JOBINDEX": "0", "LSB_QUEUE": "normal",
        "LSB_MCPU_HOSTS": "".join(f"{host} {slots} " for host, slots in pairs),
        "LSB_HOSTS": " ".join(host for host, slots in pairs for _ in range(slots)),
    }  # fmt: skip


def blaunch_environments(layout):
    for rank, _, _ in process_places(layout):
        yield {**lsf_job_variables(layout), "LSB_DJOB_NUMPROC": str(sum(layout)), "LSF_PM_TASKID": str(rank + 1)}


def jsrun_environments(layout):
    """Yield the variables of Spectrum MPI, which include those of Open MPI."""
    job = lsf_job_variables(layout)
    job["LSB_MCPU_HOSTS"] = f"batch1 1 {job['LSB_MCPU_HOSTS']}"
    inner = zip(open_mpi_environments(layout), process_places(layout))
    for environ, (rank, node, local) in inner:
        yield {
            **job, **{name: text for name, text in environ.items() if name.startswith("OMPI_COMM")},
            "JSM_NAMESPACE_RANK": str(rank), "JSM_NAMESPACE_SIZE": str(sum(layout)),
            "JSM_NAMESPACE_LOCAL_RANK": str(local), "JSM_NAMESPACE_LOCAL_SIZE": str(layout[node]),
        }  # fmt: skip


def open_mpi_environments(layout):
    for rank, node, local in process_places(layout):
        yield {
            "OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": str(sum(layout)),
            "OMPI_COMM_WORLD_LOCAL_RANK": str(local), "OMPI_COMM_WORLD_NODE_RANK": str(local),
            "OMPI_COMM_WORLD_LOCAL_SIZE": str(layout[node]), "OMPI_UNIVERSE_SIZE": "64",
            "PMIX_NAMESPACE": "prterun-node07-30030@1", "PMIX_RANK": str(rank),
            "PMIX_SERVER_URI4": f"prterun-node07-30030@0.{node};tcp4://127.0.0.1:39613",
        }  # fmt: skip


def open_mpi_4_environments(layout):
    for environ in open_mpi_environments(layout):
        yield {
            **environ, "PMIX_NAMESPACE": "3411083265",
            "OMPI_MCA_orte_hnp_uri": "3411083264.0;tcp://node07,172.17.0.1:39593",
        }  # fmt: skip


def mpich_in_slurm_environments(layout):
    """Yield the variables of Intel MPI, whose proxies are started by srun, one on each node."""
    ones = [1] * len(layout)
    proxies = list(srun_environments(ones))
    for rank, node, local in process_places(layout):
        yield {
            **proxies[node], "PMI_RANK": str(rank), "PMI_SIZE": str(sum(layout)), "PMI_FD": "9",
            "MPI_LOCALRANKID": str(local), "MPI_LOCALNRANKS": str(layout[node]),
        }  # fmt: skip


def srun_pmi_environments(layout):
    """Yield the variables of srun --mpi=pmi2."""
    for rank, environ in enumerate(srun_environments(layout)):
        yield {**environ, "PMI_RANK": str(rank), "PMI_SIZE": str(sum(layout)), "PMI_FD": "9"}


def torchrun_environments(layout):
    """Yield the variables of torchrun, started by srun on each node."""
    agents = list(srun_environments([1] * len(layout)))
    for rank, node, local in process_places(layout):
        yield {
            **agents[node], "RANK": str(rank), "WORLD_SIZE": str(sum(layout)),
            "LOCAL_RANK": str(local), "LOCAL_WORLD_SIZE": str(layout[node]),
            "GROUP_RANK": str(node), "MASTER_ADDR": "node07", "MASTER_PORT": "29500",
            "TORCHELASTIC_RUN_ID": "none",
            "TORCHELASTIC_USE_AGENT_STORE": "True",
        }  # fmt: skip


LAUNCHERS = {
    "srun": srun_environments, "blaunch": blaunch_environments, "jsrun": jsrun_environments,
    "Open MPI": open_mpi_environments,
    "Open MPI 4": open_mpi_4_environments, "MPICH in Slurm": mpich_in_slurm_environments,
    "srun with PMI": srun_pmi_environments,
    "torchrun in srun": torchrun_environments,
}  # fmt: skip
