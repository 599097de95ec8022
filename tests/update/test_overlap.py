"""The first gradients travel while backward still computes the others: seen in MXNet's own
trace.
"""

import bisect
import json

import pytest

pytestmark = pytest.mark.cpu_only("MXNet's trace of CPU devices is read")
TRACED_STEP = """
import sys
import time
from gluonlab.data.loading.batch import whole
from gluonlab.devices import devices
from gluonlab.engine.pieces import overlapping
from gluonlab.kvstores import make_kvstore
from gluonlab.update.trainer import BucketedTrainer
from gluonlab.parallel.data.step import DataParallelStep
from mxnet import gluon, nd, profiler
from mxnet.gluon import nn

store, bucket_bytes, steps, file = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
overlap = sys.argv[5] if len(sys.argv) > 5 else None
ctxs = devices("cpu*2")
net = nn.HybridSequential()
for _ in range(12):
    net.add(nn.Dense(512, activation="relu"))
net.initialize(ctx=ctxs)
net(nd.zeros((1, 512), ctx=ctxs[0]))
params, store = net.collect_params(), make_kvstore(store)
trainer = BucketedTrainer(params, "sgd", {}, store, bucket_bytes=bucket_bytes)
step = DataParallelStep(net, gluon.loss.SoftmaxCrossEntropyLoss(), trainer, ctxs, lambda F, x: x)
xs, ys = [nd.ones((128, 512), ctx=ctx) for ctx in ctxs], [nd.zeros((128,), ctx=ctx) for ctx in ctxs]
with overlapping(overlap):  # graphs are bound in the first step
    for _ in range(2):
        step(whole(xs, ys))
nd.waitall()
profiler.set_config(profile_symbolic=True, profile_imperative=True, filename=file)
profiler.set_state("run")
for _ in range(steps):
    print(time.time_ns() // 1000)
    step(whole(xs, ys))
    nd.waitall()
profiler.set_state("stop")
profiler.dump()
"""
ADDING = {"sharded": ("broadcast_add",), "device": ("ElementwiseSum",)}


STEPS = 10


def traced(python, tmp_path, store, bucket_bytes, *overlap):
    """A list for each step: (name, "B" or "E", microseconds) of each of its operations."""
    file = tmp_path / "trace.json"
    run = python("-c", TRACED_STEP, store, str(bucket_bytes), str(STEPS), str(file), *overlap)
    assert run.returncode == 0, run.stderr
    starts = [int(line) for line in run.stdout.split()]
    assert len(starts) == STEPS
    steps = [[] for _ in starts]
    for event in json.loads(file.read_text())["traceEvents"]:
        if event.get("ph") in ("B", "E"):
            step = bisect.bisect_right(starts, event["ts"]) - 1
            steps[step].append((event["name"], event["ph"], event["ts"]))
    return steps


def first_sum(events, store):
    return min(time for name, phase, time in events if phase == "B" and name in ADDING[store])


def end_of_backward(events):
    return max(time for name, phase, time in events if phase == "E" and "_backward" in name)


def overlaps(steps, store):
    """For each step, does its first sum begin before its backward ends?"""
    return [first_sum(events, store) < end_of_backward(events) for events in steps]


@pytest.mark.parametrize("store", sorted(ADDING))
def test_the_first_bucket_is_summed_before_backward_ends(python, tmp_path, store):
    """At least once: a busy machine may keep the thread that sums waiting in any one step."""
    assert any(overlaps(traced(python, tmp_path, store, 1_100_000), store))


@pytest.mark.long  # what shows that the test above can fail
@pytest.mark.parametrize(
    ("bucket_bytes", "overlap"), [(10**9, "1"), (1_100_000, "off")], ids=["one bucket", "off"]
)
def test_with_one_bucket_or_overlap_off_it_never_is(python, tmp_path, bucket_bytes, overlap):
    steps = traced(python, tmp_path, "sharded", bucket_bytes, overlap)
    assert not any(overlaps(steps, "sharded"))
