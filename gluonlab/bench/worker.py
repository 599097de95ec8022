"""The child's end of a measurement: ``python -m gluonlab.bench.worker JOB {"option": value}``.

Says ``{"ready": true}`` when the job is set up. Then, for every line ``{"steps": N}`` on standard
input, which may have more words for the job, runs N steps and answers with one line: the job's
dictionary of numbers, among them ``seconds``. A failure is answered with ``{"error": "..."}`` and
ends the worker, as does the end of standard input; so a worker does not outlive its parent.

Other checkouts start this module by its name, and jobs by theirs (`--beside`): both stay.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from typing import Any, Callable, Dict, TextIO

from gluonlab.engine import setup

Job = Callable[..., Dict[str, float]]  # job(steps=N)

# ``make(**options)`` of each module gives a Job. Imported when needed: only one framework is loaded
# into a worker.
JOBS = {
    "gluonlab": "gluonlab.bench.peers.gluonlab_loop",
    "classic": "gluonlab.bench.peers.classic_loop",
    "torch": "gluonlab.bench.peers.torch_loop",
    "torch-ddp": "gluonlab.bench.peers.torch_ddp",
    "dist": "gluonlab.bench.threads.dist_loop",
    "member": "gluonlab.bench.scaling.member",
    "sum": "gluonlab.bench.allreduce.member",
    "host": "gluonlab.bench.host.cost",
    "efficiency": "gluonlab.bench.host.efficiency",
    "gradients": "gluonlab.bench.gradients.job",
    "optimize": "gluonlab.bench.optimize.loop",
    "images": "gluonlab.bench.images.readers",
    "training": "gluonlab.study.speedup.measure",
    "torch-images": "gluonlab.bench.images.torch_loader",
}

AS_IT_COMES = {"classic"}  # jobs that measure MXNet with its own defaults


def make_job(name: str, options: Dict[str, Any]) -> Job:
    """The job of this name. Raises KeyError for another one."""
    if name in AS_IT_COMES:
        setup.uninstall()
    job: Job = importlib.import_module(JOBS[name]).make(**options)
    return job


def main() -> None:
    """Serve the job that the command line names until standard input ends."""
    # Standard output for the answers alone: whatever a library prints goes to standard error.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        job = make_job(sys.argv[1], json.loads(sys.argv[2]))
        _answer(answers, {"ready": True})
        for line in sys.stdin:
            _answer(answers, job(**json.loads(line)))
    except Exception as error:
        traceback.print_exc()
        _answer(answers, {"error": f"{type(error).__name__}: {error}"})
        sys.exit(1)


def _answer(answers: TextIO, message: Dict[str, Any]) -> None:
    print(json.dumps(message), file=answers, flush=True)


if __name__ == "__main__":
    main()
