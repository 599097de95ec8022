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
    "peers": "compare gluonlab with the classic Gluon loop and PyTorch",
    "optimize": "models of tutorials before and after gluonlab.optimize",
    "host": "the host's Python overhead per step, in time and cores",
    "overlap": "costs and benefits of --backward-bulk-size",
    "images": "JPEGs decoded per second: gluonlab, MXNet and PyTorch",
    "threads": "settings for how idle threads of a CPU device wait",
    "gradients": "allreduce of ResNet-18's gradients, with and without the update",
    "checkpoints": "overhead of checkpoints and of --check-replicas",
    "verdict": "whether the advice of study speedup brings the predicted gain",
    "compare": "compare two results files of the same benchmark, or two folders of them",
}


def main(args: Optional[Sequence[str]] = None) -> None:
    """Run the measurement that the first argument names with the remaining arguments."""
    commands = {name: (summary, make_lazy_main(f"benchmarks.{name}")) for name, summary in COMMANDS.items()}
    run_subcommand("python tools/benchmarks", commands, sys.argv[1:] if args is None else args)


if __name__ == "__main__":
    main()
