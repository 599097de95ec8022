"""MXNet's profiler, also where somebody has recorded before."""

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
from gluonlab.timeline import profiler
profiler.start()
mx.nd.ones((3,)).wait_to_read()
events = profiler.events()
print(sorted((e["pid"], e["args"]["name"]) for e in events if e["ph"] == "M"
             and e["args"]["name"].split("/")[0] in ("cpu", "gpu")))
print(any(e["ph"] == "B" for e in events))
"""


def test_rows_have_their_names_where_a_trace_was_written_before(python, tmp_path):
    first = python("-c", OURS)
    assert first.returncode == 0, first.stderr
    after = python("-c", BEFORE + OURS, str(tmp_path / "memory.json"))
    assert after.returncode == 0, after.stderr
    assert after.stdout == first.stdout and first.stdout.endswith("True\n")
