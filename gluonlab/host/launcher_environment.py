"""Reads ranks, host lists, and SageMaker machine types from launchers' environment variables.

`LAUNCHERS` is the table of all launchers. `gluonlab.launch.process_membership` uses it to read this
process's rank, and `gluonlab.engine.local_processes` counts the processes on this host.

Several launchers may match, because an inner launcher passes on the variables of an outer launcher.
The inner launcher started this process, so inner launchers precede outer ones in the table:

- horovodrun and torchrun run inside srun or mpirun.
- mpirun starts its daemons with srun or blaunch.
- All of these launchers run inside Kubernetes or SageMaker containers.
"""

from __future__ import annotations

import itertools
import json
import os
import re
from pathlib import Path
from typing import Iterator, List, Mapping, NamedTuple, Optional, Tuple

from gluonlab.errors import ConfigError


class Launcher(NamedTuple):
    """The names of the variables that a launcher sets for each process.

    If a field contains several names, the first variable that is set is used.

    Args:
        name: the launcher's name in error messages
        rank: variable with the process's rank
        size: variables with the number of processes
        local_rank: variables with the rank on the host
        local_size: variables with the number of processes on the host
        root: variable with rank 0's host
        port: variable with rank 0's port
        job: variables that are the same in all processes in a group, and differ between groups
        first: number of the lowest rank
        mark: variable that identifies this launcher's processes; if empty, ``rank`` identifies them
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


# Source: horovod/runner/gloo_run.py of https://github.com/horovod/horovod. The rendezvous address
# is the host of horovodrun, not of rank 0.
HOROVODRUN = Launcher(
    "horovodrun", "HOROVOD_RANK", ("HOROVOD_SIZE",), ("HOROVOD_LOCAL_RANK",),
    ("HOROVOD_LOCAL_SIZE",), job=("HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"),
)  # fmt: skip
# https://docs.pytorch.org/docs/stable/elastic/run.html, "Environment Variables". RANK is too common
# a name to identify torchrun.
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
# MPICH; Intel MPI, as seen in the environment of mpiexec 2021.18; and HPE Cray's PALS, which sets
# the local rank and size with the prefix PMI_ or PALS_.
PMI = Launcher(
    "MPICH", "PMI_RANK", ("PMI_SIZE",), ("MPI_LOCALRANKID", "PMI_LOCAL_RANK", "PALS_LOCAL_RANKID"),
    ("MPI_LOCALNRANKS", "PMI_LOCAL_SIZE", "PALS_LOCAL_SIZE"), job=("SLURM_JOB_ID", "LSB_JOBID"),
)  # fmt: skip
# https://slurm.schedmd.com/srun.html, "OUTPUT ENVIRONMENT VARIABLES". A job's script also has
# SLURM_PROCID, but no step. SLURM_LAUNCH_NODE_IPADDR is not rank 0's host, but the host of srun,
# often a login host.
SRUN = Launcher(
    "srun", "SLURM_PROCID", ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"), ("SLURM_LOCALID",),
    job=("SLURM_JOB_ID", "SLURM_STEP_ID"), mark="SLURM_STEP_ID",
)  # fmt: skip
# https://www.ibm.com/docs/en/spectrum-lsf/10.1.0?topic=variables-environment-set-job-execution and
# .../lsf_command_ref/blaunch.8.html. Each slot has one task, and tasks are numbered from 1. Open
# MPI's orte/mca/ess/lsf reads the same variables.
BLAUNCH = Launcher("blaunch", "LSF_PM_TASKID", ("LSB_DJOB_NUMPROC",), first=1, job=("LSB_JOBID", "LSB_JOBINDEX"))
# https://kubernetes.io/docs/tasks/job/job-with-pod-to-pod-communication/. Kubernetes does not set
# the number of pods, so the job file of `gluonlab.launch.cluster_job_scripts` sets GLUONLAB_WORLD_SIZE.
# GLUONLAB_PROCESSES is its old name, in job files of earlier versions.
KUBERNETES = Launcher("Kubernetes", "JOB_COMPLETION_INDEX", ("GLUONLAB_WORLD_SIZE", "GLUONLAB_PROCESSES"))
# https://github.com/aws/sagemaker-training-toolkit/blob/master/ENVIRONMENT_VARIABLES.md
SAGEMAKER = Launcher("SageMaker", "SM_CURRENT_HOST", ("SM_HOSTS",), mark="SM_HOSTS")

LAUNCHERS = (HOROVODRUN, TORCHRUN, JSRUN, OPEN_MPI, MVAPICH2, PMI, SRUN, BLAUNCH, KUBERNETES, SAGEMAKER)

# The last two variables are set by bpslaunch and pytest -n, which are not in LAUNCHERS.
LOCAL_SIZE_VARIABLES = (
    *(name for launcher in LAUNCHERS for name in launcher.local_size), "BYTEPS_LOCAL_SIZE", "PYTEST_XDIST_WORKER_COUNT",
)  # fmt: skip

# Prefixes of all variables that these launchers may set.
LAUNCHER_VARIABLE_PREFIXES = (
    "HOROVOD_", "TORCHELASTIC_", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "JSM_", "OMPI_",
    "PMIX_", "MV2_", "PMI_", "PALS_", "MPI_LOCAL", "SLURM_", "LSB_", "LSF_",
    "JOB_COMPLETION_INDEX", "SM_", "BYTEPS_", "PYTEST_XDIST_WORKER_COUNT", "GLUONLAB_PROCESSES",
    "GLUONLAB_ROOT", "GLUONLAB_WORLD_SIZE", "GLUONLAB_MASTER_ADDR", "GLUONLAB_PORT",
)  # fmt: skip


# --- Lists of hosts: Slurm's ranges in brackets, LSF's pairs and files

MAX_HOSTS = 65536
MAX_SLOTS_PER_HOST = 4096  # of one host
# A hostname must not begin with a dash, or programs such as ssh would read it as an option.
HOST_PATTERN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:%-]{0,254}")
BRACKETS_PATTERN = re.compile(r"\[([^\[\]]*)\]")
RANGE_PATTERN = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


class HostSlots(NamedTuple):
    """A host and its number of slots for processes."""

    host: str
    slots: int


def parse_slurm_hosts(text: str, variable: str) -> List[str]:
    """Return the hosts in a Slurm list such as ``n[001-003,07],gpu-5``, in the same order.

    Source: https://slurm.schedmd.com/scontrol.html, "show hostnames". ``variable`` is the name of
    the variable that contains ``text``. Raises ConfigError for an invalid list, or for more than
    65,536 hosts.
    """
    hosts: List[str] = []
    for part in _split_outside_brackets(text, variable):
        pieces = BRACKETS_PATTERN.split(part)  # text, ranges, text, ranges, ..., text
        ranges = [_expand_ranges(brackets, text, variable) for brackets in pieces[1::2]]
        for numbers in itertools.product(*ranges):
            hosts.append("".join(itertools.chain(*zip(pieces[::2], (*numbers, "")))))
            if len(hosts) > MAX_HOSTS:
                raise _host_list_error(text, variable)
    return [check_hostname(host, variable) for host in hosts]


def _split_outside_brackets(text: str, variable: str) -> Iterator[str]:
    """Yield the items in a list of hosts, split at commas outside brackets."""
    depth, start = 0, 0
    for end, character in enumerate(f"{text},"):
        depth += (character == "[") - (character == "]")
        if not 0 <= depth <= 1:
            raise _host_list_error(text, variable)
        if character == "," and depth == 0:
            yield text[start:end]
            start = end + 1
    if depth:
        raise _host_list_error(text, variable)


def _expand_ranges(ranges: str, text: str, variable: str) -> List[str]:
    """Expand ``001-003,07`` to ``["001", "002", "003", "07"]``.

    Numbers are padded with zeros to at least as many digits as the first number has.
    """
    numbers: List[str] = []
    for part in ranges.split(","):
        match = RANGE_PATTERN.fullmatch(part)
        if match is None:
            raise _host_list_error(text, variable)
        first, last = int(match[1]), int(match[2] or match[1])
        if not first <= last < first + MAX_HOSTS:
            raise _host_list_error(text, variable)
        numbers += [str(number).zfill(len(match[1])) for number in range(first, last + 1)]
    return numbers


def parse_slurm_counts(text: str) -> List[int]:
    """Return the number of tasks on each node from Slurm's notation: [2, 2, 1] for ``2(x2),1``.

    Returns [] for invalid text.
    """
    counts: List[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,5})(?:\(x([0-9]{1,5})\))?", part.strip())
        if match is None or not 1 <= int(match[1]) <= MAX_SLOTS_PER_HOST:
            return []
        counts += [int(match[1])] * int(match[2] or 1)
        if len(counts) > MAX_HOSTS:
            return []
    return counts


def read_lsf_hosts(environ: Mapping[str, str]) -> Tuple[str, List[HostSlots]]:
    """Return the name of LSF's variable that lists the job's hosts, and the hosts with their slots.

    The hosts are in LSF's order, and a host may appear several times. Returns ("", []) if no
    variable is set. Source:
    https://www.ibm.com/docs/en/spectrum-lsf/10.1.0?topic=variables-environment-set-job-execution
    """
    if environ.get("LSB_MCPU_HOSTS"):
        words = environ["LSB_MCPU_HOSTS"].split()
        if len(words) % 2:
            raise _host_list_error(environ["LSB_MCPU_HOSTS"], "LSB_MCPU_HOSTS")
        pairs = zip(words[::2], words[1::2])
        host_slots = [HostSlots(host, _parse_slots(count, "LSB_MCPU_HOSTS")) for host, count in pairs]
        return "LSB_MCPU_HOSTS", _check_host_slots(host_slots, "LSB_MCPU_HOSTS")
    if environ.get("LSB_DJOB_HOSTFILE"):
        file = environ["LSB_DJOB_HOSTFILE"]
        try:
            lines = Path(file).read_text(encoding="utf-8-sig").split()
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"LSB_DJOB_HOSTFILE={file} lists the job's hosts, but cannot be read ({error}): pass the "
                "hosts with --hosts"
            ) from None
        return "LSB_DJOB_HOSTFILE", _check_host_slots([HostSlots(host, 1) for host in lines], "LSB_DJOB_HOSTFILE")
    hosts = environ.get("LSB_HOSTS", "").split()
    slots = _check_host_slots([HostSlots(host, 1) for host in hosts], "LSB_HOSTS")
    return ("LSB_HOSTS" if hosts else ""), slots


def lsf_local_rank_and_size(task: int, hosts: List[HostSlots]) -> Tuple[int, int]:
    """Return the local rank and local size of task number ``task``, counted from 0.

    blaunch starts one task in each slot, host by host. Raises IndexError if there are too few
    slots.
    """
    slots_before = {host: 0 for host, _ in hosts}
    for host, slots in hosts:
        if 0 <= task < slots:
            return slots_before[host] + task, dict(merge_host_slots(hosts))[host]
        slots_before[host] += slots
        task -= slots
    raise IndexError(task)


def merge_host_slots(hosts: List[HostSlots]) -> List[HostSlots]:
    """Add up the slots of each host. Return the hosts in the order of first appearance."""
    slots_by_host = {host: 0 for host, _ in hosts}
    for host, count in hosts:
        slots_by_host[host] += count
    return [HostSlots(host, count) for host, count in slots_by_host.items()]


def check_hostname(host: str, variable: str) -> str:
    """Return ``host`` if it is a valid hostname. Otherwise raise ConfigError.

    ``variable``: the name of the variable that contains the hostname
    """
    if HOST_PATTERN.fullmatch(host) is None:
        raise ConfigError(f"{variable} contains {host!r}, which is not a valid host name: correct {variable}")
    return host


def _check_host_slots(hosts: List[HostSlots], variable: str) -> List[HostSlots]:
    if sum(slots for _, slots in hosts) > MAX_HOSTS * 16:
        raise ConfigError(f"{variable} lists more slots than a job can have: correct {variable}")
    return [HostSlots(check_hostname(host, variable), slots) for host, slots in hosts]


def _parse_slots(text: str, variable: str) -> int:
    """Parse a host's number of slots.

    Raises ConfigError unless the number is from 1 to MAX_SLOTS_PER_HOST.
    """
    if re.fullmatch(r"[0-9]{1,5}", text) is None or not 1 <= int(text) <= MAX_SLOTS_PER_HOST:
        raise ConfigError(
            f"{variable} contains {text!r} as the number of slots of a host: use a number from 1 to "
            f"{MAX_SLOTS_PER_HOST}"
        )
    return int(text)


def _host_list_error(text: str, variable: str) -> ConfigError:
    """Return the error for a variable whose value ``text`` is not a list of hosts."""
    return ConfigError(
        f"{variable}={text!r} is not a list of hosts, such as node[001-003,07],gpu-5 or 'a 2 b "
        f"2', with at most {MAX_HOSTS} hosts: correct it, or pass the hosts with --hosts"
    )


# --- Machines of Amazon SageMaker
#
# Families: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/InstanceStorage.html, and the enum
# of https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_ResourceConfig.html.

INSTANCE_TYPE_VARIABLE, RESOURCE_CONFIG_VARIABLE = "SM_CURRENT_INSTANCE_TYPE", "SM_RESOURCE_CONFIG"
# Families P and G have GPUs. Only the oldest of these families have no local disk, and keep all
# files on EBS volumes.
GPU_INSTANCE_PATTERN = re.compile(r"ml\.[pg]\d")
DISKLESS_INSTANCE_PATTERN = re.compile(r"ml\.(p2|p3|g3s?)\.")
# Families with a "d" in the name have local disks, such as r5d and p3dn. All families P, G and TRN
# (Trainium) match here. DISKLESS_INSTANCE_PATTERN excludes the oldest.
DISK_INSTANCE_PATTERN = re.compile(r"ml\.([pg]\d|trn\d|[a-z]+\d+[a-z]*d)")


def sagemaker_instance_type() -> Optional[str]:
    """Return the machine type of this SageMaker training job, such as ``ml.g5.12xlarge``.

    Older versions of AWS's training toolkit set the type only in the JSON value of
    SM_RESOURCE_CONFIG. Returns None outside a training job.
    """
    name = os.environ.get(INSTANCE_TYPE_VARIABLE)
    if name is None:
        try:
            name = json.loads(os.environ.get(RESOURCE_CONFIG_VARIABLE, "{}"))["current_instance_type"]
        except (ValueError, KeyError, TypeError):
            return None
    return name if isinstance(name, str) and name.startswith("ml.") else None


def instance_has_gpus(instance: str) -> bool:
    """Check if a machine type has GPUs: True for ``ml.g5.12xlarge``, False for ``ml.c5.xlarge``."""
    return bool(GPU_INSTANCE_PATTERN.match(instance))


def instance_has_local_disk(instance: str) -> bool:
    """Check if a machine type has a local NVMe disk. A training job can use the entire disk.

    AWS creates no volume for such machines, so it ignores a requested volume size and rejects an
    encryption key for a volume.
    """
    return bool(DISK_INSTANCE_PATTERN.match(instance)) and not DISKLESS_INSTANCE_PATTERN.match(instance)
