import time

from mxnet import nd


def seconds_of(work):
    """Call work(), which queues operations, once; return the seconds until they are done."""
    nd.waitall()  # what was queued before is not to be counted
    began = time.perf_counter()
    work()
    nd.waitall()
    return time.perf_counter() - began
