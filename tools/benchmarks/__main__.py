"""Commands of ``python tools/benchmarks NAME``: measurements for developers of gluonlab.

``compare`` compares records that --out-file writes. With --baseline DIR another checkout is measured in
the same rounds.
"""

import sys
from pathlib import Path
from typing import Optional, Sequence

TOOLS = Path(__file__).resolve().parent.parent
sys.path[:1] = [str(TOOLS.parent), str(TOOLS)]  # this gluonlab, and this package

from gluonlab.bench.__main__ import RENAMED_TOOLS  # noqa: E402
from gluonlab.cli.command import make_lazy_main, run_subcommand  # noqa: E402

COMMANDS = {
    "frameworks": "compare gluonlab with the classic Gluon loop and PyTorch",
    "optimize": "models of tutorials with and without gluonlab.optimize",
    "overhead": "time and cores that Python uses per training step",
    "overlap": "effect of --backward-bulk-size on throughput",
    "images": "JPEGs decoded per second by gluonlab, MXNet and PyTorch",
    "threads": "wait policies of a CPU device's idle threads",
    "gradients": "allreduce on ResNet-18's gradients, with and without update",
    "checkpoints": "overhead of checkpoints and --check-replicas",
    "advice": "whether the advice of study speedup helps",
    "compare": "compare two results files, or two directories of them",
}


def main(args: Optional[Sequence[str]] = None) -> None:
    """Run the measurement that the first argument names with the remaining arguments."""
    commands = {name: (summary, make_lazy_main(f"benchmarks.{name}")) for name, summary in COMMANDS.items()}
    run_subcommand("python tools/benchmarks", commands, sys.argv[1:] if args is None else args, RENAMED_TOOLS)


if __name__ == "__main__":
    main()
