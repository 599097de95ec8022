"""Files for LSF, batch and interactive. Source: the references of bsub and blaunch at
https://www.ibm.com/docs/en/spectrum-lsf/10.1.0.
"""

from __future__ import annotations

from typing import List, Tuple

from gluonlab.launch.jobs.request import JobRequest, bash_line


def _asked(request: JobRequest) -> List[Tuple[str, List[str]]]:
    """The resources, which both forms ask for: what for, and bsub's words."""
    gpus = request.gpus * request.on_a_host
    asked = [
        ("the job's name in the queue", ["-J", request.name]),
        ("processes: one slot for each", ["-n", str(request.processes)]),
        ("at most so many of them on one host", ["-R", f"span[ptile={request.on_a_host}]"]),
        ("GPUs of each host, which no other job may use", ["-gpu", f"num={gpus}:j_exclusive=yes"]),
        ("memory, in MB unless the cluster has another unit",
         ["-R", f"rusage[mem={request.memory_mb}]"]),
        ("hardware threads for each process", ["-R", f"affinity[thread*{request.threads}]"]),
        ("after so many minutes LSF ends the job", ["-W", str(request.minutes)]),
    ]  # fmt: skip
    if not gpus:
        del asked[3]
    if request.queue is not None:
        asked.insert(1, ("the queue: which hosts, and for how long", ["-q", request.queue]))
    return asked


def lsf(request: JobRequest) -> str:
    """The file for bsub: blaunch starts one task in each slot, without a shell in between."""
    asked = [*_asked(request), ("where everything that is printed goes", ["-o", "%J.out"])]
    options = [
        line
        for comment, words in asked
        for line in (f"# {comment}", f'#BSUB {words[0]} "{words[1]}"')
    ]
    start = bash_line(["blaunch", "-no-shell", *request.command])
    return "\n".join(
        [
            "#!/bin/bash",
            "# Submit it with: bsub < FILE",
            *options,
            "",
            "# one task in each slot; a shell in between would read the words once more",
            f"{start}\n",
        ]
    )


def lsf_interactive(request: JobRequest) -> str:
    """The file to run on a login host: it ends in a shell on the first host of the job."""
    options = [
        line
        for comment, words in _asked(request)
        for line in (f"    # {comment}", f"    {bash_line(words)}")
    ]
    inside = request.command
    inside[3:3] = ["-n", str(request.processes)]
    return "\n".join(
        [
            "#!/bin/bash",
            "# Run it on a login host: bash FILE. In the shell that it opens, start the processes",
            "# on the hosts of the job with:",
            f"# {bash_line(inside)}",
            "options=(",
            *options,
            ")",
            "# a shell with a terminal, as soon as the resources are free",
            'bsub "${options[@]}" -Is /bin/bash\n',
        ]
    )
