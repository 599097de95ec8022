"""Servers that update: by the same numbers as workers do, and what staleness they tell."""

import json
import re
import signal
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import served
from support.idx_files import write_mnist
from support.launched import option_words, parameter_vectors, run_launches
from support.parameter_server import kill_processes, start_servers
from support.reference import relative_distance
from support.run_files import read_metrics
from support.waiting import wait_until

from gluonlab import TrainConfig
from gluonlab.config import option_name
from gluonlab.errors import ConfigError
from gluonlab.kvstores.process_groups import SummingGroup
from gluonlab.optimizers.optimizer_registry import OPTIMIZERS
from gluonlab.runs import run_schema
from gluonlab.training.config_checks import check_can_resume, check_server_update_options
from gluonlab.training.loop import train
from gluonlab.training.reporter import Reporter

pytestmark = pytest.mark.cpu_only("the processes compute on CPU devices, whoever started them")
LONG = pytest.mark.long
BOUND = "MXNET_KVSTORE_BIGARRAY_BOUND"  # elements from which an array is cut over all servers


def make_case(**given):
    return {
        "backend": "dist_sync", "optimizer": "sgd", "devices": 1, "on_servers": True,
        "steps": 12, "lr": 0.1, "more": {}, "bucket_bytes": 400, **given,
    }  # fmt: skip


def run_workers(folder, workers, server_count, how, bound=100):
    """Return the weights of each worker at the end, and the histogram of staleness that rank 0 has."""
    with start_servers(workers, servers=server_count, **{BOUND: str(bound)}) as (environments, _):
        started = [
            subprocess.Popen([sys.executable, served.__file__, str(folder), json.dumps(how)], env=environment)
            for environment in environments
        ]
        try:
            assert [process.wait(240) for process in started] == [0] * workers
        finally:
            kill_processes(started)
    weights = [np.load(str(folder / f"{rank}.npy")) for rank in range(workers)]
    return weights, json.loads((folder / "staleness.json").read_text())


def check_weights(weights, expected):
    """Check that all workers have the same bits, close to the expected weights."""
    assert all((each == weights[0]).all() for each in weights)
    assert relative_distance([weights[0]], [expected]) <= 1e-5


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@LONG
def test_servers_update_as_workers_do(optimizer, tmp_path):
    """A warm-up and a cosine, weight decay for some parameters, ragged batches, workers without
    images, arrays that are cut over three servers and others that are not.
    """
    more = {"momentum": 0.9} if OPTIMIZERS[optimizer].momentum else {}
    how = make_case(optimizer=optimizer, more=more, lr=0.01)
    weights, staleness = run_workers(tmp_path, 2, 3, how)
    expected = served.train_reference(2, how)
    assert staleness is None
    check_weights(weights, expected)


@LONG
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    workers=st.integers(1, 4),
    server_count=st.integers(1, 3),
    bound=st.sampled_from([10, 100, 10**6]),
    options=st.fixed_dictionaries({
        "devices": st.integers(1, 2), "bucket_bytes": st.sampled_from([0, 400, 10**6]), "on_servers": st.booleans(),
        "optimizer": st.sampled_from(["sgd", "nadam", "lamb"]),
        "backend": st.sampled_from(["dist_sync", "dist_device_sync"]),
    }),
)  # fmt: skip
def test_any_number_of_workers_and_servers_makes_the_same_update(
    tmp_path_factory, workers, server_count, bound, options
):
    how = make_case(**options, steps=6)
    weights, _ = run_workers(tmp_path_factory.mktemp("run"), workers, server_count, how, bound)
    expected = served.train_reference(workers, how)
    check_weights(weights, expected)


@pytest.mark.long
def test_workers_that_do_not_wait_end_with_the_same_weights_and_every_push_is_told(tmp_path):
    """The bits of one are those of all after they have met; each push has met some others'."""
    how = make_case(backend="dist_async", more={"momentum": 0.9})
    weights, staleness = run_workers(tmp_path, 3, 2, how)
    assert all((each == weights[0]).all() for each in weights)
    assert np.isfinite(weights[0]).all()
    pushes = how["steps"] * 3
    assert sum(staleness) % pushes == 0  # of each array at each server that has some of it
    parts = sum(staleness) // pushes
    # others can have made no more updates in between than they make at all
    assert parts >= 1 and len(staleness) - 1 <= pushes * 2 // 3


def test_rank_0_is_told_the_staleness_whatever_number_mxnet_gives_it(tmp_path):
    """A launcher tells the workers their ranks; MXNet's scheduler counts them as they come."""
    how = make_case(backend="dist_async", steps=4, turned_round=True)
    weights, staleness = run_workers(tmp_path, 2, 2, how)
    assert (weights[0] == weights[1]).all()
    assert staleness is not None and sum(staleness) % (how["steps"] * 2) == 0


@LONG
@pytest.mark.parametrize("server_count", [1, 3])
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "lamb"])
def test_a_worker_that_does_not_wait_for_others_and_has_none_updates_as_if_alone(optimizer, server_count, tmp_path):
    how = make_case(backend="dist_async", optimizer=optimizer, lr=0.01)
    [weights], staleness = run_workers(tmp_path, 1, server_count, how)
    assert relative_distance([weights], [served.train_reference(1, how)]) <= 1e-5
    assert len(staleness) == 1  # nobody else has updated anything


@pytest.mark.parametrize("server_count", [1, 2])
def test_staleness_is_the_number_of_others_updates_since_the_last_pull(server_count):
    """The rule of a server is called as MXNet's server calls it; what is expected is counted by
    hand.
    """
    from mxnet import nd

    from gluonlab.optimizers import make_optimizer
    from gluonlab.optimizers.server_optimizer import (
        FlatLayout,
        Piece,
        ServerOptimizer,
        assigned_server,
        initial_staleness_report,
    )

    first = 2**16 + 7
    flat = FlatLayout(4, server_count, (Piece(0, 0, 4),))
    copies = {first + 10 + rank: (first, rank) for rank in range(3)}
    notes = {key: assigned_server(key, server_count) for key in range(first + 20, first + 20 + server_count)}
    rule = ServerOptimizer(make_optimizer("sgd", {"learning_rate": 1.0}), {first: flat}, copies, notes)
    weight_arrays = {key: nd.zeros(4) for key in (first, *copies)}
    note_arrays = {key: nd.array(initial_staleness_report(server_count)).reshape((-1,)) for key in notes}

    def push(key, value):
        array = weight_arrays[key] if key in weight_arrays else note_arrays[key]
        rule.update_multi_precision(key, array, nd.full(array.shape, value), None)

    def note():
        key = next(key for key, place in notes.items() if place == 0)
        push(key, 0)
        return note_arrays[key].asnumpy().reshape((server_count, -1))[0, 2:].astype(int).tolist()

    note()
    push(first, 0)  # which shows the rule the weights
    order = [0, 1, 0, 2, 1, 1, 2]  # 0: 0; 1: 1; 0: 1; 2: 3; 1: 2; 1: 0; 2: 2
    for number, rank in enumerate(order, start=1):
        push(first + 10 + rank, 1)
        expected = [-number] * 4
        assert weight_arrays[first + 10 + rank].asnumpy().tolist() == expected
        assert weight_arrays[first].asnumpy().tolist() == expected
    assert note()[:5] == [2, 2, 2, 1, 0]
    push(first + 10, 1)  # the note was a meeting: rank 0 has the weights as they are
    assert note()[:2] == [1, 0]


# Batches of 12, 12, 12, 12 and 1 image: of the last, one process has none.
TRAIN, GLOBAL_BATCH = 49, 12


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_mnist(folder, train=TRAIN, test=7)
    return folder


def options(data, **given):
    return {
        "dataset": "fashion-mnist", "data_dir": str(data), "global_batch_size": GLOBAL_BATCH,
        "epochs": 2, "model": "lenet", "lr": 0.01, "seed": 3, **given,
    }  # fmt: skip


@LONG
@pytest.mark.parametrize(
    "given",
    [
        {"optimizer": "adam", "lr_schedule": "cosine", "warmup_epochs": 0.5, "microbatches": 2},
        {"optimizer": "lamb", "wd": 1e-3, "no_bias_decay": True, "model": "resnet8", "global_batch_size": 16},
        {"optimizer": "nag", "momentum": 0.9, "bucket_bytes": 0, "mixup": 0.4},
    ],
    ids=lambda given: given["optimizer"],
)
def test_servers_train_as_one_process_does(given, data, tmp_path):
    """Two processes with two devices, and three servers that share the larger arrays.

    LAMB divides by the size of a gradient, so a rounding error in a gradient near zero makes a
    large difference. The bound is therefore four times what a learning rate that is 1e-7 larger
    changes in the run of one process.
    """
    used = options(data, **given)
    folder = tmp_path / "many"
    processes = run_launches(
        "dist_sync", tmp_path, *option_words(**used, devices="cpu*2", out=folder), "--update-on-servers",
        servers=3, **{BOUND: "5000"},
    )  # fmt: skip
    assert [process.status for process in processes] == [0, 0], processes

    def train_in_one_process(name, **changed):
        config = TrainConfig(**{**used, **changed}, devices="cpu*4", out=str(tmp_path / name))
        return parameter_vectors(train(config, reporter=Reporter()).run_dir)

    expected = train_in_one_process("one")
    nearby = train_in_one_process("nearby", lr=used["lr"] * (1 + 1e-7))
    bound = max(1e-5, 4 * relative_distance(nearby, expected))
    assert relative_distance(parameter_vectors(folder), expected) <= bound
    assert json.loads((folder / run_schema.CONFIG).read_text())["settings"]["update_on_servers"]


@pytest.mark.long
def test_processes_that_do_not_wait_see_every_image_once_and_write_how_stale_they_were(data, tmp_path):
    """With a rate of next to nothing the weights stay, so an epoch's loss is that of its images
    under the first weights: that of one process.
    """
    folder, used = tmp_path / "many", options(data, lr=1e-30)
    processes = run_launches("dist_async", tmp_path, *option_words(**used, devices="cpu", out=folder))
    assert [process.status for process in processes] == [0, 0], processes
    one = train(TrainConfig(**used, devices="cpu", out=str(tmp_path / "one")), reporter=Reporter())
    epochs = [line for line in read_metrics(folder) if line["kind"] == "epoch"]
    for name in ("loss", "val_loss"):
        assert [line[name] for line in epochs] == pytest.approx([getattr(epoch, name) for epoch in one.history])
    assert [line["images"] for line in epochs] == [TRAIN, TRAIN]
    steps = [line for line in read_metrics(folder) if line["kind"] == "step"]
    assert [line["images"] for line in steps] == [6, 6, 6, 6, 1] * 2  # of rank 0
    pushes = [sum(line["pushes"]) for line in read_metrics(folder) if line.get("event") == "staleness"]
    assert pushes == [2 * 5] * 2  # one array, one server
    assert "staleness" in processes[0].out + processes[1].out


@LONG
@pytest.mark.parametrize("server_count", [1, 2])
def test_processes_that_do_not_wait_learn(server_count, tmp_path):
    folder = tmp_path / "run"
    processes = run_launches(
        "dist_async", tmp_path, *option_words(
            dataset="digits", model="mlp", epochs=12, global_batch_size=96, lr=0.003, optimizer="adam",
            devices="cpu", out=folder,
        ), count=3, servers=server_count, **{BOUND: "5000"},
    )  # fmt: skip
    assert [process.status for process in processes] == [0] * 3, processes
    [*_, last] = [line for line in read_metrics(folder) if line["kind"] == "epoch"]
    assert last["val_accuracy"] > 0.8


@pytest.mark.parametrize(
    ("backend", "more", "count"),
    [
        ("dist_async", [], 1),
        pytest.param("dist_async", [], 2, marks=LONG),
        pytest.param("dist_sync", ["--update-on-servers"], 2, marks=LONG),
    ],
)
@pytest.mark.parametrize(
    "serve",
    [
        "import mxnet",  # as SageMaker's image starts them
        pytest.param("import sys; sys.modules['gluonlab'] = None; import mxnet", marks=LONG),
    ],
    ids=["later", "never"],
)
@pytest.mark.long
def test_servers_that_cannot_load_gluonlab_are_one_line_at_once(backend, more, count, serve, data, tmp_path):
    processes = run_launches(
        backend, tmp_path, *option_words(**options(data), devices="cpu"), *more, count=count, servers=count, serve=serve
    )
    assert [process.status for process in processes] == [1] * count, processes
    for process in processes:
        [line] = process.err.splitlines()
        assert line.startswith("error: the servers have loaded mxnet without gluonlab, ")
        assert "start them with python -c 'import gluonlab, mxnet'" in line


@LONG
def test_a_loss_that_diverges_ends_all_that_do_not_wait(data, tmp_path):
    used = options(data, optimizer="sgd", lr=1e9, model="mlp", epochs=3)
    processes = run_launches("dist_async", tmp_path, *option_words(**used, devices="cpu", out=tmp_path / "run"))
    assert [process.status for process in processes] == [1, 1], processes
    [errors] = {tuple(re.findall("^error: .*", process.err, re.M)) for process in processes}
    assert re.match(r"error: the (loss|parameters) ", errors[0])


@LONG
def test_a_signal_to_one_that_does_not_wait_ends_all_with_the_epoch(tmp_path):
    folder = tmp_path / "run"

    def meanwhile(processes):
        wait_until((folder / run_schema.METRICS).exists)
        processes[1].send_signal(signal.SIGTERM)

    processes = run_launches(
        "dist_async", tmp_path, *option_words(
            dataset="digits", model="lenet", epochs=300, global_batch_size=96, lr=0.1, devices="cpu", out=folder,
        ), meanwhile=meanwhile,
    )  # fmt: skip
    assert [process.status for process in processes] == [128 + signal.SIGTERM] * 2, processes
    assert not (folder / run_schema.CHECKPOINTS).exists()


def group_that(waits):
    group = SummingGroup(0, 2)
    group.servers, group.is_synchronous = 1, waits
    group.name = "dist_sync" if waits else "dist_async"
    return group


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("checkpoint_every", "5 steps"), ("clip_norm", 1.0), ("dtype", "float16"),
        ("on_nan", "skip"), ("compress", "2bit:0.5"), ("kvstore", "sharded-optimizer"), ("strategy", "layers"),
    ],
)  # fmt: skip
def test_what_cannot_be_where_servers_update_is_refused_with_the_reason(name, value, waits):
    config = TrainConfig(update_on_servers=waits, **{name: value})
    who = "--update-on-servers" if waits else "--backend dist_async"
    with pytest.raises(ConfigError, match=f"^{option_name(name)} [^\n]* and {who} contradict[^\n]*$"):
        check_server_update_options(config, group_that(waits))
    check_server_update_options(config.replace(update_on_servers=False), group_that(True))


def test_replicas_are_not_compared_where_they_differ():
    with pytest.raises(
        ConfigError, match=r"^--check-replicas 3 and --backend dist_async .* differ within an epoch: remove"
    ):
        check_server_update_options(TrainConfig(check_replicas=3), group_that(False))
    check_server_update_options(TrainConfig(check_replicas=3, update_on_servers=True), group_that(True))


@pytest.mark.parametrize("option", ["--resume runs/one", "--autoresume"])
def test_a_run_does_not_go_on_where_servers_update(option):
    with pytest.raises(ConfigError, match=f"^{option} and --backend dist_async .* states"):
        check_can_resume(option, TrainConfig(), group_that(False))
    check_can_resume(option, TrainConfig(), group_that(True))
