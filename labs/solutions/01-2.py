import time

from mxnet import nd


def seconds_of(work):
    """Call work() once, and return how many seconds its queued operations take on the devices."""
    nd.waitall()  # what was queued before is not to be counted
    began = time.perf_counter()
    work()
    nd.waitall()
    return time.perf_counter() - began
