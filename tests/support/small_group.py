"""A launcher program whose group runs small Python scripts instead of MXNet.

python small_group.py JSON, with these keys:

parts: for each process, such as "rank 0" or "server 0", the code that it runs after PRELUDE in each
    attempt; ATTEMPT is the number of the attempt.
hosts: names of hosts. A fake SSH runs everything on this machine. Hosts with a file ``down-NAME``
    are unreachable.
window: seconds between two checks, and of other failures after the first.
"""

import itertools
import json
import os
import subprocess
import sys
from contextlib import contextmanager

from gluonlab.errors import RunError
from gluonlab.launch import launch_attempt as attempt
from gluonlab.launch import launcher
from gluonlab.launch.__main__ import Console
from gluonlab.launch.agent_connections import SshOptions
from gluonlab.launch.group_processes import RANK_VARIABLE, ProcessSpec
from gluonlab.launch.hosts import LOCAL_HOST, Host
from support.processes import clean_environment

PRELUDE = """
import os, signal, sys, time
def tell(what):
    os.write(int(os.environ["GLUONLAB_TELL"]), what.encode() + b"\\n")
if "GLUONLAB_RANK" in os.environ and "SILENT" not in os.environ:
    tell("arrived"), tell("joined"), tell("begun")
"""


SSH = """#!/bin/sh
while [ "$1" != -- ]; do shift; done
[ -e down-$2 ] && { echo "no route to $2" >&2; exit 255; }
[ -e silent-$2 ] && exec sleep 3600
[ -e banner-$2 ] && cat banner-$2
echo $$ > ssh-$2
eval "exec $3"
"""


def make_process_specs(parts, rank_hosts, attempt):
    """Return the processes: ranks on their hosts, all others on the first host."""
    specs = []
    for name, code in parts.items():
        rank = int(name[5:]) if name[:4] == "rank" else None
        environment = {"ATTEMPT": str(attempt)}
        if rank is not None:
            environment[RANK_VARIABLE] = str(rank)
        if rank is None or rank < len(rank_hosts):
            host = 0 if rank is None else rank_hosts[rank]
            specs.append(ProcessSpec(name, host, ["-c", PRELUDE + code], environment))
    return specs


@contextmanager
def start_small_group(folder, parts, silent=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **request):
    """Start the launcher in ``folder`` until the block ends; ``silent``: ranks do not report."""
    (folder / "ssh").write_text(SSH)
    (folder / "ssh").chmod(0o755)
    settings = json.dumps({"parts": parts, **request})
    process = subprocess.Popen(
        [sys.executable, __file__, settings], cwd=folder, stdout=stdout, stderr=stderr,
        env=clean_environment(**{"SILENT": "1"} if silent else {}), stdin=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def main():
    """Launch the group of the argument."""
    settings = json.loads(sys.argv[1])
    attempts = itertools.count(1)
    launcher.parts = lambda backend, words, placed, *_: make_process_specs(settings["parts"], placed, next(attempts))
    if "window" in settings:
        attempt.FAILURE_WINDOW_S = attempt.BEAT_S = settings["window"]
    request = launcher.LaunchRequest(
        backend="dist_sync", words=[], hosts=[Host(name, 1) for name in settings.get("hosts", [])] or [LOCAL_HOST],
        workers=sum(name[:4] == "rank" for name in settings["parts"]), restarts=settings.get("restarts", 0),
        min_workers=settings.get("min_workers"),
        ssh_options=SshOptions(ssh=["./ssh"], patience=settings.get("patience", 30)),
    )  # fmt: skip
    try:
        status = launcher.launch_group(request, Console(raw=False))
    except RunError as error:
        sys.exit(f"error: {error}")
    os._exit(status)


if __name__ == "__main__":
    main()
