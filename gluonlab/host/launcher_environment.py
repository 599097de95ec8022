"""The programs that start processes, and what their variables say: places, hosts and machines.

`LAUNCHERS` is the one table of them: `gluonlab.launch.rank_environment` makes a group of it, and
`gluonlab.engine.local_processes` counts the processes that share this host. Several rows may fit,
since
the inner program hands on the variables of the outer one. The inner one has started this process,
so it comes first here: horovodrun and torchrun run below srun or mpirun, mpirun starts its daemons
with srun or blaunch, and all of them run in containers.
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
# told, so the file of `gluonlab.launch.job_files` sets it
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


# --- Lists of hosts: Slurm's ranges in brackets, LSF's pairs and files

MOST_HOSTS = 65536
MOST_SLOTS = 4096  # of one host: whoever says more means something else
# what may be given to a program such as ssh: never an option
HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:%-]{0,254}")
BRACKETS = re.compile(r"\[([^\[\]]*)\]")
RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


class HostSlots(NamedTuple):
    """A host, and for how many processes there is room on it."""

    host: str
    slots: int


def slurm_hosts(text: str, variable: str) -> List[str]:
    """The hosts of Slurm's notation, in its order: ``n[001-003,07],gpu-5``.

    Source: https://slurm.schedmd.com/scontrol.html, "show hostnames". Raises ConfigError, which
    names ``variable``, for another form and for more than 65,536 hosts.
    """
    found: List[str] = []
    for part in _parts(text, variable):
        fixed = BRACKETS.split(part)  # prefix, ranges, between, ranges, ..., suffix
        ranges = [_numbers(between, text, variable) for between in fixed[1::2]]
        for numbers in itertools.product(*ranges):
            found.append("".join(itertools.chain(*zip(fixed[::2], (*numbers, "")))))
            if len(found) > MOST_HOSTS:
                raise _not_a_list(text, variable)
    return [checked_host(host, variable) for host in found]


def _parts(text: str, variable: str) -> Iterator[str]:
    """What stands between the commas outside of brackets."""
    depth, begin = 0, 0
    for end, character in enumerate(f"{text},"):
        depth += (character == "[") - (character == "]")
        if not 0 <= depth <= 1:
            raise _not_a_list(text, variable)
        if character == "," and depth == 0:
            yield text[begin:end]
            begin = end + 1
    if depth:
        raise _not_a_list(text, variable)


def _numbers(ranges: str, text: str, variable: str) -> List[str]:
    """``001-003,07`` -> ``["001", "002", "003", "07"]``; as wide as the first number."""
    numbers: List[str] = []
    for part in ranges.split(","):
        found = RANGE.fullmatch(part)
        if found is None:
            raise _not_a_list(text, variable)
        first, last = int(found[1]), int(found[2] or found[1])
        if not first <= last < first + MOST_HOSTS:
            raise _not_a_list(text, variable)
        numbers += [str(number).zfill(len(found[1])) for number in range(first, last + 1)]
    return numbers


def slurm_counts(text: str) -> List[int]:
    """Slurm's tasks of each node: ``2(x3),1`` -> ``[2, 2, 2, 1]``; empty for another form."""
    counts: List[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"([0-9]{1,5})(?:\(x([0-9]{1,5})\))?", part.strip())
        if found is None or not 1 <= int(found[1]) <= MOST_SLOTS:
            return []
        counts += [int(found[1])] * int(found[2] or 1)
        if len(counts) > MOST_HOSTS:
            return []
    return counts


def lsf_hosts(environ: Mapping[str, str]) -> Tuple[str, List[HostSlots]]:
    """The hosts of an LSF job in LSF's order, and the variable that told them; ("", []) of none.

    A host may come several times. Source:
    https://www.ibm.com/docs/en/spectrum-lsf/10.1.0?topic=variables-environment-set-job-execution
    """
    if environ.get("LSB_MCPU_HOSTS"):
        words = environ["LSB_MCPU_HOSTS"].split()
        if len(words) % 2:
            raise _not_a_list(environ["LSB_MCPU_HOSTS"], "LSB_MCPU_HOSTS")
        pairs = zip(words[::2], words[1::2])
        found = [HostSlots(host, _slots(count, "LSB_MCPU_HOSTS")) for host, count in pairs]
        return "LSB_MCPU_HOSTS", _checked(found, "LSB_MCPU_HOSTS")
    if environ.get("LSB_DJOB_HOSTFILE"):
        file = environ["LSB_DJOB_HOSTFILE"]
        try:
            lines = Path(file).read_text(encoding="utf-8-sig").split()
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"LSB_DJOB_HOSTFILE={file}, which names the job's hosts, cannot be read ({error}): "
                "give the hosts with --hosts"
            ) from None
        return "LSB_DJOB_HOSTFILE", _checked(
            [HostSlots(host, 1) for host in lines], "LSB_DJOB_HOSTFILE"
        )
    hosts = environ.get("LSB_HOSTS", "").split()
    slots = _checked([HostSlots(host, 1) for host in hosts], "LSB_HOSTS")
    return ("LSB_HOSTS" if hosts else ""), slots


def lsf_place(task: int, hosts: List[HostSlots]) -> Tuple[int, int]:
    """The number on its host, and the number of tasks there, of the task with this number, from 0.

    blaunch starts one task in each slot, host by host; ``task`` must be less than all slots.
    """
    before = {host: 0 for host, _ in hosts}
    for host, slots in hosts:
        if 0 <= task < slots:
            return before[host] + task, dict(merged(hosts))[host]
        before[host] += slots
        task -= slots
    raise IndexError(task)


def merged(hosts: List[HostSlots]) -> List[HostSlots]:
    """Each host once, in the order in which they first come, with all its slots."""
    slots = {host: 0 for host, _ in hosts}
    for host, count in hosts:
        slots[host] += count
    return [HostSlots(host, count) for host, count in slots.items()]


def checked_host(host: str, variable: str) -> str:
    """``host``, if it can be a host's name; else ConfigError."""
    if HOST.fullmatch(host) is None:
        raise ConfigError(f"{variable} names {host!r}, which cannot be a host: set it anew")
    return host


def _checked(hosts: List[HostSlots], variable: str) -> List[HostSlots]:
    if sum(slots for _, slots in hosts) > MOST_HOSTS * 16:
        raise ConfigError(f"{variable} names more slots than a job can have: set it anew")
    return [HostSlots(checked_host(host, variable), slots) for host, slots in hosts]


def _slots(text: str, variable: str) -> int:
    if re.fullmatch(r"[0-9]{1,5}", text) is None or not 1 <= int(text) <= MOST_SLOTS:
        raise ConfigError(
            f"{variable} gives a host {text!r} slots: a number from 1 to {MOST_SLOTS} is possible"
        )
    return int(text)


def _not_a_list(text: str, variable: str) -> ConfigError:
    return ConfigError(
        f"{variable}={text!r} is no list of hosts, such as node[001-003,07],gpu-5 or 'a 2 b 2', of "
        f"at most {MOST_HOSTS}: set it anew, or give the hosts with --hosts"
    )


# --- Machines of Amazon SageMaker
#
# Families: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/InstanceStorage.html, and the enum
# of https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_ResourceConfig.html.

TYPE, RESOURCES = "SM_CURRENT_INSTANCE_TYPE", "SM_RESOURCE_CONFIG"
# P and G have GPUs; of these only the oldest keep all their files on a volume of EBS
WITH_GPUS = re.compile(r"ml\.[pg]\d")
WITHOUT_DISK = re.compile(r"ml\.(p2|p3|g3s?)\.")
# d in a family's name stands for disks, as in r5d and p3dn; Trainium's machines have them, too
WITH_DISK = re.compile(r"ml\.([pg]\d|trn\d|[a-z]+\d+[a-z]*d)")


def instance_type() -> Optional[str]:
    """The type of the machine that this process's training job runs on; None outside of a job.

    Older versions of AWS's training toolkit set only the job's resources, as JSON.
    """
    name = os.environ.get(TYPE)
    if name is None:
        try:
            name = json.loads(os.environ.get(RESOURCES, "{}"))["current_instance_type"]
        except (ValueError, KeyError, TypeError):
            return None
    return name if isinstance(name, str) and name.startswith("ml.") else None


def has_gpus(instance: str) -> bool:
    """Whether machines of this type have GPUs: ``ml.g5.12xlarge`` has, ``ml.c5.xlarge`` has not."""
    return bool(WITH_GPUS.match(instance))


def has_local_disk(instance: str) -> bool:
    """Whether machines of this type have an NVMe disk of their own, which a job takes whole.

    AWS makes them no volume then: its size is not to be chosen, and its key is refused.
    """
    return bool(WITH_DISK.match(instance)) and not WITHOUT_DISK.match(instance)
