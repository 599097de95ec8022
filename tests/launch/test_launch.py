"""python -m gluonlab.launch by real processes: the training of one process with all devices."""

import json
import re

import numpy as np
import pytest
from support import launcher
from support.idx_files import write_mnist
from support.launched import each_slow_backend, option_words, parameter_vectors, run_launches
from support.launcher import PATIENCE_OPTIONS
from support.reference import relative_distance

from gluonlab import TrainConfig
from gluonlab.runs import run_schema
from gluonlab.runs.run_reader import read_lines, read_runs
from gluonlab.training.evaluate_run import evaluate_run
from gluonlab.training.loop import train
from gluonlab.training.reporter import Reporter

# Batches of 12, 12, 12, 12 and 1 image: of the last, one of four devices has a shard, and one
# process none. Ten steps.
TRAIN, GLOBAL_BATCH, EPOCHS = 49, 12, 2
OPTIONS = dict(
    dataset="fashion-mnist", global_batch_size=GLOBAL_BATCH, epochs=EPOCHS, lr=0.01, momentum=0.9, wd=1e-3,
    lr_schedule="cosine", warmup_epochs=0.5, clip_norm=0.5, label_smoothing=0.1, crop_padding=2, mixup=0.4,
    microbatches=2, kvstore="ring", seed=3,
)  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_mnist(folder, train=TRAIN, test=7)
    return folder


@pytest.mark.parametrize(
    "other", [("--lr", "0.5"), pytest.param(("--epochs", "2"), marks=pytest.mark.long)], ids=" ".join
)
@each_slow_backend
def test_processes_with_other_options_end_with_the_first_difference(backend, other, tmp_path):
    """Whoever has started them: with other epochs one would wait for the other for ever."""
    run = ["--model", "mlp", "--dataset", "synthetic", "--lr", "0.1", "--epochs", "1"]
    own = {1: other, 0: ("--devices", "cpu:0")}  # each process may use any devices
    processes = run_launches(backend, tmp_path, *run, of_rank=own)
    errors = "".join(process.err for process in processes)
    assert [process.status for process in processes] == [2, 2], errors
    name, value = other
    both = f"{name} {float(run[run.index(name) + 1]):g}", f"{name} {float(value):g}"
    # the parameter server numbers its workers as they come
    messages = [f"rank 0 has {a}, and rank 1 has {b}: start all" for a, b in (both, both[::-1])]
    assert any(errors.count(message) == 2 for message in messages)


@pytest.mark.parametrize("model", ["resnet8", pytest.param("lenet", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("backend", "by_launcher"),
    [
        ("dist_sync", True),
        pytest.param("dist_sync", False, marks=pytest.mark.long),
        pytest.param("dist_device_sync", False, marks=pytest.mark.long),
        pytest.param("horovod", False, marks=pytest.mark.horovod),
    ],
)
def test_two_processes_with_two_devices_train_as_one_with_four(backend, by_launcher, model, data, tmp_path):
    """Cosine, clipping, mixup, microbatches, running statistics, and a process with idle devices;
    the run's folder is as good as any: it is read, reported, evaluated and exported.
    """
    folder, options = tmp_path / "many", {**OPTIONS, "model": model, "data_dir": str(data)}
    words = option_words(**options, devices="cpu*2", out=folder, confusion=True, export="mxnet")
    if by_launcher:
        request = ["-n", 2, "--servers", 2, "--backend", backend, *PATIENCE_OPTIONS, "--", *words]
        with launcher.start_launcher(tmp_path, *request) as many:
            status, text = many.wait_for_exit()
        assert status == 0, text
        assert "accuracy" in text and all(line.startswith("[0] ") for line in text.splitlines())
    else:
        processes = run_launches(backend, tmp_path, *words)
        assert [process.status for process in processes] == [0, 0], processes
        assert sorted("accuracy" in process.out for process in processes) == [False, True]  # only rank 0 prints
    one = train(TrainConfig(**options, devices="cpu*4", out=str(tmp_path / "one")), reporter=Reporter())
    assert relative_distance(parameter_vectors(folder), parameter_vectors(one.run_dir)) <= 1e-5

    lines, expected = read_lines(folder), read_lines(one.run_dir)
    [confusion] = [line for line in lines if isinstance(line, run_schema.ConfusionEvent)]
    lines.remove(confusion)
    assert [type(line) for line in lines] == [type(line) for line in expected]
    steps = [line for line in lines if isinstance(line, run_schema.Step)]
    assert [step.images for step in steps] == [12, 12, 12, 12, 1] * EPOCHS
    for ours, theirs in zip(lines, expected):
        if isinstance(ours, (run_schema.Step, run_schema.Epoch)):
            names = ("step", "epoch", "images", "lr")
            assert [getattr(ours, name) for name in names] == [getattr(theirs, name) for name in names]
            assert ours.loss == pytest.approx(theirs.loss, rel=1e-5)
    [*_, done] = [line for line in lines if isinstance(line, run_schema.Epoch)]
    assert done.val_accuracy == one.val_accuracy

    settings = json.loads((folder / run_schema.CONFIG).read_text())["settings"]
    expected_settings = {
        "processes": 2, "backend": backend, "kvstore": "ring", "global_batch_size": GLOBAL_BATCH,
        "learning_rate": one.plan.settings()["learning_rate"],
    }  # fmt: skip
    assert expected_settings.items() <= settings.items()
    again = evaluate_run(str(folder), devices="cpu")
    assert again.score.accuracy == done.val_accuracy
    assert np.array(confusion.matrix).sum() == again.score.images == 7
    assert {path.name for path in folder.iterdir()} >= {run_schema.CURVES, run_schema.CONFUSION, run_schema.EXPORT}


@pytest.mark.parametrize(
    "split",
    [
        {"strategy": "pipeline", "pipeline_parallel": 2},
        pytest.param({"strategy": "layers", "pipeline_parallel": 2, "balance": "time"}, marks=pytest.mark.long),
        pytest.param({"strategy": "tensor", "tensor_parallel": 2}, marks=pytest.mark.long),
    ],
    ids=lambda split: split["strategy"],
)
@each_slow_backend
def test_two_processes_with_a_split_network_each_train_as_one(backend, split, data, tmp_path):
    folder, options = tmp_path / "many", {**OPTIONS, "model": "lenet", "data_dir": str(data)}
    processes = run_launches(backend, tmp_path, *option_words(**options, **split, devices="cpu*2", out=folder))
    assert [process.status for process in processes] == [0, 0], processes
    one = train(TrainConfig(**options, devices="cpu*2", out=str(tmp_path / "one")), reporter=Reporter())
    assert relative_distance(parameter_vectors(folder), parameter_vectors(one.run_dir)) <= 1e-5


@pytest.mark.long
def test_processes_that_would_cut_the_network_into_different_numbers_of_stages_end(data, tmp_path):
    ended = run_launches(
        "dist_sync", tmp_path, *option_words(strategy="layers", model="lenet", data_dir=data,
        dataset="fashion-mnist"), of_rank={0: ["--devices", "cpu*2"], 1: ["--devices", "cpu*3"]},
    )  # fmt: skip
    assert [process.status for process in ended] == [2, 2], ended
    for process in ended:
        numbers = "2, 3", "3, 2"  # the scheduler numbers the processes
        starts = [
            f"--strategy layers: the processes split the model over different numbers of devices, {each}: "
            "use --pipeline-parallel, or the same number of devices in each process"
            for each in numbers
        ]
        assert any(start in process.err for start in starts), process.err


@each_slow_backend
def test_a_loss_that_diverges_ends_all_processes_with_the_step(backend, data, tmp_path):
    folder = tmp_path / "run"
    options = dict(dataset="fashion-mnist", data_dir=data, model="mlp", optimizer="sgd", lr=1e9)
    ended = run_launches(
        backend, tmp_path, *option_words(**options, global_batch_size=6, epochs=2, devices="cpu*2"), "--out", folder
    )
    assert [process.status for process in ended] == [1, 1], ended
    [errors] = {tuple(re.findall("^error: .*", process.err, re.M)) for process in ended}  # the same in all
    step = int(re.search(r"^error: the loss .* at step (\d+)\b", *errors)[1])
    metrics = (folder / run_schema.METRICS).read_text()
    lines = [json.loads(line, parse_constant=pytest.fail) for line in metrics.splitlines()]  # without NaN
    assert [line["step"] for line in lines[:-1]] == list(range(1, step))
    assert lines[-1]["event"] == "diverged" and f"step {step}" in lines[-1]["message"]
    assert not (folder / run_schema.PARAMETERS).exists()
    [run] = read_runs([folder])
    assert run.devices == 4 and run.epochs == []
