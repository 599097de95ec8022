"""python tools/prediction NAME: fit the performance model, validate it, and predict efficiency."""

import sys
from pathlib import Path
from typing import Optional, Sequence

TOOLS = Path(__file__).resolve().parent.parent
sys.path[:1] = [str(TOOLS.parent), str(TOOLS)]  # this gluonlab, and this package

from gluonlab.cli.command import make_lazy_main, run_subcommand  # noqa: E402

COMMANDS = {
    "efficiency": "predict the efficiency of training on 1 to 8 known hosts",
    "fit": "fit the model's constants to published speeds again",
    "validate": "predict the published speeds again, and write them to the package",
}


def main(args: Optional[Sequence[str]] = None) -> None:
    """Pass the remaining options to the command that is named first."""
    commands = {name: (summary, make_lazy_main(f"prediction.{name}")) for name, summary in COMMANDS.items()}
    run_subcommand("python tools/prediction", commands, sys.argv[1:] if args is None else args)


if __name__ == "__main__":
    main()
