"""gluonlab.launch where servers update: with processes that wait for each other, and without."""

import json
import re
import signal
import time

import pytest
from support.idx_files import write_mnist
from support.launched import launched, parameters, words
from support.reference import distance
from support.run_files import read_metrics

from gluonlab import TrainConfig
from gluonlab.config import option_name
from gluonlab.errors import ConfigError
from gluonlab.kvstores.groups import SummingGroup
from gluonlab.runs import schema
from gluonlab.training.checks import check_going_on, check_on_servers
from gluonlab.training.loop import train
from gluonlab.training.reporter import Reporter

pytestmark = pytest.mark.cpu_only("the processes compute on CPU devices, whoever started them")
LONG = pytest.mark.long
BOUND = "MXNET_KVSTORE_BIGARRAY_BOUND"
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


def without(folder, kind):
    return [line for line in read_metrics(folder) if line.get("event") == kind]


@LONG
@pytest.mark.parametrize(
    "given",
    [
        {"optimizer": "adam", "lr_schedule": "cosine", "warmup_epochs": 0.5, "microbatches": 2},
        {
            "optimizer": "lamb",
            "wd": 1e-3,
            "no_bias_decay": True,
            "model": "resnet8",
            "global_batch_size": 16,
        },
        {"optimizer": "nag", "momentum": 0.9, "bucket_bytes": 0, "mixup": 0.4},
    ],
    ids=lambda given: given["optimizer"],
)
def test_servers_train_as_one_process_does(given, data, tmp_path):
    """Two processes with two devices, and three servers that share the larger arrays.

    lamb and adam divide by a gradient's size, and make as large a step of one that is next to zero:
    after ten steps of resnet8 with batches of 12, one process alone is 2e-4 (lamb) and 4e-4
    (adam) from itself with a rate that is larger by 1e-7, on whatever update. So batches have a
    power of two images there, and dividing before the sum or after rounds alike.
    """
    used = options(data, **given)
    folder = tmp_path / "many"
    ended = launched(
        "dist_sync", tmp_path, *words(**used, devices="cpu*2", out=folder), "--update-on-servers",
        servers=3, **{BOUND: "5000"},
    )  # fmt: skip
    assert [process.status for process in ended] == [0, 0], ended
    one = train(
        TrainConfig(**used, devices="cpu*4", out=str(tmp_path / "one")), reporter=Reporter()
    )
    assert distance(parameters(folder), parameters(one.run_dir)) <= 1e-5
    assert json.loads((folder / schema.CONFIG).read_text())["settings"]["update_on_servers"]


@pytest.mark.long
def test_processes_that_do_not_wait_see_every_image_once_and_write_how_stale_they_were(
    data, tmp_path
):
    """With a rate of next to nothing the weights stay, so an epoch's loss is that of its images
    under the first weights: that of one process.
    """
    folder, used = tmp_path / "many", options(data, lr=1e-30)
    ended = launched("dist_async", tmp_path, *words(**used, devices="cpu", out=folder))
    assert [process.status for process in ended] == [0, 0], ended
    one = train(TrainConfig(**used, devices="cpu", out=str(tmp_path / "one")), reporter=Reporter())
    found = [line for line in read_metrics(folder) if line["kind"] == "epoch"]
    assert [line["loss"] for line in found] == pytest.approx([e.loss for e in one.history])
    assert [line["validation_loss"] for line in found] == pytest.approx(
        [epoch.validation_loss for epoch in one.history]
    )
    assert [line["images"] for line in found] == [TRAIN, TRAIN]
    steps = [line for line in read_metrics(folder) if line["kind"] == "step"]
    assert [line["images"] for line in steps] == [6, 6, 6, 6, 1] * 2  # of rank 0
    told = without(folder, "staleness")
    assert [sum(line["pushes"]) for line in told] == [2 * 5] * 2  # one array, one server
    assert "staleness" in ended[0].out + ended[1].out


@LONG
@pytest.mark.parametrize("server_count", [1, 2])
def test_processes_that_do_not_wait_learn(server_count, tmp_path):
    folder = tmp_path / "run"
    ended = launched(
        "dist_async", tmp_path, *words(
            dataset="digits", model="mlp", epochs=12, global_batch_size=96, lr=0.003,
            optimizer="adam",
            devices="cpu", out=folder,
        ), count=3, servers=server_count, **{BOUND: "5000"},
    )  # fmt: skip
    assert [process.status for process in ended] == [0] * 3, ended
    [*_, last] = [line for line in read_metrics(folder) if line["kind"] == "epoch"]
    assert last["accuracy"] > 0.8


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
def test_servers_that_cannot_load_gluonlab_are_one_line_at_once(
    backend, more, count, serve, data, tmp_path
):
    ended = launched(
        backend, tmp_path, *words(**options(data), devices="cpu"), *more, count=count,
        servers=count, serve=serve,
    )  # fmt: skip
    assert [process.status for process in ended] == [1] * count, ended
    for process in ended:
        [line] = process.err.splitlines()
        assert line.startswith("error: the servers have loaded mxnet without gluonlab, ")
        assert "start them as python -c 'import gluonlab, mxnet'" in line


@LONG
def test_a_loss_that_diverges_ends_all_that_do_not_wait(data, tmp_path):
    used = options(data, optimizer="sgd", lr=1e9, model="mlp", epochs=3)
    ended = launched("dist_async", tmp_path, *words(**used, devices="cpu", out=tmp_path / "run"))
    assert [process.status for process in ended] == [1, 1], ended
    [said] = {tuple(re.findall("^error: .*", process.err, re.M)) for process in ended}
    assert re.match(r"error: the (loss|parameters) ", said[0])


@LONG
def test_a_signal_to_one_that_does_not_wait_ends_all_with_the_epoch(tmp_path):
    folder = tmp_path / "run"

    def meanwhile(processes):
        until = time.monotonic() + 240
        while not (folder / schema.METRICS).exists() and time.monotonic() < until:
            time.sleep(0.1)
        processes[1].send_signal(signal.SIGTERM)

    ended = launched(
        "dist_async", tmp_path, *words(
            dataset="digits", model="lenet", epochs=300, global_batch_size=96, lr=0.1,
            devices="cpu", out=folder,
        ), meanwhile=meanwhile,
    )  # fmt: skip
    assert [process.status for process in ended] == [128 + signal.SIGTERM] * 2, ended
    assert not (folder / schema.CHECKPOINTS).exists()


def group_that(waits):
    group = SummingGroup(0, 2)
    group.servers, group.waits = 1, waits
    group.name = "dist_sync" if waits else "dist_async"
    return group


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("checkpoint_every", "5 steps"), ("clip_norm", 1.0), ("dtype", "float16"),
        ("on_nan", "skip"), ("compress", "2bit:0.5"), ("kvstore", "sharded-optimizer"),
        ("split", "layers"),
    ],
)  # fmt: skip
def test_what_cannot_be_where_servers_update_is_refused_with_the_reason(name, value, waits):
    config = TrainConfig(update_on_servers=waits, **{name: value})
    who = "--update-on-servers" if waits else "--backend dist_async"
    with pytest.raises(ConfigError) as raised:
        check_on_servers(config, group_that(waits))
    said = str(raised.value)
    assert said.startswith(f"{option_name(name)} ") and f" and {who} contradict" in said
    assert "\n" not in said
    check_on_servers(config.replace(update_on_servers=False), group_that(True))


def test_replicas_are_not_compared_where_they_differ():
    with pytest.raises(ConfigError, match=r"^--check-replicas 3 and --backend dist_async .* wait"):
        check_on_servers(TrainConfig(check_replicas=3), group_that(False))
    check_on_servers(TrainConfig(check_replicas=3, update_on_servers=True), group_that(True))


@pytest.mark.parametrize("option", ["--resume runs/one", "--autoresume"])
def test_a_run_does_not_go_on_where_servers_update(option):
    with pytest.raises(ConfigError, match=f"^{option} and --backend dist_async .* states"):
        check_going_on(option, TrainConfig(), group_that(False))
    check_going_on(option, TrainConfig(), group_that(True))
