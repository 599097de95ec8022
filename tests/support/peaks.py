"""How much memory a whole run takes at most."""

import re

TRAIN = """
import sys
from gluonlab.run import main
from support.process_memory import own_peak_bytes
try:
    main(sys.argv[1:])
finally:
    print("peak", own_peak_bytes())
"""


def peak_of_a_run(python, *arguments):
    done = python("-c", TRAIN, *arguments, "--quiet", timeout=1800)
    assert done.returncode == 0, done.stderr
    return int(re.search(r"^peak (\d+)$", done.stdout, re.M)[1])
