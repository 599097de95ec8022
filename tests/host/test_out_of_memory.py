"""Memory that is used up is one line, which names whose it is, even where C++ ends the process."""

import pytest
from mxnet.base import MXNetError

from gluonlab.host import out_of_memory
from gluonlab.host.out_of_memory import explain_exhausted_resource

GPU_ERRORS = (
    "cudaMalloc retry failed: out of memory",
    "Check failed: e == cudaSuccess: CUDA: out of memory",
    "Check failed: e == CUDNN_STATUS_SUCCESS (1 vs. 0) : cuDNN: CUDNN_STATUS_ALLOC_FAILED",
    "Check failed: err == CUBLAS_STATUS_SUCCESS (3 vs. 0) : CUBLAS_STATUS_ALLOC_FAILED",
)
HOST_ERRORS = (
    "Memory allocation failed out of range", "std::bad_alloc", "Unable to allocate 9 TB",
    "Check failed: ret == 0 (12 vs. 0) : AlignedMallocPitch failed",
)  # fmt: skip


@pytest.mark.parametrize("message", [*GPU_ERRORS, *HOST_ERRORS])
def test_memory_that_is_used_up_is_named_with_what_takes_less(message):
    explained = str(
        explain_exhausted_resource(MXNetError(f'Traceback (most recent call last):\n  File "x"\n{message}'))
    )
    assert explained.startswith("there is not enough memory: ") and "\n" not in explained
    assert ("the memory of a GPU is full" in explained) == (message in GPU_ERRORS)
    assert all(option in explained for option in ("--batch-size", "--microbatches", "find-batch-size"))
    assert explain_exhausted_resource(MXNetError("Check failed: shape_is_known(shape)")) is None


@pytest.mark.parametrize("limit", [None, "this process may use 40 MiB (ulimit -v)"])
def test_a_library_that_cannot_be_mapped_is_short_of_memory_under_a_limit(monkeypatch, limit):
    monkeypatch.setattr(out_of_memory, "memory_limit", lambda: limit)
    explained = explain_exhausted_resource(ImportError("numpy.so: failed to map segment from shared object"))
    assert explained is None if limit is None else limit in str(explained)


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
MESSAGE = (
    "error: MXNet was terminated, probably because memory was full: this process may use 8,192 MiB "
    "(ulimit -v); raise the limit, use fewer --threads, choose a smaller --batch-size or more "
    "--microbatches, or find one that fits with gluonlab find-batch-size BYTES\n"
)


@pytest.mark.parametrize("how", ENDS)
def test_a_limited_process_that_c_ends_says_one_line(python, how):
    result = python("-c", LIMITED + ENDS[how])
    assert (result.returncode, result.stdout) == (6, "")
    lines = result.stderr.splitlines(keepends=True)
    assert [line for line in lines if "free()" not in line] == [MESSAGE]
    assert len(lines) - 1 == (how == "memory that was freed twice")  # glibc's own line


FORKED = """
if os.fork() == 0:
    os.abort()
_, status = os.wait()
assert os.WTERMSIG(status) == signal.SIGABRT
sys.exit(3)
"""
UNLIMITED = LIMITED.replace("resource.setrlimit(resource.RLIMIT_AS, (2**33, 2**33))", "")


@pytest.mark.parametrize(
    ("code", "status", "output"),
    [(f"{LIMITED}print('done')", 0, "done\n"), (LIMITED + FORKED, 3, ""), (UNLIMITED + ENDS["abort"], -6, "")],
    ids=["ends by itself", "a fork dies", "no limit"],
)
def test_other_ends_say_nothing(code, status, output, python):
    result = python("-c", code)
    assert (result.returncode, result.stdout, result.stderr) == (status, output, "")


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
    result = python("-c", LIMITED + full)
    assert (result.returncode, result.stdout, result.stderr) == (0, f"{2**20}\n", "")
