"""A launcher whose group is of small processes, as a program: python small_group.py JSON.

They are what the launcher would start of MXNet in all but their code. ``parts``: for each name,
such as ``rank 0`` or ``server 0``, what Python is to run, after PRELUDE, in every attempt: ATTEMPT
is its number. ``hosts``: h1 and so on, over SSH, which runs everything here, but for hosts that
have a file ``down-NAME``. ``window``: seconds in which other failures may follow the first, and
between two looks, where a test has only one failure.
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


def make_process_specs(parts, placed, attempt):
    """The parts by name: ranks where they are placed, everything else on the first host."""
    found = []
    for name, code in parts.items():
        rank = int(name[5:]) if name[:4] == "rank" else None
        environment = {"ATTEMPT": str(attempt)}
        if rank is not None:
            environment[RANK_VARIABLE] = str(rank)
        if rank is None or rank < len(placed):
            host = 0 if rank is None else placed[rank]
            found.append(ProcessSpec(name, host, ["-c", PRELUDE + code], environment))
    return found


@contextmanager
def start_small_group(
    folder, parts, silent=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **request
):
    """Its launcher, as a process in ``folder``. ``silent``: no rank says that it has come."""
    (folder / "ssh").write_text(SSH)
    (folder / "ssh").chmod(0o755)
    asked = json.dumps({"parts": parts, **request})
    process = subprocess.Popen(
        [sys.executable, __file__, asked], cwd=folder, stdout=stdout, stderr=stderr,
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
    """Launch what the argument says."""
    asked = json.loads(sys.argv[1])
    attempts = itertools.count(1)
    launcher.parts = lambda backend, words, placed, *_: make_process_specs(
        asked["parts"], placed, next(attempts)
    )
    if "window" in asked:
        attempt.FAILURE_WINDOW_S = attempt.BEAT_S = asked["window"]
    request = launcher.LaunchRequest(
        backend="dist_sync", words=[],
        hosts=[Host(name, 1) for name in asked.get("hosts", [])] or [LOCAL_HOST],
        workers=sum(name[:4] == "rank" for name in asked["parts"]),
        restarts=asked.get("restarts", 0), min_workers=asked.get("min_workers"),
        way=SshOptions(ssh=["./ssh"], patience=asked.get("patience", 30)),
    )  # fmt: skip
    try:
        status = launcher.launch_group(request, Console(raw=False))
    except RunError as error:
        sys.exit(f"error: {error}")
    os._exit(status)


if __name__ == "__main__":
    main()
