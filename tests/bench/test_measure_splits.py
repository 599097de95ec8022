"""The command measures every split, and counts the bytes that a step queues."""

import json

import pytest
from mxnet import nd
from support.devices import device_spec

from gluonlab.bench import measure_splits, splits
from gluonlab.bench.harness.measurement_command import find_measured_devices
from gluonlab.bench.measure_splits import Message, StepTraffic, _timed_calls
from gluonlab.bench.splits import ONE_F_ONE_B, PIPELINES, SPLIT_NAMES
from gluonlab.collectives.cost_model import traffic
from gluonlab.collectives.named_topologies import make_topology
from gluonlab.collectives.schedule_executor import Executor
from gluonlab.engine.fast_invoke import CopyInto

TINY = splits.Task("LeNet 28x28", "lenet", (1, 28, 28), 6)


def count_bytes(array):
    return array.size * array.dtype(0).itemsize


@pytest.mark.long
def test_the_command_measures_all_splits_and_judges_the_overlap(bench, monkeypatch):
    monkeypatch.setitem(splits.TASKS, "lenet", TINY._replace(global_batch_size=8))
    args = ["strategies", "--model", "lenet", "--devices", device_spec(2), "--rounds", "1", "--json"]
    status, out, err = bench(*args)
    assert (status, err) == (0, "")
    record = json.loads(out)
    values = {series["name"]: series["values"] for series in record["series"]}
    assert all(len(numbers) >= 1 and min(numbers) > 0 for numbers in values.values())
    assert [name for name in values if name.startswith("step")] == [f"step {n}" for n in SPLIT_NAMES]
    for name in PIPELINES:
        assert 0 < values[f"price bubble {name}"][0] < 1 and f"host {name}" in values
    assert {f"memory {name} {device}" for name in SPLIT_NAMES[1:] for device in (0, 1)} <= set(values)
    assert {f"alone interleaved {stage}" for stage in range(4)} <= set(values)
    options = {"network": "lenet", "microbatches": 8}
    assert {name: record["options"][name] for name in options} == options


@pytest.mark.long
def test_the_command_prints_that_a_network_is_too_short(bench):
    args = ["strategies", "--model", "mlp", "--devices", device_spec(3), "--microbatches", "2"]
    status, out, err = bench(*args, "--rounds", "1")
    assert (status, err) == (0, "") and max(map(len, out.split("\n"))) <= 80
    assert "mlp is a chain of 4 layers" in out and "reached" not in out


@pytest.mark.parametrize("devices", [2, pytest.param(3, marks=pytest.mark.long)])
def test_bytes_moved_are_those_that_a_step_queues(devices, monkeypatch):
    queued = []
    init, copy, run = CopyInto.__init__, CopyInto.copy, Executor.run

    def init_and_keep(self, destination):
        init(self, destination)
        self.destination = destination

    def count_copy(self, source):
        if source.context != self.destination.context:
            queued.append(count_bytes(source))
        copy(self, source)

    def count_run(self, *args, **kwargs):
        summed = sum(map(count_bytes, self._arrays[0]))
        queued.extend(rank.sent for rank in traffic(self.schedule, summed))
        run(self, *args, **kwargs)

    monkeypatch.setattr(CopyInto, "__init__", init_and_keep)
    monkeypatch.setattr(CopyInto, "copy", count_copy)
    monkeypatch.setattr(Executor, "run", count_run)
    prepared = list(measure_splits.prepare_splits(TINY, find_measured_devices(device_spec(devices)), devices, 4))
    assert [split.name for split in prepared if split.reason is None] == list(SPLIT_NAMES)
    for split in prepared:
        split.step()
        queued.clear()
        split.step()
        total = sum(queued)
        assert (total > 0) == (split.name != splits.ONE)
        if split.name != splits.ONE:
            assert measure_splits.count_traffic(split).total_bytes == pytest.approx(total), split.name
    nd.waitall()


def test_stages_alone_and_at_once_compute_the_gradients_of_the_step():
    prepared = measure_splits.prepare_splits(TINY, find_measured_devices(device_spec(2)), 2, 3)
    [gpipe] = [split for split in prepared if split.name == "gpipe"]  # keeps the activations of all microbatches
    [pipeline] = gpipe.staged_strategy.pipelines
    _, forward_and_backward = next(gpipe.staged_strategy.phases(gpipe.batch))
    forward_and_backward()
    grads = [stage.grads for stage in pipeline.compiled_stages]
    expected = [{name: grad.asnumpy() for name, grad in stage_grads.items()} for stage_grads in grads]
    assert len(grads) == 2 and all(expected)

    def check_gradients(calls, stages):
        for stage in stages:
            for grad in grads[stage].values():
                grad[:] = -1
        for call in calls:
            call()
        for stage in stages:
            for name, grad in grads[stage].items():
                assert (grad.asnumpy() == expected[stage][name]).all()

    timed = dict(_timed_calls({ONE_F_ONE_B: gpipe}))  # the calls that are timed for the pipeline of this name
    check_gradients([timed["at once"]], [0, 1])
    for stage in range(2):
        check_gradients(gpipe.make_program().passes(stage), [stage])
        check_gradients([timed[f"alone gpipe {stage}"]], [stage])


def test_messages_cost_latency_and_bytes_on_the_slowest_link_of_their_route():
    topology = make_topology("p3.16xlarge", 4)
    # 0-1 have one NVLink, 0-3 two: 25 GB/s each, and 10 µs to start
    slow, fast = Message(0, 1, 25_000), Message(0, 3, 25_000)
    assert (slow.seconds(topology), fast.seconds(topology)) == pytest.approx((11e-6, 10.5e-6))
    traffic = StepTraffic(4, [slow, fast], [])
    assert traffic.seconds(topology) == pytest.approx(21.5e-6) and traffic.total_bytes == 50_000
    assert StepTraffic(4, [], [1000, 3000]).total_bytes == 2 * 3 * 4000  # 2 (n-1) S for a sum of S bytes
