"""The command measures every split; what it says of bytes is what a step queues."""

import json

import pytest
from mxnet import nd
from support.devices import device_spec

from gluonlab.bench import measure_splits, splits
from gluonlab.bench.harness.measurement_command import find_measured_devices
from gluonlab.bench.measure_splits import _timed_calls
from gluonlab.bench.splits import ONE_F_ONE_B, PIPELINES, SPLIT_NAMES
from gluonlab.collectives.cost_model import traffic
from gluonlab.collectives.named_topologies import make_topology
from gluonlab.collectives.schedule_executor import Executor
from gluonlab.engine.fast_invoke import CopyInto

TINY = splits.Task("LeNet 28x28", "lenet", (1, 28, 28), 6)


def size(array):
    return array.size * array.dtype(0).itemsize


@pytest.mark.long
def test_the_command_measures_all_splits_and_judges_the_overlap(bench, monkeypatch):
    monkeypatch.setitem(splits.TASKS, "lenet", TINY._replace(global_batch_size=8))
    args = ["splits", "--network", "lenet", "--devices", device_spec(2), "--rounds", "1", "--json"]
    status, out, err = bench(*args)
    assert (status, err) == (0, "")
    record = json.loads(out)
    found = {one["name"]: one["values"] for one in record["series"]}
    assert all(len(values) >= 1 and min(values) > 0 for values in found.values())
    assert [name for name in found if name.startswith("step")] == [f"step {n}" for n in SPLIT_NAMES]
    for name in PIPELINES:
        assert 0 < found[f"price bubble {name}"][0] < 1 and f"host {name}" in found
    assert {f"memory {name} {device}" for name in SPLIT_NAMES[1:] for device in (0, 1)} <= set(found)
    assert {f"alone interleaved {stage}" for stage in range(4)} <= set(found)
    options = {"network": "lenet", "microbatches": 8}
    assert {name: record["options"][name] for name in options} == options


@pytest.mark.long
def test_the_command_prints_what_a_network_is_too_short_for(bench):
    args = ["splits", "--network", "mlp", "--devices", device_spec(3), "--microbatches", "2"]
    status, out, err = bench(*args, "--rounds", "1")
    assert (status, err) == (0, "") and max(map(len, out.split("\n"))) <= 80
    assert "mlp is a chain of 4 layers" in out and "reached" not in out


@pytest.mark.parametrize("devices", [2, pytest.param(3, marks=pytest.mark.long)])
def test_bytes_moved_are_those_that_a_step_queues(devices, monkeypatch):
    queued = {"bytes": 0}
    made, run = CopyInto.__init__, Executor.run

    def make(self, destination):
        made(self, destination)
        self.destination = destination

    def copy(self, source):
        if source.context != self.destination.context:
            queued["bytes"] += size(source)
        original(self, source)

    def count(self, *args, **kwargs):
        summed = sum(map(size, self._arrays[0]))
        queued["bytes"] += sum(each.sent for each in traffic(self.schedule, summed))
        run(self, *args, **kwargs)

    original = CopyInto.copy
    monkeypatch.setattr(CopyInto, "__init__", make)
    monkeypatch.setattr(CopyInto, "copy", copy)
    monkeypatch.setattr(Executor, "run", count)
    there = list(measure_splits.prepare_splits(TINY, find_measured_devices(device_spec(devices)), devices, 4))
    assert [way.name for way in there if way.reason is None] == list(SPLIT_NAMES)
    for way in there:
        way.step()
        queued["bytes"] = 0
        way.step()
        if way.name == splits.ONE:
            assert queued["bytes"] == 0
        else:
            assert measure_splits.count_traffic(way).total_bytes == pytest.approx(queued["bytes"]), way.name
            assert queued["bytes"] > 0
    nd.waitall()


def test_stages_alone_and_at_once_compute_the_gradients_of_the_step():
    there = measure_splits.prepare_splits(TINY, find_measured_devices(device_spec(2)), 2, 3)
    # it keeps all microbatches, so that each stage finds what it had
    [way] = [each for each in there if each.name == "gpipe"]
    [pipeline] = way.staged_strategy.pipelines
    _, forward_and_backward = next(way.staged_strategy.phases(way.batch))
    forward_and_backward()
    grads = [part.grads for part in pipeline.compiled_stages]
    expected = [{name: grad.asnumpy() for name, grad in own.items()} for own in grads]
    assert len(grads) == 2 and all(expected)

    def are_computed_by(calls, stages):
        for stage in stages:
            for grad in grads[stage].values():
                grad[:] = -1
        for call in calls:
            call()
        for stage in stages:
            for name, grad in grads[stage].items():
                assert (grad.asnumpy() == expected[stage][name]).all()

    for stage in range(2):
        are_computed_by(way.make_program().passes(stage), [stage])
    timed = dict(_timed_calls({ONE_F_ONE_B: way}))  # what is timed of the pipeline of this name
    are_computed_by([timed["at once"]], [0, 1])
    for stage in range(2):
        are_computed_by([timed[f"alone gpipe {stage}"]], [stage])


def test_messages_cost_latency_and_bytes_on_the_slowest_link_of_their_way():
    topology = make_topology("p3.16xlarge", 4)
    # 0-1 have one NVLink, 0-3 two: 25 GB/s each, and 10 µs to start
    assert measure_splits.Message(0, 1, 25_000).seconds(topology) == pytest.approx(11e-6)
    assert measure_splits.Message(3, 0, 25_000).seconds(topology) == pytest.approx(10.5e-6)
    own = measure_splits.StepTraffic(
        4, [measure_splits.Message(0, 1, 25_000), measure_splits.Message(0, 3, 25_000)], []
    )
    assert own.seconds(topology) == pytest.approx(21.5e-6) and own.total_bytes == 50_000
    # n devices sum S bytes: every algorithm of SUMS's kind sends 2 (n-1) S in all
    assert measure_splits.StepTraffic(4, [], [1000, 3000]).total_bytes == 2 * 3 * 4000
