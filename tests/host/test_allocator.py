"""What is freed stays with a process that asks for it."""

import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, resource, sys
from gluonlab.host.allocator import keep_freed
if sys.argv[1] == "keeps":
    keep_freed()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
SIZE = 20 * 2**20
def block():
    made = libc.malloc(SIZE)
    ctypes.memset(made, 1, SIZE)
    libc.free(made)
block()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    block()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how, **environment):
    """Pages that ten blocks of 20 MiB, one after the other, take from the system."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=True,
        env={"PATH": "", "PYTHONPATH": ":".join(sys.path), **environment},
    )  # fmt: skip
    return int(done.stdout)


def test_freed_blocks_are_used_again_without_asking_the_system():
    assert faults("keeps") < 500 < 10 * 5120 * 0.5 < faults("does not", MALLOC_TRIM_THRESHOLD_="0")


@pytest.mark.parametrize("name", ["MALLOC_TRIM_THRESHOLD_"])
def test_what_the_user_has_set_counts(name):
    assert faults("keeps", **{name: "0"}) > 10 * 5120 * 0.5
