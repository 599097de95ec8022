"""What each library says of memory that is used up is one line, which names whose memory it is."""

import pytest
from mxnet.base import MXNetError

from gluonlab.host.limits import used_up

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
    explained = str(used_up(MXNetError(f'Traceback (most recent call last):\n  File "x"\n{said}')))
    assert explained.startswith("there is not enough memory: ") and "\n" not in explained
    assert ("a GPU's is full" in explained) == (said in OF_A_GPU)
    for option in ("--batch-size", "--microbatches", "--find-batch-size"):
        assert option in explained


def test_other_errors_are_not_taken_for_it():
    assert used_up(MXNetError("Check failed: shape_is_known(shape)")) is None
