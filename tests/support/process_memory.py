"""How much memory something takes at its peak, as Linux counts it for this process."""

import re
from pathlib import Path

from mxnet import nd

STATUS, CLEAR_REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def _read_kilobytes(name):
    return next(
        int(line.split()[1])
        for line in STATUS.read_text().splitlines()
        if line.startswith(f"{name}:")
    )


def measure_peak_bytes(work):
    """What ``work()`` and what it has queued add to the resident memory; getrusage would begin with
    the parent process's peak.
    """
    nd.waitall()
    CLEAR_REFS.write_text("5")  # the peak begins anew
    before = _read_kilobytes("VmRSS")
    work()
    nd.waitall()
    return 1024 * (_read_kilobytes("VmHWM") - before)


def own_peak_bytes():
    """The most that this process has had resident so far."""
    return 1024 * _read_kilobytes("VmHWM")


def resident_bytes():
    """What this process has resident now."""
    return 1024 * _read_kilobytes("VmRSS")


TRAIN_SOURCE = """
import sys
from gluonlab.run import main
from support.process_memory import own_peak_bytes
try:
    main(sys.argv[1:])
finally:
    print("peak", own_peak_bytes())
"""


def measure_run_peak(python, *arguments):
    done = python("-c", TRAIN_SOURCE, *arguments, "--quiet", timeout=1800)
    assert done.returncode == 0, done.stderr
    return int(re.search(r"^peak (\d+)$", done.stdout, re.M)[1])
