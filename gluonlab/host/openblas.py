"""numpy's OpenBLAS: idle threads that soon sleep."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import Iterator

# How long an idle thread looks for work before it sleeps, in 2**x cycles. By default it is some
# 30 ms, after each product of matrices and after the import itself: that takes a core from whatever
# else computes, and doubles the processor time of drawing a picture. 0.4 ms cover the way from one
# product to the next.
VARIABLE, SPIN = "OPENBLAS_THREAD_TIMEOUT", "20"


@contextmanager
def threads_sleep_soon() -> Iterator[None]:
    """Have an OpenBLAS that is loaded in this block told so, unless the user says otherwise.

    OpenBLAS reads the variable when it is loaded; processes that are started later do not get it.
    """
    if VARIABLE in os.environ:
        yield
        return
    os.environ[VARIABLE] = SPIN
    try:
        yield
    finally:
        del os.environ[VARIABLE]
