"""MXNet's profiler, also after earlier recordings."""

import pytest

BEFORE = """
import mxnet as mx, sys
mx.profiler.set_config(filename=sys.argv[1], profile_memory=True)
mx.profiler.set_state("run")
mx.nd.ones((2,)).wait_to_read()
mx.profiler.set_state("stop")
mx.profiler.dump(finished=False)
"""
OURS = """
import gluonlab, mxnet as mx
from gluonlab.timeline import mxnet_profiler as profiler
profiler.start_recording()
mx.nd.ones((3,)).wait_to_read()
events = profiler.take_events()
print(sorted((e["pid"], e["args"]["name"]) for e in events if e["ph"] == "M"
             and e["args"]["name"].split("/")[0] in ("cpu", "gpu")))
print(any(e["ph"] == "B" for e in events))
"""


@pytest.mark.long
def test_rows_keep_their_names_in_later_traces(python, tmp_path):
    first = python("-c", OURS)
    assert first.returncode == 0, first.stderr
    after = python("-c", BEFORE + OURS, str(tmp_path / "memory.json"))
    assert after.returncode == 0, after.stderr
    assert after.stdout == first.stdout and first.stdout.endswith("True\n")


AGAIN = """
try:
    mx.profiler.set_config(filename="other.json")  # MXNet raises an error, but takes the name
except mx.base.MXNetError:
    profiler.start_recording()
    try:
        profiler.take_events()
    except gluonlab.errors.EngineError as error:
        print(error)
"""


def test_configuring_the_profiler_after_a_recording_is_an_error_in_the_next(python):
    result = python("-c", OURS + AGAIN)
    assert result.stdout.splitlines()[2:] == [
        "MXNet's profiler can be configured only once per process, and this process has already done "
        "so: record in a new process, or do not configure it"
    ], result.stderr


BESIDE = """
import gluonlab, mxnet as mx, threading
from gluonlab.timeline import mxnet_profiler as profiler
stopping = threading.Event()

def call():
    ctx = mx.cpu(1)
    while not stopping.is_set():
        mx.nd.ones((4096,), ctx=ctx).asnumpy()

threads = [threading.Thread(target=call) for _ in range(3)]
for thread in threads:
    thread.start()
for _ in range(200):
    profiler.start_recording()
    mx.nd.ones((3,)).wait_to_read()
    profiler.stop_recording()
stopping.set()
for thread in threads:
    thread.join()
print(any(event["ph"] == "B" for event in profiler.take_events()))
"""


def test_recording_may_begin_while_other_threads_are_within_calls_of_mxnet(python):
    result = python("-c", BESIDE)
    assert (result.returncode, result.stdout) == (0, "True\n"), result.stderr
