"""The child's end of a measurement: ``python -m gluonlab.bench.worker_main JOB {"option": value}``.

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

from gluonlab.bench.harness.machine_info import HERE
from gluonlab.engine import mxnet_setup

Job = Callable[..., Dict[str, float]]  # job(steps=N)

# MODULE:FUNCTION; the function makes a Job of the options. Imported when needed: only one framework
# is loaded into a worker.
JOBS = {
    "gluonlab": "gluonlab.bench.training_job:make",
    "member": "gluonlab.bench.training_job:make_member",
    "sum": "gluonlab.bench.allreduce.multiprocess:make",
    "classic": "benchmarks.classic_loop:make",
    "torch": "benchmarks.torch_jobs:make",
    "torch-ddp": "benchmarks.torch_jobs:make_ddp",
    "torch-images": "benchmarks.torch_jobs:make_reader",
    "dist": "benchmarks.dist_loop:make",
    "host": "benchmarks.host_jobs:make",
    "efficiency": "benchmarks.host_jobs:make_efficiency",
    "gradients": "benchmarks.gradients:make",
    "optimize": "benchmarks.optimize_job:make",
    "images": "benchmarks.image_readers:make",
    "training": "benchmarks.verdict:make",
}
TOOLS = HERE / "tools"  # in a checkout; it has the package ``benchmarks``

AS_IT_COMES = {"classic"}  # jobs that measure MXNet with its own defaults


def make_job(name: str, options: Dict[str, Any]) -> Job:
    """The job of this name. Raises KeyError for another one."""
    if name in AS_IT_COMES:
        mxnet_setup.remove_setup_hook()
    module, _, function = JOBS[name].partition(":")
    if not module.startswith("gluonlab.") and str(TOOLS) not in sys.path:
        sys.path.insert(0, str(TOOLS))
    job: Job = getattr(importlib.import_module(module), function)(**options)
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
