"""Main program of a worker: ``python -m gluonlab.bench.worker_main JOB {"option": value}``.

Protocol, in lines of JSON:

- The worker writes ``{"ready": true}`` when the job is set up.
- The worker reads lines ``{"steps": N}`` from standard input. A line may contain more arguments.
  For each line, the worker runs N steps, and then writes the job's dictionary of numbers, which
  includes ``seconds``.
- After a failure, the worker writes ``{"error": "..."}`` and exits.
- The worker exits at the end of standard input, so that it does not outlive its parent.

Do not rename this module or its jobs: measurements that compare checkouts (`--baseline`) start them
by name in other versions of gluonlab.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from typing import Any, Callable, Dict, TextIO

from gluonlab.bench.harness.machine_info import CHECKOUT
from gluonlab.engine import mxnet_setup

Job = Callable[..., Dict[str, float]]  # job(steps=N)

# MODULE:FUNCTION; the function makes a Job from the options. Modules are imported when needed, so
# that a worker loads only one framework.
JOBS = {
    "gluonlab": "gluonlab.bench.training_job:make_training_job",
    "member": "gluonlab.bench.training_job:make_group_job",
    "sum": "gluonlab.bench.allreduce.multiprocess:make_sum_job",
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
    "training": "benchmarks.advice:make",
}
TOOLS = CHECKOUT / "tools"  # contains the package ``benchmarks``, in a checkout only

UNMODIFIED_MXNET = {"classic"}  # jobs that measure MXNet with its own defaults


def make_job(name: str, options: Dict[str, Any]) -> Job:
    """Return the job with this name. Raises KeyError for an unknown job."""
    if name in UNMODIFIED_MXNET:
        mxnet_setup.remove_setup_hook()
    module, _, function = JOBS[name].partition(":")
    if not module.startswith("gluonlab.") and str(TOOLS) not in sys.path:
        sys.path.insert(0, str(TOOLS))
    job: Job = getattr(importlib.import_module(module), function)(**options)
    return job


def main() -> None:
    """For each request, run the job that the command line names, until standard input ends."""
    # Standard output is only for answers. Output of libraries goes to standard error.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        job = make_job(sys.argv[1], json.loads(sys.argv[2]))
        _write_answer(answers, {"ready": True})
        for line in sys.stdin:
            _write_answer(answers, job(**json.loads(line)))
    except Exception as error:
        traceback.print_exc()
        _write_answer(answers, {"error": f"{type(error).__name__}: {error}"})
        sys.exit(1)


def _write_answer(answers: TextIO, message: Dict[str, Any]) -> None:
    print(json.dumps(message), file=answers, flush=True)


if __name__ == "__main__":
    main()
