"""The rows of bench peers: they do the same work, and what is said of them follows from it."""

import importlib.util
import os
from dataclasses import replace

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon, nd
from support.bench_command import measured
from support.devices import devices

from benchmarks import peers
from benchmarks.classic_loop import lenet, train_batch
from gluonlab.bench.harness.record import Record, Series
from gluonlab.bench.harness.rounds import Measurement, image_rates
from gluonlab.bench.harness.table import ThroughputRow
from gluonlab.bench.harness.workers import Worker, child_environment
from gluonlab.data.loading.shards import whole
from gluonlab.host.resources import LIMIT
from gluonlab.kvstores import make_kvstore
from gluonlab.models import get_model
from gluonlab.parallel.data.strategy import DataParallelStep
from gluonlab.update.trainer import BucketedTrainer

TASK = peers.COMPARISONS["lenet"].task
TARGETS = peers.LENET_TARGETS["AVX2"]
REFERENCE = peers.lenet()[0].name


def rows_of(measurements):
    return peers.make_rows(image_rates(measurements))


def test_ratios_are_medians_of_each_rounds_ratio():
    # 128 * 10 images in 1, 2, 4 s; the peer does half as many steps in 1, 4, 2 s
    rows = rows_of([measured(REFERENCE, 10, [1, 2, 4]), measured("classic", 5, [1, 4, 2])])
    assert (rows[0].images_per_second, rows[0].lowest, rows[0].highest, rows[0].ratio) == (
        640,
        320,
        1280,
        1,
    )
    assert (rows[1].images_per_second, rows[1].lowest, rows[1].highest) == (320, 160, 640)
    assert rows[1].ratio == 2  # the median of 1280/640, 640/160 and 320/320
    assert peers.verdicts(TARGETS, rows) == [
        "2 devices >= 2.5x the classic loop: 2.00x not reached",
        "2 devices >= 1.1x the best PyTorch row: not measured",
        "2 devices >= 1.8x gluonlab 1 device 1 thread: not measured",
    ]


def test_the_best_pytorch_row_is_the_one_that_counts():
    rows = [
        ThroughputRow(name, name, ratio=ratio)
        for name, ratio in [("torch-eager", 1.3), ("torch-ddp", 1.05), ("classic", 2.6)]
    ]
    assert peers.verdicts(TARGETS, rows)[0].endswith("2.60x reached")
    assert peers.verdicts(TARGETS, rows)[1].endswith("1.05x not reached")


@pytest.mark.parametrize(
    "instructions, classic, torch",
    [("AVX512_CORE", "2.1x", "1.25x"), ("AVX2", "2.5x", "1.1x")],
)
def test_targets_are_those_of_the_instruction_set(instructions, classic, torch):
    speeds = {REFERENCE: 100.0, "classic": 45.0, "torch-eager": 85.0}
    found = tuple(Series(name, name, "images/s", (rate,)) for name, rate in speeds.items())
    about = {"instruction_set": instructions}
    record = Record("peers", {"network": "lenet"}, 1, "t", about, found)
    lines = peers.text(peers.COMPARISONS["lenet"], record, peers.ON_CPUS).splitlines()
    assert lines[-4:-1] == [
        f"Targets with {instructions}:",
        f"2 devices >= {classic} the classic loop: 2.22x "
        + ("reached" if classic == "2.1x" else "not reached"),
        f"2 devices >= {torch} the best PyTorch row: 1.18x "
        + ("reached" if torch == "1.1x" else "not reached"),
    ]
    elsewhere = peers.text(peers.COMPARISONS["lenet"], replace(record, about={}), peers.ON_CPUS)
    assert elsewhere.endswith("Targets are set for AVX512_CORE and AVX2 only.")


@pytest.mark.parametrize(
    "limit, capability", [(None, None), ("ALL", None), ("AVX2", "avx2"), ("SSE41", "default")]
)
def test_a_limit_of_onednn_also_holds_for_pytorchs_operators(monkeypatch, limit, capability):
    monkeypatch.delenv(LIMIT, raising=False)
    if limit:
        monkeypatch.setenv(LIMIT, limit)
    monkeypatch.setattr("benchmarks.peers.instruction_set", _of_avx512)
    for subject in peers.lenet():
        limited = subject.variables.get("ATEN_CPU_CAPABILITY")
        assert limited == (capability if subject.name.startswith("torch") else None)


def _of_avx512():
    """Return the instruction set of a CPU with AVX-512 under the limit."""
    return {"AVX2": "AVX2", "SSE41": "SSE41"}.get(os.environ.get(LIMIT), "AVX512_CORE")


def test_without_torch_its_rows_say_how_to_get_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    missing = [Measurement(subject, reason=subject.missing) for subject in peers.lenet()]
    table = peers.table(TASK, rows_of(missing), rounds=1).split("\n")
    assert (
        sum(
            line.endswith("torch is not installed: pip install 'gluonlab[bench]'") for line in table
        )
        == 4
    )
    assert max(map(len, table)) <= 80


def test_the_classic_loop_and_gluonlabs_step_make_the_same_parameters():
    ctxs = devices(2, threads=1)
    random = np.random.RandomState(1)
    batches = [
        mx.io.DataBatch(
            [nd.array(random.rand(16, 1, 28, 28))], [nd.array(random.randint(0, 10, 16))]
        )
        for _ in range(3)
    ]
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    classic, ours = lenet(), get_model("lenet", 10)
    for net in (classic, ours):
        net.initialize(mx.init.Xavier(), ctx=ctxs)
        net(batches[0].data[0][:1].as_in_context(ctxs[0])).wait_to_read()  # the shapes
    pairs = list(zip(classic.collect_params().values(), ours.collect_params().values()))
    for theirs, mine in pairs:
        mine.set_data(theirs.data(ctxs[0]))

    sgd = {"learning_rate": 0.1}
    trainer = gluon.Trainer(classic.collect_params(), "sgd", sgd, kvstore="local")
    step = DataParallelStep(
        ours,
        loss,
        BucketedTrainer(ours.collect_params(), "sgd", sgd, make_kvstore("device")),
        ctxs,
        lambda F, x: x,
    )
    for batch in batches:
        train_batch(batch, ctxs, classic, loss, trainer)
        arrays = (batch.data[0], batch.label[0].astype("int32"))
        step(whole(*(gluon.utils.split_and_load(array, ctxs) for array in arrays)))
    for theirs, mine in pairs:
        want, got = theirs.data(ctxs[1]).asnumpy(), mine.data(ctxs[1]).asnumpy()
        assert np.linalg.norm(got - want) <= 1e-5 * np.linalg.norm(want)


@pytest.mark.torch
def test_pytorch_trains_alone_and_as_two_processes(tmp_path):
    for name in ("torch-eager", "torch-ddp"):
        subject = next(subject for subject in peers.lenet() if subject.name == name)
        worker = Worker(
            subject.command(), child_environment(subject.variables, tmp_path), tmp_path / "log"
        )
        try:
            worker.answer(90)
            # log(10) for ten classes that nothing tells apart
            assert 2.2 < worker.ask({"steps": 2}, 60)["loss"] < 2.5
        finally:
            worker.end(grace_s=2)
        with pytest.raises(ProcessLookupError):
            os.killpg(worker.pid, 0)
