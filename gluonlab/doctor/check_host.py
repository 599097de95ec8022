"""The machine beside its GPUs: disks, memory, cores, data sets and their servers, and SageMaker."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Mapping, Set, Tuple

from gluonlab.doctor.findings import Finding, fault, listed, ok, one_line, plural, warning
from gluonlab.engine import openmp_settings
from gluonlab.engine.cpu_threads import threads_per_device
from gluonlab.engine.local_processes import local_process_count
from gluonlab.errors import GluonlabError
from gluonlab.host import resources
from gluonlab.host.resources import CGROUPS, PROC, available_memory

# bytes: nothing can be finished; a large data set cannot be unpacked
FULL, SCARCE = 64 * 2**20, 2**30
LITTLE_MEMORY = 2 * 2**30
LITTLE_SHM = 512 * 2**20  # containers begin with 64 MiB


def place(
    check: str,
    what_for: str,
    folder: Path,
    cure: str,
    usage: Callable[[Path], Any] = shutil.disk_usage,
) -> Finding:
    """Whether ``folder``, or the nearest one above it that exists, can be written, and has room."""
    there, what = _nearest(folder), f"{what_for}: {folder}"
    refused = _why_not_writable(there)
    if refused and "space" not in refused:
        return fault(check, f"{what} is not writable", f"{there}: {refused}", cure)
    free = usage(there).free
    if refused or free < FULL:
        cause = f"{free / 2**20:.0f} MiB are free in {there}"
        return fault(check, f"{what}: the disk is full", cause, f"make room there, or {cure}")
    what += f", {free / 2**30:.1f} GiB free"
    if free < SCARCE:
        cause = "unpacking a large data set needs more than its own size"
        return warning(check, what, cause, f"make room, or {cure}")
    return ok(check, what)


def _nearest(folder: Path) -> Path:
    """The folder itself, or the first one above it that exists."""
    absolute = Path(os.path.realpath(folder))
    # not Path.exists, which raises below a folder that may not be entered
    return next(parent for parent in (absolute, *absolute.parents) if os.path.exists(parent))


def _why_not_writable(folder: Path) -> str:
    """Why no file can be made there; it is tried, as permissions alone do not decide it."""
    try:
        with tempfile.TemporaryFile(dir=str(folder)) as file:
            file.write(b"\0")
    except OSError as error:
        return error.strerror or str(error)
    return ""


def temporary() -> Finding:
    """The folder for temporary files."""
    cure = "set TMPDIR to a writable folder with room"
    try:
        return place("temporary", "temporary files", Path(tempfile.gettempdir()), cure)
    except FileNotFoundError as error:  # it tries some, and none can be written
        return fault("temporary", "no folder for temporary files", str(error), cure)


def current_folder() -> Finding:
    """Where runs are written unless --out says otherwise."""
    try:
        here = Path.cwd()
    except OSError as error:
        cause, cure = error.strerror or str(error), "cd to a folder that exists"
        return fault("runs", "the current folder is gone", cause, cure)
    return place("runs", "runs are written below", here, "name another folder with --out DIR")


def home(environ_home: str) -> Finding:
    """The user's own folder, where caches and settings go."""
    cure = "export HOME=DIR"
    if not environ_home:
        return warning("home", "HOME is not set", "libraries cannot keep their settings", cure)
    refused = _why_not_writable(_nearest(Path(environ_home)))
    if not refused:
        return ok("home", environ_home)
    cure += " with a writable folder; or MPLCONFIGDIR and GLUONLAB_DATA for their files only"
    return warning("home", f"{environ_home} is not writable", refused, cure)


def memory(proc: Path = PROC, cgroups: Path = CGROUPS) -> Finding:
    """The memory that this process may still take, of the machine or of its container or job."""
    left = available_memory(proc, cgroups)
    if left is None:
        return ok("memory", f"unknown: {proc}/meminfo does not say")
    what = f"{left.free / 2**30:.1f} GiB of {left.total / 2**30:.1f} GiB free in {left.where}"
    if left.free >= LITTLE_MEMORY:
        return ok("memory", what)
    cause = "MXNet alone takes half a GiB, and data sets are kept in memory"
    return warning("memory", what, cause, "end other processes")


def shared_memory(
    folder: Path = Path("/dev/shm"), usage: Callable[[Path], Any] = shutil.disk_usage
) -> Finding:
    """/dev/shm, through which DataLoader's workers and NCCL hand data to each other."""
    if not folder.is_dir():
        cause = "DataLoader's workers and NCCL need it"
        return warning("shm", f"no {folder}", cause, "mount a tmpfs there")
    space = usage(folder)
    what = f"{folder}: {space.free / 2**20:,.0f} MiB of {space.total / 2**20:,.0f} MiB free"
    if space.free >= LITTLE_SHM:
        return ok("shm", what)
    cause = "DataLoader's workers and NCCL put batches and buffers there; "
    cause += "when it is full, they die of a bus error"
    cure = "docker run --shm-size=1g, or mount -o remount,size=1g /dev/shm"
    return warning("shm", what, cause, cure)


MARGIN = 0.7  # of a core: this much is always going on
SAMPLE_S = 0.2
SHARE, NAMED = 0.2, 3  # processes that are named: how much of a core they take, and how many
LONG_SPINS = 100_000  # a millisecond or more
_TICKS = os.sysconf("SC_CLK_TCK")


@listed
def cpu(proc: Path = PROC) -> Iterator[Finding]:
    """A line on the cores and the threads that compute on them; a warning for what slows them."""
    threads, load, sharing = threads_per_device(1), os.getloadavg()[0], local_process_count()
    what = f"{cores_in_words()}, load {load:.1f}; one CPU device computes with "
    what += plural(threads, "thread")
    what += f", as 1 of {sharing.processes} processes of a training" * (sharing.processes > 1)
    what += f"; {_waiting()}"
    if load > (os.cpu_count() or 1) - threads + MARGIN and threads > 1:
        who = ", ".join(busy(proc))
        who = f"computes: {who}" if who else "computed within the last minute"
        cause = f"another process {who}; a team of threads waits for its slowest one"
        yield warning("cpu", what, cause, "end it, wait for it, or leave it a core: --threads N")
    else:
        yield ok("cpu", what)
    yield from _spinning(openmp_settings.user_spin_settings())
    if not sharing.is_certain:
        what = f"{sharing.processes} workers of a parameter server share cores"
        cause = "until they connect, it is unknown how many run on this host: all are assumed to"
        cure = "export OMP_NUM_THREADS, or train with python -m gluonlab.launch, which counts them"
        yield warning("cpu", what, cause, cure)
    exported, own = openmp_settings.exported_threads(), resources.available_cores()
    if exported is not None and exported.threads > own:
        what = f"{exported.threads} threads are exported for {plural(own, 'core')}"
        cause = "threads without a core of their own keep the others waiting"
        yield warning("cpu", what, cause, f"unset {exported.name}")
    for setting, effect in openmp_settings.harmful_user_settings().items():
        what = f"{setting} is overridden for MXNet"
        yield warning("cpu", what, effect, f"unset {setting.split('=')[0]}")


def cores_in_words() -> str:
    """``2 cores``, and why they are not all of the machine's."""
    machine, allowed, own = (
        os.cpu_count() or 1,
        len(os.sched_getaffinity(0)),
        resources.available_cores(),
    )
    notes = []
    if allowed < machine:
        notes.append(f"{allowed} of the machine's {machine} CPUs are allowed by affinity")
    if own < allowed:
        notes.append("the rest are hyper-threads, or beyond this container's limit")
    return plural(own, "core") + (f" ({'; '.join(notes)})" if notes else "")


def _waiting() -> str:
    """What a team's idle threads do, by the user's setting or by gluonlab's."""
    settings = ", ".join(
        f"{name}={value}" for name, value in openmp_settings.user_spin_settings().items()
    )
    if settings:
        return f"idle threads wait as {settings} says"
    return f"idle threads sleep after {openmp_settings.SPIN_COUNT} spins"


def _spinning(users: Mapping[str, str]) -> Iterator[Finding]:
    """A warning where the user's settings let idle threads keep their cores busy."""
    counts = [name for name in users if name.endswith("SPINCOUNT")]  # count before a policy
    for name in (counts or list(users))[:1]:
        value = users[name]
        if (
            openmp_settings.parse_spin_count(value) >= LONG_SPINS
            if counts
            else value.lower() == "active"
        ):
            cause = (
                "idle threads keep their cores busy: "
                "one CPU device is then many times slower beside other work"
            )
            cure = f"unset {name}: gluonlab then lets them sleep soon"
            yield warning("cpu", f"{name}={value} is exported", cause, cure)


def busy(proc: Path = PROC, share: float = SHARE, most: int = NAMED) -> List[str]:
    """The processes that take more than ``share`` of a core, as ``python3 (pid 17) 98 %``.

    At most ``most``; none that this process has started.
    """
    before = _processes(proc)
    time.sleep(SAMPLE_S)
    after = _processes(proc)
    own = descendants(os.getpid(), {pid: parent for pid, (_, parent, _) in after.items()})
    shares = [
        ((ticks - before[pid][2]) / _TICKS / SAMPLE_S, pid, name)
        for pid, (name, _, ticks) in after.items()
        if pid in before and pid not in own
    ]
    largest = sorted((taken for taken in shares if taken[0] > share), reverse=True)[:most]
    return [f"{name} (pid {pid}) {100 * taken:.0f} %" for taken, pid, name in largest]


def descendants(pid: int, parents: Mapping[int, int]) -> Set[int]:
    """``pid``, its children, theirs, and so on."""
    family: Set[int] = set()
    youngest = {pid}
    while youngest:
        family |= youngest
        youngest = {child for child, parent in parents.items() if parent in youngest} - family
    return family


def _processes(proc: Path) -> Dict[int, Tuple[str, int, int]]:
    """(name, parent, clock ticks on a CPU) by process id, from proc(5)."""
    processes: Dict[int, Tuple[str, int, int]] = {}
    for folder in proc.iterdir():
        if folder.name.isdigit():
            try:
                head, _, tail = (folder / "stat").read_text(errors="replace").rpartition(")")
                fields, name = tail.split(), head.partition("(")[2]
                ticks = int(fields[11]) + int(fields[12])
                processes[int(folder.name)] = (name, int(fields[1]), ticks)
            except (OSError, IndexError, ValueError):  # it has ended meanwhile
                continue
    return processes


TIMEOUT_S = 8.0
OWN_FOLDER = "name another folder: export GLUONLAB_DATA=DIR, or --data-dir DIR"
REASONS = (
    "Name or service not known",
    "Temporary failure in name resolution",
    "Connection refused",
    "unreachable",
)


def folder() -> List[Finding]:
    """The folder of all data sets, and those that are complete in it."""
    from gluonlab.data.fetching.data_folders import data_root, folder_of
    from gluonlab.data.fetching.download_sources import SOURCES

    try:
        root = data_root()
    except GluonlabError as error:
        return [warning("data", "there is no folder for data sets", str(error), OWN_FOLDER)]
    here = [name for name, source in SOURCES.items() if folder_of(source, root) is not None]
    held = "only digits, which is built in, is here"
    held = f"here are {', '.join(here)}, and digits" if here else held
    return [place("data", f"data sets ({held})", root, OWN_FOLDER)]


def mirrors(sources: Mapping[str, Tuple[str, ...]], timeout_s: float = TIMEOUT_S) -> List[Finding]:
    """``sources``: data set -> the addresses of its first file. All are tried at the same time."""
    urls = [url for urls in sources.values() for url in urls]
    with ThreadPoolExecutor(max_workers=max(1, len(urls))) as pool:
        problems = dict(zip(urls, pool.map(lambda url: head(url, timeout_s), urls)))
    return [_reached(name, {url: problems[url] for url in urls}) for name, urls in sources.items()]


def addresses() -> Mapping[str, Tuple[str, ...]]:
    """Data set -> where its first file may be fetched."""
    from gluonlab.data.fetching.download_sources import SOURCES

    return {
        name: tuple(mirror + source.files[0].name for mirror in source.mirrors)
        for name, source in SOURCES.items()
    }


def head(url: str, timeout_s: float = TIMEOUT_S) -> str:
    """Request a file's headers; return the problem, or an empty text if the file is there.

    Proxies are those of the environment.
    """
    import requests

    try:
        answer = requests.head(url, timeout=timeout_s, allow_redirects=True)
        # a server that knows no HEAD: the beginning of the file will do
        if answer.status_code in (405, 501):
            answer = requests.get(url, timeout=timeout_s, stream=True)
            answer.close()
    except requests.Timeout:
        return f"no answer within {timeout_s:g} s"
    except requests.RequestException as error:
        return _reason(error)
    return "" if answer.ok else f"status {answer.status_code}"


def _reason(error: Exception) -> str:
    """The innermost words of an exception of requests, which wraps three others."""
    text = one_line(str(error))
    proxy = "the proxy: " if "to proxy" in text or type(error).__name__ == "InvalidProxyURL" else ""
    other = f"{type(error).__name__}: {text[:120]}"
    return proxy + next((reason for reason in REASONS if reason in text), other)


def _reached(name: str, replies: Mapping[str, str]) -> Finding:
    bad = [f"{url}: {problem}" for url, problem in replies.items() if problem]
    count, problems = plural(len(replies), "mirror"), "; ".join(bad)
    if not bad:
        return ok("network", f"{name}: {count} reached")
    if len(bad) < len(replies):
        cure = "nothing to do: the others are tried in turn"
        return warning("network", f"{name}: {len(bad)} of {count} fail", problems, cure)
    cure = "check the network and HTTPS_PROXY, or give a mirror of your own: "
    cure += f"gluonlab.data download {name} --mirror URL"
    return fault("network", f"{name} cannot be downloaded", problems, cure)


METADATA = Path("/opt/ml/metadata/resource-metadata.json")
PERSISTENT = Path("/home/ec2-user/SageMaker")  # all that a notebook instance keeps when it stops


@listed
def sagemaker(
    environ: Mapping[str, str] = os.environ,
    metadata: Path = METADATA,
    persistent: Path = PERSISTENT,
) -> Iterator[Finding]:
    """The notebook or training job that this is, and whether its environment outlives a stop."""
    if "TRAINING_JOB_NAME" in environ or "SM_CURRENT_HOST" in environ:
        yield _job(environ)
    elif not metadata.is_file():
        yield ok("sagemaker", "not on SageMaker")
    else:
        try:
            notebook = json.loads(metadata.read_text())
            what = f"notebook {notebook['ResourceName']}, {notebook['ResourceArn']}"
        except (OSError, ValueError, KeyError, TypeError) as error:
            what, cause = f"{metadata} cannot be read", f"{type(error).__name__}: {error}"
            cure = "restart the notebook instance, which writes it"
            yield warning("sagemaker", what, cause, cure)
            return
        yield ok("sagemaker", what)
        yield from _lost(persistent)


def _job(environ: Mapping[str, str]) -> Finding:
    instance, gpus = environ.get("SM_CURRENT_INSTANCE_TYPE"), environ.get("SM_NUM_GPUS")
    what = f"training job {environ.get('TRAINING_JOB_NAME', '')}".strip()
    what += f", {instance}" if instance is not None else ""
    what += f", {gpus} GPUs" if gpus is not None else ""
    hosts = environ.get("SM_HOSTS", "")
    try:
        count = len(json.loads(hosts)) if hosts else 1
    except (ValueError, TypeError):
        cure = "it is a JSON list of names: do not set it"
        return warning("sagemaker", what, f"SM_HOSTS={hosts} is not a list", cure)
    of_several = f", one of {count}" if count > 1 else ""
    return ok("sagemaker", f"{what}, host {environ.get('SM_CURRENT_HOST', '?')}{of_several}")


def _lost(persistent: Path, package: Path = Path(__file__)) -> Iterator[Finding]:
    """Only one folder outlives a stop of the notebook instance."""
    if persistent.is_dir() and persistent not in package.resolve().parents:
        cause = f"a notebook instance keeps {persistent} alone when it stops; "
        cause += f"gluonlab is installed in {package.resolve().parent.parent}"
        cure = f"make the environment below {persistent}"
        yield warning("sagemaker", "this environment will be gone after a stop", cause, cure)
