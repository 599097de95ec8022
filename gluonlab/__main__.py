"""python -m gluonlab NAME, or gluonlab NAME: all commands in one group."""

from __future__ import annotations

import importlib
import sys
from typing import Dict

from gluonlab.errors import unknown

COMMANDS: Dict[str, str] = {
    "run": "train a Gluon CNN on several devices",
    "bench": "measure gluonlab and its peers side by side",
}


def main() -> None:
    """Hand the remaining options to the command that is named first."""
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in ("-h", "--help"):
        print("Usage: gluonlab COMMAND [OPTIONS]\n\nCommands:")
        print("\n".join(f"  {name:<8}{summary}" for name, summary in COMMANDS.items()))
        print("\ngluonlab COMMAND --help tells more.")
        return
    if name not in COMMANDS:
        print(f"error: {unknown('command', name, COMMANDS)}", file=sys.stderr)
        sys.exit(2)
    module = "gluonlab.bench.__main__" if name == "bench" else f"gluonlab.{name}"
    importlib.import_module(module).main(sys.argv[2:])


if __name__ == "__main__":
    main()
