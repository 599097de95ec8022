"""python -m gluonlab.launch.serving: a server, or the scheduler, of MXNet's parameter server.

Which of them, the environment says (DMLC_ROLE). It serves until the workers have left.
"""

from __future__ import annotations

import signal
import sys

from gluonlab.engine.parameter_server import CannotListen
from gluonlab.errors import EngineError
from gluonlab.launch.telling import TAKEN, tell


def main() -> None:
    """Load MXNet, which then is what its role says, and ends in SystemExit."""
    # it does not hear Python's handler
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        import mxnet  # noqa: F401
    except EngineError as error:
        if isinstance(error, CannotListen) and error.is_taken:
            tell(TAKEN)
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
