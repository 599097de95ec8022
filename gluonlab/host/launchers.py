"""The programs that start processes, and the variables by which each process finds its place.

The one table of them: `gluonlab.launch.environments` makes a group of it, and
`gluonlab.engine.neighbours` counts the processes that share this host.

Several rows may fit, since the inner program hands on the variables of the outer one. The inner one
has started this process, so it comes first here: horovodrun and torchrun run below srun or mpirun,
mpirun starts its daemons with srun or blaunch, and all of them run in containers.
"""

from __future__ import annotations

from typing import NamedTuple, Tuple


class Launcher(NamedTuple):
    """What one launcher sets for each process.

    ``rank``: the variable of this process's number, which counts from ``first``. ``mark``: the
    variable that is set for its processes only; as a rule it is ``rank``. Of several names for one
    thing the first that is set counts. ``job``: what all processes of a group have in common, and
    another group has not.
    """

    name: str
    rank: str
    size: Tuple[str, ...]
    local_rank: Tuple[str, ...] = ()
    local_size: Tuple[str, ...] = ()
    root: str = ""
    port: str = ""
    job: Tuple[str, ...] = ()
    first: int = 0
    mark: str = ""


# horovod/runner/gloo_run.py of https://github.com/horovod/horovod; its rendezvous address is the
# host of horovodrun, and not that of rank 0
HOROVODRUN = Launcher(
    "horovodrun", "HOROVOD_RANK", ("HOROVOD_SIZE",), ("HOROVOD_LOCAL_RANK",),
    ("HOROVOD_LOCAL_SIZE",), job=("HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"),
)  # fmt: skip
# https://docs.pytorch.org/docs/stable/elastic/run.html, "Environment Variables"; RANK alone is too
# common a name to mean anything
TORCHRUN = Launcher(
    "torchrun", "RANK", ("WORLD_SIZE",), ("LOCAL_RANK",), ("LOCAL_WORLD_SIZE",), "MASTER_ADDR",
    "MASTER_PORT", ("TORCHELASTIC_RUN_ID", "MASTER_PORT"), mark="WORLD_SIZE",
)  # fmt: skip
# https://docs.olcf.ornl.gov/systems/summit_user_guide.html, "Job Launcher (jsrun)"
JSRUN = Launcher(
    "jsrun", "JSM_NAMESPACE_RANK", ("JSM_NAMESPACE_SIZE",), ("JSM_NAMESPACE_LOCAL_RANK",),
    ("JSM_NAMESPACE_LOCAL_SIZE",), job=("LSB_JOBID", "LSB_JOBINDEX"),
)  # fmt: skip
# https://docs.open-mpi.org/en/v5.0.x/tuning-apps/environment-var.html
OPEN_MPI = Launcher(
    "Open MPI", "OMPI_COMM_WORLD_RANK", ("OMPI_COMM_WORLD_SIZE",), ("OMPI_COMM_WORLD_LOCAL_RANK",),
    ("OMPI_COMM_WORLD_LOCAL_SIZE",), job=("PMIX_NAMESPACE",),
)  # fmt: skip
# https://mvapich.cse.ohio-state.edu/static/media/mvapich/mvapich2-userguide.html
MVAPICH2 = Launcher(
    "MVAPICH2", "MV2_COMM_WORLD_RANK", ("MV2_COMM_WORLD_SIZE",), ("MV2_COMM_WORLD_LOCAL_RANK",),
    ("MV2_COMM_WORLD_LOCAL_SIZE",), job=("SLURM_JOB_ID", "LSB_JOBID"),
)  # fmt: skip
# MPICH and Intel MPI (seen in the environment of 2021.18's mpiexec), HPE Cray's PALS in two ways
PMI = Launcher(
    "MPICH", "PMI_RANK", ("PMI_SIZE",), ("MPI_LOCALRANKID", "PMI_LOCAL_RANK", "PALS_LOCAL_RANKID"),
    ("MPI_LOCALNRANKS", "PMI_LOCAL_SIZE", "PALS_LOCAL_SIZE"), job=("SLURM_JOB_ID", "LSB_JOBID"),
)  # fmt: skip
# https://slurm.schedmd.com/srun.html, "OUTPUT ENVIRONMENT VARIABLES"; a job's script has
# SLURM_PROCID, too, but no step. SLURM_LAUNCH_NODE_IPADDR is srun's host, often one to log in at
SRUN = Launcher(
    "srun", "SLURM_PROCID", ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"), ("SLURM_LOCALID",),
    job=("SLURM_JOB_ID", "SLURM_STEP_ID"), mark="SLURM_STEP_ID",
)  # fmt: skip
# https://www.ibm.com/docs/en/spectrum-lsf/10.1.0?topic=variables-environment-set-job-execution and
# .../lsf_command_ref/blaunch.8.html: one task for each slot. Its numbers are read, from 1 on, by
# Open MPI's orte/mca/ess/lsf as well
BLAUNCH = Launcher("blaunch", "LSF_PM_TASKID", ("LSB_DJOB_NUMPROC",), first=1,
                   job=("LSB_JOBID", "LSB_JOBINDEX"))  # fmt: skip
# https://kubernetes.io/docs/tasks/job/job-with-pod-to-pod-communication/; the number of pods is not
# told, so the file of `gluonlab.launch.jobs` sets it
KUBERNETES = Launcher("Kubernetes", "JOB_COMPLETION_INDEX", ("GLUONLAB_PROCESSES",))
# https://github.com/aws/sagemaker-training-toolkit/blob/master/ENVIRONMENT_VARIABLES.md
SAGEMAKER = Launcher("SageMaker", "SM_CURRENT_HOST", ("SM_HOSTS",), mark="SM_HOSTS")

LAUNCHERS = (
    HOROVODRUN, TORCHRUN, JSRUN, OPEN_MPI, MVAPICH2, PMI, SRUN, BLAUNCH, KUBERNETES, SAGEMAKER,
)  # fmt: skip

# bpslaunch and pytest -n tell no more than this
LOCAL_SIZES = (
    *(name for launcher in LAUNCHERS for name in launcher.local_size),
    "BYTEPS_LOCAL_SIZE", "PYTEST_XDIST_WORKER_COUNT",
)  # fmt: skip

# everything that one of these programs may have left in an environment, by how it begins
PREFIXES = (
    "HOROVOD_", "TORCHELASTIC_", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "JSM_", "OMPI_",
    "PMIX_", "MV2_", "PMI_", "PALS_", "MPI_LOCAL", "SLURM_", "LSB_", "LSF_",
    "JOB_COMPLETION_INDEX", "SM_", "BYTEPS_", "PYTEST_XDIST_WORKER_COUNT", "GLUONLAB_PROCESSES",
    "GLUONLAB_ROOT", "GLUONLAB_PORT",
)  # fmt: skip
