"""python labs/build.py: make the labs' notebooks and handouts of their sources. See --help."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent.parent)]  # gluonlab, where it is not installed

from gluonlab_labs.command import main  # noqa: E402

if __name__ == "__main__":
    main()
