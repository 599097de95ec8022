"""The command ``gluonlab launch``, which starts and watches the processes of a group."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import replace
from typing import Any, List, Optional, Sequence, Tuple

import click

from gluonlab.cli.command import SEPARATOR, WRITTEN_WORDS_KEY, command
from gluonlab.cli.output_streams import LinePrinter, PrintedCallback, do_nothing
from gluonlab.errors import ConfigError, RunError, unknown
from gluonlab.launch.agent_connections import SshOptions
from gluonlab.launch.check_launcher_arguments import (
    check_member_options,
    check_not_in_group,
    check_platform,
    check_remote_options,
    given_options,
    gpus_per_process,
    job_file_options,
    parse_number,
    parse_run_command,
    parse_whole_number,
    split_command,
    validate_run_arguments,
)
from gluonlab.launch.cluster_job_scripts import job_file, parse_job_request
from gluonlab.launch.group_processes import PROCESSES_BY_BACKEND, check_variables_are_set
from gluonlab.launch.horovod_settings import (
    add_horovod_options,
    check_timeline_writable,
    horovod_arguments,
    horovod_variables,
)
from gluonlab.launch.hosts import LOCAL_HOST, Host, assign_ranks, parse_hosts, read_hostfile
from gluonlab.launch.launcher import LaunchRequest, launch_group
from gluonlab.launch.process_membership import Membership, membership, read_job_allocation
from gluonlab.launch.scheduler_tasks import serve_rank_0
from gluonlab.launch.user_program import (
    become_program,
    check_not_gluonlab,
    check_program,
    is_program,
    program_variables,
)
from gluonlab.launch.worker.__main__ import main as worker
from gluonlab.plain_text import escape_unprintable, one_line

DEFAULT_BACKEND = "dist_sync"
MPI_LAUNCHERS = ("Open MPI", "MPICH", "MVAPICH2")
PYTHON_OPTIONS = ("-c", "-m", "-u")  # options of Python, which need "python" before them
MIN_TIMEOUT_S = 5  # least --timeout in seconds; half of it must be longer than BEAT_S
CONTEXT_SETTINGS = {"ignore_unknown_options": True}


@command(
    "gluonlab launch",
    settings=CONTEXT_SETTINGS,
    most_used="-n --backend --hosts --hostfile --max-restarts --print --job",
    renamed={"--patience": "--timeout", "--restart": "--max-restarts", "--min-workers": "--min-np"},
)
@click.option(
    "-n", "count", metavar="N", help="number of training processes  [default: the number of slots on all hosts]"
)
@click.option(
    "--backend",
    metavar="NAME",
    default=DEFAULT_BACKEND,
    show_default=True,
    help="how processes reduce gradients: dist_sync or dist_device_sync (parameter servers sum the gradients of all "
    "workers), dist_async (parameter servers apply each gradient immediately) or horovod (allreduce); on ARM and "
    "macOS, only horovod is possible; your own program receives the environment variables for mx.kv.create or Horovod",
)
@click.option("--servers", metavar="N", help="number of parameter servers  [default: one per host]")
@click.option(
    "--hosts",
    metavar="H1,H2:4",
    help="hosts to use over ssh, optionally with numbers of processes  [default: this host]",
)
@click.option("--hostfile", metavar="FILE", help="file that lists one host per line, such as h1 slots=4")
@click.option(
    "--max-restarts",
    metavar="N",
    default="0",
    show_default=True,
    help="after a failure, restart from the last checkpoint, up to N times",
)
@click.option(
    "--min-np",
    metavar="N",
    help="with --max-restarts: if a host is lost, continue as long as at least N processes remain; the global batch "
    "size stays the same",
)
@click.option(
    "--timeout",
    metavar="SECONDS",
    default="30",
    show_default=True,
    help="stop all processes if one of them sends no heartbeat for this long",
)
@click.option("--port", metavar="PORT", help="port of the scheduler  [default: a free port]")
@click.option(
    "--env",
    metavar="NAME",
    multiple=True,
    help="pass this environment variable to other hosts; you can repeat this option",
)
@click.option(
    "--ssh", metavar="COMMAND", default="ssh", show_default=True, help="ssh client, optionally followed by its options"
)
@click.option(
    "--python",
    metavar="PATH",
    default=sys.executable,
    help="path of Python on other hosts  [default: the path of Python on this host]",
)
@click.option(
    "--print",
    "kind",
    metavar="KIND",
    help="print a job file instead of starting processes: slurm, lsf, lsf-interactive, k8s or sagemaker",
)
@click.option(
    "--job",
    metavar="NAME=VALUE",
    multiple=True,
    help="with --print: set a property of the job, such as gpus=2; NAME is processes_per_host, gpus, threads, "
    "memory_mb, minutes, name, queue, image, instance, bucket, role or python",
)
@add_horovod_options
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="-- [run|resume RUN_DIR] OPTIONS | PROGRAM")
def main(
    count: Optional[str],
    backend: str,
    servers: Optional[str],
    hosts: Optional[str],
    hostfile: Optional[str],
    max_restarts: str,
    min_np: Optional[str],
    timeout: str,
    port: Optional[str],
    env: Sequence[str],
    ssh: str,
    python: str,
    kind: Optional[str],
    job: Sequence[str],
    words: Tuple[str, ...],
    **horovod: Any,
) -> Any:
    """Train with several processes, on this host or on other hosts over ssh.

    After --, pass the options of gluonlab run, or the command resume RUN_DIR. --batch-size is per
    device. The results are the same as in a single process that uses all devices.

    You can also pass your own program. This command runs a program in two processes:

    gluonlab launch -n 2 -- python train.py --lr 0.1
    """
    words = parse_run_command(words)
    context = click.get_current_context()
    program = is_program(words)
    _check_options(context, words)
    if backend not in PROCESSES_BY_BACKEND:
        raise ConfigError(unknown("--backend", backend, PROCESSES_BY_BACKEND))
    settings = horovod_variables(backend, horovod)
    if program:
        _check_separated(context, words)
        check_not_gluonlab(words)
        settings.update(program_variables())
    if backend == "horovod" and servers is not None:
        raise ConfigError(
            "--servers sets the number of parameter servers, which --backend horovod does not use: omit --servers"
        )
    processes = None if count is None else parse_whole_number("-n", count)
    server_count = None if servers is None else parse_whole_number("--servers", servers)
    scheduler_port = None if port is None else parse_whole_number("--port", port, 65535)
    restarts = parse_whole_number("--max-restarts", max_restarts, least=0)
    timeout_s = parse_number("--timeout", timeout, "seconds", MIN_TIMEOUT_S, 1e6)
    if not program:  # here, so that not every worker prints a warning
        words = tuple(worker.translate_old_names(words))
    if kind is not None:
        launcher_options = [*job_file_options(context, kind), *horovod_arguments(horovod)]
        job_request = parse_job_request(backend, processes, job, launcher_options, words)
        if not program:
            validate_run_arguments(backend, words, restarts, main, worker)
            requested = job_request.gpus if any(pair.startswith("gpus=") for pair in job) else None
            gpus = gpus_per_process(backend, words, main, worker, requested)
            job_request = job_request if gpus is None else replace(job_request, gpus=gpus)
        _parse_min_np(min_np, restarts, job_request.processes)
        print(job_file(kind, job_request), end="")
        return None
    if job:
        raise ConfigError(f"--job {job[0]} is only valid for job files: add --print KIND, or omit --job")
    member = membership(os.environ)
    if count or hosts or hostfile:
        check_not_in_group(context, member)
        member = None
    if member is not None and is_started_member(member, backend):
        check_member_options(context, member.launcher)
        os.environ.update(settings)
        if program:
            become_program(words)
        return worker.main(["--backend", backend, *words])
    check_variables_are_set(env)
    if not program:
        words = validate_run_arguments(backend, words, restarts, main, worker)
    elif member is not None:
        check_program(words)
    ssh_options = SshOptions(split_command("--ssh", ssh), python, timeout_s)
    if member is not None:  # before a rank waits for rank 0
        check_platform(backend, [LOCAL_HOST])
    if member is not None and member.rank:
        sys.exit(serve_rank_0(member, backend, words, ssh_options.patience, settings))
    available_hosts = _requested_hosts(hosts, hostfile)
    if available_hosts == [LOCAL_HOST] and count is None and member is None:
        raise ConfigError("the number of processes is missing: add an option such as -n 2 or --hosts h1,h2")
    rank_hosts = assign_ranks(processes, available_hosts)
    used_hosts = [host for n, host in enumerate(available_hosts) if n in rank_hosts or host.slots == 0]
    check_remote_options(context, used_hosts, member)
    check_platform(backend, used_hosts)
    if available_hosts[rank_hosts[0]].is_local:
        check_timeline_writable(settings)  # here, because other ranks would wait for a failed rank 0
    if program and any(available_hosts[n].is_local for n in rank_hosts):
        check_program(words)
    workers = len(rank_hosts) if member is None else member.size
    request = LaunchRequest(
        backend=backend,
        words=words,
        hosts=used_hosts,
        workers=workers,
        servers=server_count,
        port=scheduler_port,
        restarts=restarts,
        min_workers=_parse_min_np(min_np, restarts, workers),
        ssh_options=ssh_options,
        variable_names=env,
        settings=settings,
        command=shlex.join(["gluonlab", "launch", *given_options(context), "--"]),
        membership=member,
    )
    console = Console("--json" in words and not program, program)
    status = launch_group(request, console)
    if console.write_error is not None:
        raise RunError(
            f"could not print all output ({console.write_error.strerror}): see the files in the run directory (--out)"
        )
    sys.exit(status)


class Console(LinePrinter):
    """Prints the output of all processes, each line with the rank of its process.

    Args:
        raw: whether to print the processes' standard output unchanged, without the rank
        of_program: whether the user's own program prints the lines. If so, tabs, colors and empty
            lines are kept.
    """

    def __init__(self, raw: bool, of_program: bool = False) -> None:
        super().__init__()
        self._raw, self._of_program = raw, of_program

    def on_line(self, process: str, stream: str, text: str, printed: PrintedCallback = do_nothing) -> None:
        """Print a line that ``process`` wrote to ``stream``, and then call ``printed``.

        See `LaunchListener`.
        """
        if stream == "out" and self._raw:
            self.print("stdout", text, printed)
        elif text or self._of_program:
            content = text if self._of_program else escape_unprintable(text)
            line = f"[{process.replace('rank ', '')}] {content}".rstrip(" " * (not text))
            self.print("stdout" if stream == "out" else "stderr", line, printed)
        else:
            printed()

    def on_note(self, text: str) -> None:
        """Print a message of the launcher itself."""
        self.print("stderr", escape_unprintable(text))


def _check_separated(context: click.Context, words: Sequence[str]) -> None:
    """Raise ConfigError if ``words`` contain a program that does not follow ``--``.

    The launcher would parse the program's options as its own.
    """
    if SEPARATOR not in context.meta.get(WRITTEN_WORDS_KEY, [SEPARATOR]):
        raise ConfigError(
            f"{one_line(words[0])!r} is not an option: write a program after --, as in -n 2 -- "
            f"{one_line(' '.join(words[:2]))}"
        )


def _check_options(context: click.Context, words: Sequence[str]) -> None:
    """Raise an error for an unknown launcher option, or for a Python option without a program.

    Raises NoSuchOption for an unknown option before ``-- PROGRAM``, and ConfigError for an option
    of Python, such as ``-c``, directly after ``--``. If no program follows, other unknown options
    are treated as options of the run.
    """
    written = context.meta.get(WRITTEN_WORDS_KEY, [])
    run_words = written[written.index(SEPARATOR) + 1 :] if SEPARATOR in written else []
    if is_program(run_words) and len(run_words) < len(words):
        raise click.NoSuchOption(words[0].partition("=")[0], ctx=context)
    if run_words[:1] and run_words[0] in PYTHON_OPTIONS:
        raise ConfigError(
            f"{run_words[0]} is not an option of gluonlab run: to run a program, start with its "
            f"name, as in -n 2 -- python {run_words[0]} ..."
        )


def _requested_hosts(hosts: Optional[str], hostfile: Optional[str]) -> List[Host]:
    """Return the hosts of --hosts or --hostfile, or else the hosts of this shell's job.

    If the shell is not in a job with several hosts, return only this host.
    """
    if hosts is not None and hostfile is not None:
        raise ConfigError("--hosts and --hostfile cannot be used together: pass only one of them")
    if hosts is not None:
        return parse_hosts(hosts)
    if hostfile is not None:
        return read_hostfile(hostfile)
    job = read_job_allocation(os.environ) or []
    return [Host(slots.host, slots.slots) for slots in job] if len(job) > 1 else [LOCAL_HOST]


def is_started_member(member: Membership, backend: str) -> bool:
    """Check if a launcher has set all environment variables that a worker of the backend needs.

    If so, this process trains as a member of the launcher's group, and launches nothing.
    """
    if member.role is not None or member.launcher == "horovodrun":
        return True
    if backend != "horovod" or member.launcher not in MPI_LAUNCHERS:
        return False
    try:
        import horovod.mxnet as hvd
    except ImportError:
        return True  # the worker reports the missing Horovod
    return bool(hvd.mpi_built())


def _parse_min_np(text: Optional[str], restarts: int, workers: int) -> Optional[int]:
    """Parse --min-np, and check that it is compatible with the numbers of restarts and workers."""
    if text is None:
        return None
    least = parse_whole_number("--min-np", text)
    if least > workers:
        raise ConfigError(f"--min-np {least} is more than the number of processes, {workers}: pass {workers} or fewer")
    if not restarts:
        raise ConfigError("--min-np only applies to restarts: add --max-restarts N")
    return least


if __name__ == "__main__":
    main()
