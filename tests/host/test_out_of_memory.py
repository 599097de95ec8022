"""Memory that is used up is one line, which names whose it is, even where C++ ends the process."""

import pytest
from mxnet.base import MXNetError

from gluonlab.host.out_of_memory import explain_exhausted_resource

OF_A_GPU = (
    "cudaMalloc retry failed: out of memory",
    "Check failed: e == cudaSuccess: CUDA: out of memory",
    "Check failed: e == CUDNN_STATUS_SUCCESS (1 vs. 0) : cuDNN: CUDNN_STATUS_ALLOC_FAILED",
    "Check failed: err == CUBLAS_STATUS_SUCCESS (3 vs. 0) : CUBLAS_STATUS_ALLOC_FAILED",
)
OF_THE_HOST = (
    "Memory allocation failed out of range", "std::bad_alloc", "Unable to allocate 9 TB",
    "Check failed: ret == 0 (12 vs. 0) : AlignedMallocPitch failed",
)  # fmt: skip


@pytest.mark.parametrize("said", [*OF_A_GPU, *OF_THE_HOST])
def test_memory_that_is_used_up_is_named_with_what_takes_less(said):
    explained = str(explain_exhausted_resource(MXNetError(f'Traceback (most recent call last):\n  File "x"\n{said}')))
    assert explained.startswith("there is not enough memory: ") and "\n" not in explained
    assert ("a GPU's is full" in explained) == (said in OF_A_GPU)
    for option in ("--batch-size", "--microbatches", "--find-batch-size"):
        assert option in explained


def test_other_errors_are_not_taken_for_it():
    assert explain_exhausted_resource(MXNetError("Check failed: shape_is_known(shape)")) is None


LIMITED = """
import ctypes, os, resource, signal, sys, threading
from gluonlab.host import out_of_memory
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_AS, (2**33, 2**33))
out_of_memory.prepare_last_line()
out_of_memory.prepare_last_line()
libc = ctypes.CDLL(None)
"""
ENDS = {
    "abort": "os.abort()",
    "a pointer to nothing": "ctypes.string_at(0)",
    "what no C++ catches": "ctypes.CDLL('libstdc++.so.6')['_ZSt9terminatev']()",
    "memory that was freed twice": """
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
memory = libc.malloc(5000)
guard = libc.malloc(16)
libc.free(memory + 8)
""",
    "many threads at once": """
for _ in range(12):
    threading.Thread(target=libc.abort).start()
signal.pause()
""",
    "a library that loads for ever": """
out_of_memory.LOADING_S = 0.05
with out_of_memory.limit_import_time():
    while True:
        pass
""",
}
SAID = (
    "error: MXNet was ended, most likely for want of memory: this process may have 8,192 MiB "
    "(ulimit -v); raise the limit, use fewer --threads, choose a smaller --batch-size or more "
    "--microbatches, or look with --find-batch-size BYTES for what fits\n"
)


@pytest.mark.parametrize("how", ENDS)
def test_a_limited_process_that_c_ends_says_one_line(python, how):
    ended = python("-c", LIMITED + ENDS[how])
    assert (ended.returncode, ended.stdout) == (6, "")
    said_by_c = [line for line in ended.stderr.splitlines() if "free()" in line]
    assert ended.stderr.replace("".join(f"{line}\n" for line in said_by_c), "") == SAID
    assert len(said_by_c) == (how == "memory that was freed twice")


def test_a_process_that_ends_by_itself_says_nothing(python):
    ended = python("-c", LIMITED + "print('done')")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "done\n", "")


def test_a_fork_that_dies_says_nothing_and_its_parent_is_as_before(python):
    forked = """
if os.fork() == 0:
    os.abort()
_, status = os.wait()
assert os.WTERMSIG(status) == signal.SIGABRT
sys.exit(3)
"""
    ended = python("-c", LIMITED + forked)
    assert (ended.returncode, ended.stderr) == (3, "")


def test_without_a_limit_all_is_as_c_has_it(python):
    without = LIMITED.replace("resource.setrlimit(resource.RLIMIT_AS, (2**33, 2**33))", "")
    ended = python("-c", without + ENDS["abort"])
    assert (ended.returncode, ended.stderr) == (-6, "")


def test_a_mebibyte_of_addresses_is_kept_for_the_words_of_an_error(python):
    full = """
import mmap
held, size = [], 2**30
while size >= 2**19:  # what is left then is less than that
    try:
        held.append(mmap.mmap(-1, size, mmap.MAP_PRIVATE, mmap.PROT_READ))
    except OSError:
        size //= 2
out_of_memory.free_reserved_memory()
print(len(mmap.mmap(-1, 2**20, mmap.MAP_PRIVATE, mmap.PROT_READ)))
"""
    ended = python("-c", LIMITED + full)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, f"{2**20}\n", "")
