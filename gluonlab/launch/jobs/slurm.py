"""A batch file for Slurm. Source: https://slurm.schedmd.com/sbatch.html."""

from __future__ import annotations

from gluonlab.launch.jobs.request import JobRequest, bash_line


def slurm(request: JobRequest) -> str:
    """The file for sbatch: srun starts the tasks, which find each other by srun's variables."""
    gpus = request.gpus * request.on_a_host
    asked = [
        ("the job's name in the queue", f"--job-name={request.name}"),
        ("where everything that is printed goes; %j is the job's number", "--output=%x-%j.out"),
        ("hosts", f"--nodes={request.hosts}"),
        ("processes, over all hosts", f"--ntasks={request.processes}"),
        ("at most so many of them on one host", f"--ntasks-per-node={request.on_a_host}"),
        ("threads for each process", f"--cpus-per-task={request.threads}"),
        ("memory of each host", f"--mem={request.memory_mb}M"),
        ("after so many minutes Slurm ends the job", f"--time={request.minutes}"),
    ]
    if gpus:
        asked.insert(6, ("GPUs of each host, for all of its processes", f"--gpus-per-node={gpus}"))
    if request.queue is not None:
        asked.append(
            ("the partition: which hosts, and for how long", f"--partition={request.queue}")
        )
    # a task sees all GPUs of its host, and takes its own by its number there
    see_all = ["--gpu-bind=none"] if gpus else []
    goes_on = "--min-workers" in request.launcher  # when a host is lost
    losses = ["--no-kill", "--kill-on-bad-exit=0"] if goes_on else ["--kill-on-bad-exit=1"]
    fails = "if a host is lost, the others go on" if goes_on else "if one fails, all end"
    start = ["srun", *losses, *see_all, *request.command]
    return "\n".join(
        [
            "#!/bin/bash",
            "# Submit it with: sbatch FILE",
            *(line for comment, option in asked for line in (f"# {comment}", f"#SBATCH {option}")),
            "",
            f"# one task for each process, rank 0 speaks for all; {fails}",
            f"{bash_line(start)}\n",
        ]
    )
