"""Peak and current memory of this process, as Linux reports it."""

import re
from pathlib import Path

from mxnet import nd

STATUS, CLEAR_REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def _read_kilobytes(name):
    return next(int(line.split()[1]) for line in STATUS.read_text().splitlines() if line.startswith(f"{name}:"))


def measure_peak_bytes(work):
    """Return how much ``work()`` and its queued operations add to the resident memory."""
    nd.waitall()
    # Reset the peak. getrusage would start with the peak of the parent process.
    CLEAR_REFS.write_text("5")
    initial = _read_kilobytes("VmRSS")
    work()
    nd.waitall()
    return 1024 * (_read_kilobytes("VmHWM") - initial)


def own_peak_bytes():
    """Return the peak of the resident memory of this process."""
    return 1024 * _read_kilobytes("VmHWM")


def resident_bytes():
    """Return the resident memory of this process."""
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
    process = python("-c", TRAIN_SOURCE, *arguments, "--quiet", timeout=1800)
    assert process.returncode == 0, process.stderr
    return int(re.search(r"^peak (\d+)$", process.stdout, re.M)[1])
