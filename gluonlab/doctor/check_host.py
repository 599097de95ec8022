"""Checks of the machine, without its GPUs: disks, memory, cores, data sets and SageMaker."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Mapping, Set, Tuple

from gluonlab.doctor.check_platform import RAISE_WSL_MEMORY, find_wsl
from gluonlab.doctor.findings import Finding, fault, format_count, join_lines, ok, returns_list, warning
from gluonlab.engine import openmp_settings
from gluonlab.engine.cpu_threads import threads_per_device
from gluonlab.engine.local_processes import local_process_count
from gluonlab.errors import GluonlabError
from gluonlab.host import resources
from gluonlab.host.resources import CGROUPS, MACHINE_MEMORY, PROC, available_memory

# free disk space, in bytes: the minimum for any work, and the minimum for a large data set
MIN_FREE_BYTES, SCARCE_BYTES = 64 * 2**20, 2**30
LOW_MEMORY_BYTES = 2 * 2**30
LOW_SHM_BYTES = 512 * 2**20  # containers have 64 MiB by default


def check_folder(
    check: str, purpose: str, folder: Path, cure: str, usage: Callable[[Path], Any] = shutil.disk_usage
) -> Finding:
    """Check that ``folder``, or its nearest existing parent, is writable and has free space."""
    existing, what = _nearest_existing(folder), f"{purpose}: {folder}"
    error = _write_error(existing)
    if error and "space" not in error:
        return fault(check, f"{what} is not writable", f"{existing}: {error}", cure)
    free = usage(existing).free
    if error or free < MIN_FREE_BYTES:
        cause = f"{free / 2**20:.0f} MiB are free in {existing}"
        return fault(check, f"{what}: the disk is full", cause, f"free some space there, or {cure}")
    what += f", {free / 2**30:.1f} GiB free"
    if free < SCARCE_BYTES:
        cause = "unpacking a large data set needs more space than its size"
        return warning(check, what, cause, f"free some space, or {cure}")
    return ok(check, what)


def _nearest_existing(folder: Path) -> Path:
    """Return the folder, or its nearest existing parent."""
    absolute = Path(os.path.realpath(folder))
    # not Path.exists, which raises below a folder without permission
    return next(parent for parent in (absolute, *absolute.parents) if os.path.exists(parent))


def _write_error(folder: Path) -> str:
    """Try to create a file in the folder. Return the error, or "" if that works.

    Permissions alone do not show whether writing works.
    """
    try:
        with tempfile.TemporaryFile(dir=str(folder)) as file:
            file.write(b"\0")
    except OSError as error:
        return error.strerror or str(error)
    return ""


def check_temporary_folder() -> Finding:
    """Check the folder for temporary files."""
    cure = "set TMPDIR to a writable folder with free space"
    try:
        return check_folder("temporary", "temporary files", Path(tempfile.gettempdir()), cure)
    except FileNotFoundError as error:  # none of the usual folders is writable
        return fault("temporary", "cannot find a folder for temporary files", str(error), cure)


def check_current_folder() -> Finding:
    """Check the folder to which runs are written by default."""
    try:
        folder = Path.cwd()
    except OSError as error:
        cause, cure = error.strerror or str(error), "cd to a folder that exists"
        return fault("runs", "the current folder no longer exists", cause, cure)
    return check_folder("runs", "run directories are written to", folder, "choose another folder with --out DIR")


def check_home(environ_home: str) -> Finding:
    """Check the home folder, where libraries keep caches and settings.

    ``environ_home``: the value of HOME.
    """
    cure = "export HOME=DIR"
    if not environ_home:
        return warning("home", "HOME is not set", "libraries cannot save their settings", cure)
    error = _write_error(_nearest_existing(Path(environ_home)))
    if not error:
        return ok("home", environ_home)
    cure += " with a writable folder; or MPLCONFIGDIR and GLUONLAB_DATA for their files only"
    return warning("home", f"{environ_home} is not writable", error, cure)


def check_memory(proc: Path = PROC, cgroups: Path = CGROUPS, environ: Mapping[str, str] = os.environ) -> Finding:
    """Check the free memory on the machine, or in this process's container or job."""
    free_memory = available_memory(proc, cgroups)
    if free_memory is None:
        return ok("memory", f"unknown: {proc}/meminfo does not contain it")
    free, total = free_memory.free / 2**30, free_memory.total / 2**30
    what = f"{free:.1f} GiB of {total:.1f} GiB free in {free_memory.where}"
    if free_memory.free >= LOW_MEMORY_BYTES:
        return ok("memory", what)
    cause = "MXNet itself needs half a GiB, and data sets are kept in memory"
    in_wsl = find_wsl(proc, environ) is not None and free_memory.where == MACHINE_MEMORY
    return warning("memory", what, cause, "stop other processes" + f"; {RAISE_WSL_MEMORY}" * in_wsl)


def check_shared_memory(
    folder: Path = Path("/dev/shm"), usage: Callable[[Path], Any] = shutil.disk_usage, system: str = sys.platform
) -> Finding:
    """Check /dev/shm, through which DataLoader's workers and NCCL exchange data."""
    if system != "linux":
        return ok("shm", f"not needed: only Linux has {folder}")
    if not folder.is_dir():
        cause = "DataLoader's workers and NCCL need it"
        return warning("shm", f"no {folder}", cause, "mount a tmpfs there")
    space = usage(folder)
    what = f"{folder}: {space.free / 2**20:,.0f} MiB of {space.total / 2**20:,.0f} MiB free"
    if space.free >= LOW_SHM_BYTES:
        return ok("shm", what)
    cause = "DataLoader's workers and NCCL put batches and buffers there; "
    cause += "if it is full, they crash with a bus error"
    cure = "docker run --shm-size=1g, or mount -o remount,size=1g /dev/shm"
    return warning("shm", what, cause, cure)


LOAD_MARGIN = 0.7  # a load of so many cores does not count as other work
SAMPLE_S = 0.2
BUSY_SHARE, MAX_NAMED = (0.2, 3)  # processes that are named: how much of a core they take, and how many
LONG_SPINS = 100_000  # a millisecond or more
_TICKS = os.sysconf("SC_CLK_TCK")


@returns_list
def check_cpu(proc: Path = PROC) -> Iterator[Finding]:
    """Report the cores and threads, and warn about processes and settings that slow training."""
    threads, load, sharing = threads_per_device(1), os.getloadavg()[0], local_process_count()
    what = f"{describe_cores()}, load {load:.1f}; one CPU device uses "
    what += format_count(threads, "thread")
    what += f", as 1 of {sharing.processes} processes of a training" * (sharing.processes > 1)
    what += f"; {_describe_idle_threads()}"
    if load > (os.cpu_count() or 1) - threads + LOAD_MARGIN and threads > 1:
        who = ", ".join(busy_processes(proc))
        who = f"computes: {who}" if who else "computed within the last minute"
        cause = f"another process {who}; a step waits for the slowest thread"
        yield warning("cpu", what, cause, "stop it, wait for it, or leave a core free for it with --threads N")
    else:
        yield ok("cpu", what)
    yield from _check_spinning(openmp_settings.user_spin_settings())
    if not sharing.is_certain:
        what = f"{sharing.processes} workers of a parameter server share cores"
        cause = "until they connect, their number on this host is unknown; all are assumed to be here"
        cure = "export OMP_NUM_THREADS, or train with gluonlab launch, which counts them"
        yield warning("cpu", what, cause, cure)
    exported, cores = openmp_settings.exported_threads(), resources.available_cores()
    if exported is not None and exported.threads > cores:
        what = f"{exported.threads} threads are exported for {format_count(cores, 'core')}"
        cause = "if threads share a core, the other threads wait for them"
        yield warning("cpu", what, cause, f"unset {exported.name}")
    for setting, effect in openmp_settings.harmful_user_settings().items():
        what = f"{setting} is overridden for MXNet"
        yield warning("cpu", what, effect, f"unset {setting.split('=')[0]}")


def describe_cores() -> str:
    """Return text with the number of usable cores, and why the others are not usable."""
    machine, allowed, available = (os.cpu_count() or 1, len(resources.allowed_cpus()), resources.available_cores())
    notes = []
    if allowed < machine:
        notes.append(f"{allowed} of the machine's {machine} CPUs are allowed by affinity")
    if available < allowed:
        notes.append("the rest are hyper-threads, or beyond this container's limit")
    return format_count(available, "core") + (f" ({'; '.join(notes)})" if notes else "")


def _describe_idle_threads() -> str:
    """Describe how idle OpenMP threads wait: as the user or, by default, as gluonlab has set."""
    if not openmp_settings.uses_openmp():
        return "this build of MXNet has no OpenMP"
    settings = ", ".join(f"{name}={value}" for name, value in openmp_settings.user_spin_settings().items())
    if settings:
        return f"idle threads wait as {settings} says"
    return f"idle threads sleep after {openmp_settings.SPIN_COUNT} spins"


def _check_spinning(users: Mapping[str, str]) -> Iterator[Finding]:
    """Warn if the user's settings let idle threads keep their cores busy."""
    counts = [name for name in users if name.endswith("SPINCOUNT")]  # a spin count overrides a policy
    for name in (counts or list(users))[:1]:
        value = users[name]
        if openmp_settings.parse_spin_count(value) >= LONG_SPINS if counts else value.lower() == "active":
            cause = "idle threads keep their cores busy: a CPU device is then many times slower if other programs run"
            cure = f"unset {name}, so that gluonlab lets idle threads sleep"
            yield warning("cpu", f"{name}={value} is exported", cause, cure)


def busy_processes(proc: Path = PROC, share: float = BUSY_SHARE, most: int = MAX_NAMED) -> List[str]:
    """Return text, such as ``python3 (pid 17) 98 %``, for each process that uses much CPU time.

    These processes use more than the fraction ``share`` of a core. At most ``most`` processes are
    listed, without this process and its descendants.
    """
    previous = _read_processes(proc)
    time.sleep(SAMPLE_S)
    current = _read_processes(proc)
    parents = {pid: parent for pid, (_, parent, _) in current.items()}
    own_pids = descendant_pids(os.getpid(), parents)
    shares = [
        ((ticks - previous[pid][2]) / _TICKS / SAMPLE_S, pid, name)
        for pid, (name, _, ticks) in current.items()
        if pid in previous and pid not in own_pids
    ]
    largest = sorted((entry for entry in shares if entry[0] > share), reverse=True)[:most]
    return [f"{name} (pid {pid}) {100 * used:.0f} %" for used, pid, name in largest]


def descendant_pids(pid: int, parents: Mapping[int, int]) -> Set[int]:
    """Return ``pid`` and all its descendants. ``parents``: process id -> id of its parent."""
    family: Set[int] = set()
    youngest = {pid}
    while youngest:
        family |= youngest
        youngest = {child for child, parent in parents.items() if parent in youngest} - family
    return family


def _read_processes(proc: Path) -> Dict[int, Tuple[str, int, int]]:
    """Return {process id: (name, parent's process id, clock ticks of CPU time)}; see proc(5)."""
    processes: Dict[int, Tuple[str, int, int]] = {}
    for folder in proc.iterdir() if proc.is_dir() else ():
        if folder.name.isdigit():
            try:
                head, _, tail = (folder / "stat").read_text(errors="replace").rpartition(")")
                fields, name = tail.split(), head.partition("(")[2]
                ticks = int(fields[11]) + int(fields[12])
                processes[int(folder.name)] = (name, int(fields[1]), ticks)
            except (OSError, IndexError, ValueError):  # the process has ended
                continue
    return processes


TIMEOUT_S = 8.0
DATA_FOLDER_CURE = "choose another folder with export GLUONLAB_DATA=DIR or --data-dir DIR"
NETWORK_ERRORS = (
    "Name or service not known",
    "Temporary failure in name resolution",
    "Connection refused",
    "unreachable",
)


def check_data_folder() -> List[Finding]:
    """Check the folder that contains the data sets, and list the complete data sets."""
    from gluonlab.data.fetching.data_folders import data_root, find_dataset_folder
    from gluonlab.data.fetching.download_sources import SOURCES

    try:
        root = data_root()
    except GluonlabError as error:
        return [warning("data", "no folder for data sets exists yet", str(error), DATA_FOLDER_CURE)]
    complete = [name for name, source in SOURCES.items() if find_dataset_folder(source, root) is not None]
    listing = "only the built-in data set digits is available"
    if complete:
        listing = f"available: {', '.join(complete)}, and digits"
    return [check_folder("data", f"data sets ({listing})", root, DATA_FOLDER_CURE)]


def check_mirrors(sources: Mapping[str, Tuple[str, ...]], timeout_s: float = TIMEOUT_S) -> List[Finding]:
    """Try the mirrors of all data sets at the same time.

    ``sources`` maps each data set to the addresses of its first file.
    """
    urls = [url for urls in sources.values() for url in urls]
    with ThreadPoolExecutor(max_workers=max(1, len(urls))) as pool:
        problems = dict(zip(urls, pool.map(lambda url: check_url(url, timeout_s), urls)))
    return [_mirror_finding(name, {url: problems[url] for url in urls}) for name, urls in sources.items()]


def mirror_addresses() -> Mapping[str, Tuple[str, ...]]:
    """Return the addresses of each data set's first file, one for each mirror."""
    from gluonlab.data.fetching.download_sources import SOURCES

    return {name: tuple(mirror + source.files[0].name for mirror in source.mirrors) for name, source in SOURCES.items()}


def check_url(url: str, timeout_s: float = TIMEOUT_S) -> str:
    """Request a file's headers. Return the problem, or "" if the server has the file.

    The request uses the proxies that are set by environment variables.
    """
    import requests

    try:
        answer = requests.head(url, timeout=timeout_s, allow_redirects=True)
        # for a server without HEAD, request the beginning of the file
        if answer.status_code in (405, 501):
            answer = requests.get(url, timeout=timeout_s, stream=True)
            answer.close()
    except requests.Timeout:
        return f"no answer within {timeout_s:g} s"
    except requests.RequestException as error:
        return _request_error(error)
    return "" if answer.ok else f"status {answer.status_code}"


def _request_error(error: Exception) -> str:
    """Return the cause of a failed request. ``error`` wraps several other exceptions."""
    text = join_lines(str(error))
    proxy = "the proxy: " if "to proxy" in text or type(error).__name__ == "InvalidProxyURL" else ""
    other = f"{type(error).__name__}: {text[:120]}"
    return proxy + next((reason for reason in NETWORK_ERRORS if reason in text), other)


def _mirror_finding(name: str, replies: Mapping[str, str]) -> Finding:
    """Return the finding about a data set's mirrors. ``replies``: address -> problem, or ""."""
    failures = [f"{url}: {problem}" for url, problem in replies.items() if problem]
    count, problems = format_count(len(replies), "mirror"), "; ".join(failures)
    if not failures:
        return ok("network", f"{name}: {count} reached")
    if len(failures) < len(replies):
        cure = "ignore this: gluonlab tries the other servers in turn"
        return warning("network", f"{name}: {len(failures)} of {count} fail", problems, cure)
    cure = "check the network and HTTPS_PROXY, or use your own mirror: "
    cure += f"gluonlab data download {name} --mirror URL"
    return fault("network", f"{name} cannot be downloaded", problems, cure)


METADATA = Path("/opt/ml/metadata/resource-metadata.json")
PERSISTENT_FOLDER = Path("/home/ec2-user/SageMaker")  # all that a notebook instance keeps when it stops


@returns_list
def check_sagemaker(
    environ: Mapping[str, str] = os.environ, metadata: Path = METADATA, persistent: Path = PERSISTENT_FOLDER
) -> Iterator[Finding]:
    """Report whether this is a SageMaker notebook or training job.

    In a notebook, warn if the installed gluonlab will be lost when the notebook instance stops.
    """
    if "TRAINING_JOB_NAME" in environ or "SM_CURRENT_HOST" in environ:
        yield _check_sagemaker_job(environ)
    elif not metadata.is_file():
        yield ok("sagemaker", "not on SageMaker")
    else:
        try:
            notebook = json.loads(metadata.read_text())
            what = f"notebook {notebook['ResourceName']}, {notebook['ResourceArn']}"
        except (OSError, ValueError, KeyError, TypeError) as error:
            what, cause = f"{metadata} cannot be read", f"{type(error).__name__}: {error}"
            cure = "restart the notebook instance, which writes this file"
            yield warning("sagemaker", what, cause, cure)
            return
        yield ok("sagemaker", what)
        yield from _check_persistence(persistent)


def _check_sagemaker_job(environ: Mapping[str, str]) -> Finding:
    """Report the SageMaker training job and its host; warn if SM_HOSTS is not a list."""
    instance, gpus = environ.get("SM_CURRENT_INSTANCE_TYPE"), environ.get("SM_NUM_GPUS")
    what = f"training job {environ.get('TRAINING_JOB_NAME', '')}".strip()
    what += f", {instance}" if instance is not None else ""
    what += f", {gpus} GPUs" if gpus is not None else ""
    hosts = environ.get("SM_HOSTS", "")
    try:
        count = len(json.loads(hosts)) if hosts else 1
    except (ValueError, TypeError):
        cure = "SageMaker sets it to a JSON list of names: do not set it yourself"
        return warning("sagemaker", what, f"SM_HOSTS={hosts} is not a list", cure)
    of_several = f", one of {count}" if count > 1 else ""
    return ok("sagemaker", f"{what}, host {environ.get('SM_CURRENT_HOST', '?')}{of_several}")


def _check_persistence(persistent: Path, package: Path = Path(__file__)) -> Iterator[Finding]:
    """Warn if gluonlab is outside the folder that persists when the notebook instance stops."""
    if persistent.is_dir() and persistent not in package.resolve().parents:
        cause = f"a notebook instance keeps only {persistent} when it stops; "
        cause += f"gluonlab is installed in {package.resolve().parent.parent}"
        cure = f"create the environment below {persistent}"
        yield warning("sagemaker", "this environment will be lost when the instance stops", cause, cure)
