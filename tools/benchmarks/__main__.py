"""Commands of ``python tools/benchmarks NAME``: measurements for developers of gluonlab.

``compare`` compares records that --out writes. With --beside DIR another checkout is measured in
the same rounds.
"""

import sys
from pathlib import Path
from typing import Optional, Sequence

TOOLS = Path(__file__).resolve().parent.parent
sys.path[:1] = [str(TOOLS.parent), str(TOOLS)]  # this gluonlab, and this package

from gluonlab.cli.command import make_lazy_main, run_subcommand  # noqa: E402

COMMANDS = {
    "peers": "gluonlab beside the classic Gluon loop and PyTorch",
    "optimize": "tutorials' networks before and after gluonlab.optimize",
    "host": "what the host's Python costs a step, in time and cores",
    "overlap": "what --backward-bulk-size costs and brings",
    "images": "JPEGs decoded per second: gluonlab, MXNet and PyTorch",
    "threads": "ways in which a CPU device's idle threads wait",
    "gradients": "allreduce on ResNet-18's gradients, alone and with update",
    "checkpoints": "what checkpoints cost a run, and --check-replicas",
    "verdict": "whether the advice of study speedup brings what it promises",
    "compare": "two records of one measurement, or folders of them",
}


def main(args: Optional[Sequence[str]] = None) -> None:
    """Run the measurement that the first argument names with the remaining arguments."""
    commands = {name: (summary, make_lazy_main(f"benchmarks.{name}")) for name, summary in COMMANDS.items()}
    run_subcommand("python tools/benchmarks", commands, sys.argv[1:] if args is None else args)


if __name__ == "__main__":
    main()
