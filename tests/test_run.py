"""python -m gluonlab.run: every mistake is one line with its remedy, every result is what it says."""

import dataclasses
import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import mxnet as mx
import pytest
from conftest import clean_environment
from full_disk import full_at
from idx_files import NAMES, write, write_mnist

from gluonlab.config import TrainConfig, option_name
from gluonlab.data import DATASETS
from gluonlab.errors import DivergedError, GluonlabError
from gluonlab.kvstores import KVSTORES
from gluonlab.models import MODELS, get_model
from gluonlab.run import main
from gluonlab.training.loop import train
from gluonlab.training.record import PARAMETERS, read_metrics
from gluonlab.training.reporter import Reporter

pytestmark = pytest.mark.filterwarnings("default::gluonlab.errors.GluonlabWarning")
QUICK = ["--model", "mlp", "--epochs", "1", "--gpus", "2"]


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def the_error(result, folder):
    """The line of a mistake: the only one besides warnings, with exit status 2, and nothing was printed or written."""
    status, out, err = result
    lines = [line for line in err.splitlines() if not line.startswith("warning: ")]
    assert (status, out, len(lines), names(folder)) == (2, "", 1, []), err
    assert lines[0].startswith("error: ")
    return lines[0]


# what is written -> what the line must say: the value, what is possible or what to do
MISTAKES = {
    ("--gpus", "-1"): ["--gpus -1", "a whole number from 1 up"],
    ("--gpus", "two"): ["--gpus two", "a whole number from 1 up"],
    ("--gpus", "0"): ["--gpus 0", "a whole number from 1 up"],
    ("--gpus", ""): ["--gpus ''", "a whole number from 1 up"],
    ("--gpus",): ["--gpus lacks its value", "--gpus N", "--help"],
    ("--gpus", "2", "--require-gpu"): ["2 GPUs required, none here", "gluonlab[cu112]", "without --require-gpu"],
    ("--require-gpu",): ["1 GPU required, none here", "gluonlab[cu112]", "without --require-gpu"],
    ("--require-gpu=yes",): ["--require-gpu takes no value", "--help"],
    ("--require-gpu", "--devices", "cpu*2"): ["--devices cpu*2", "--require-gpu", "name GPUs"],
    ("--require-gpu", "--devices", "2"): ["--devices 2", "--gpus 2"],
    ("--devices", "gpu:0"): ["gpu:0", "here are no GPUs", "gluonlab[cu112]", "cpu*N"],
    ("--devices", "gpu:*"): ["gpu:*", "here are no GPUs", "cpu*N"],
    ("--devices", "cpu:"): ["'cpu:' is no device", "'cpu*4'"],
    ("--devices", "gpu:["): ["'gpu:['", "regular expression", "'gpu:[0-3]'"],
    ("--devices", "cpu*0"): ["'cpu*0'", "give 1 to 256"],
    ("--devices", "tpu"): ["'tpu' is no device", "'gpu:0'"],
    ("--devices", ""): ["--devices is empty", "leave it out"],
    ("--devices", "cpu,gpu"): ["'cpu,gpu'", "give 2"],
    ("--devices", "0"): ["--devices", "0 GPUs", "from 1 up"],
    ("--momentum", "0.9"): ["--momentum 0.9", "adam has no momentum"],
    ("--optimizer", "test"): ["'test'", "sgd"],
    ("--lr", "1e300"): ["1e300", "below 1e+31"],
    ("--compare", "1,1"): ["1,1", "once"],
    ("--kvstore", "rign"): ["'rign'", "choose bidirectional_ring, device, double_tree, "],
    ("--kvstore", "devcie"): ["'devcie'", "did you mean 'device'?"],
    ("--kvstore", "nccl"): ["'nccl'", "choose device or local"],
    ("--model", "resnet"): ["'resnet'", "lenet, lenet-avg, mlp", "gluoncv:NAME", "did you mean 'resnet8'?"],
    ("--model", "gluoncv:alexnett"): ["'gluoncv:alexnett'", "did you mean alexnet, ", "gluoncv:? names all"],
    ("--model", "gluoncv:ssd_512_resnet50_v1_voc"): ["'gluoncv:ssd_512_resnet50_v1_voc'", "resnet50_v1"],
    ("--model", "gluoncv:?"): ["'gluoncv:?'", "choose gluoncv: and one of alexnet, ", "mobilenet1.0, ", "xception71"],
    ("--model", "gluoncv:alexnet"): [
        "gluoncv:alexnet",
        "1x28x28",
        "the smallest square ones that it takes are 1x63x63",
        "--dataset",
    ],
    ("--model", "gluoncv:resnest14"): ["gluoncv:resnest14", "1x28x28", "the smallest square ones that it takes are 3x17x17"],
    ("--pretrained", "missing.params"): ["--pretrained missing.params is no file", "local file"],
    ("--pretrained", "/"): ["--pretrained / is no file", "local file"],
    ("--pretrained", "/dev/null"): ["--pretrained /dev/null is no file"],
    ("--evaluate", "missing"): ["--evaluate missing is no folder", "config.json and parameters.params"],
    ("--evaluate", "."): ["--evaluate . holds no config.json", "config.json and parameters.params"],
    ("--evaluate", "missing", "--compare", "1,2"): ["--evaluate missing", "--compare 1,2", "give one of them"],
    ("--evaluate", "missing", "--lr", "1"): ["--lr is of no use with --evaluate", "leave it out"],
    ("--evaluate",): ["--evaluate lacks its value", "RUN_DIR"],
    ("--dataset", "mnits"): ["'mnits'", "choose cifar10, digits", "did you mean 'mnist'?"],
    ("--dataset", "mnist"): ["mnist", "--data-dir DIR", *NAMES],
    ("--dataset", "mnist", "--data-dir", "missing"): ["--data-dir missing is no folder", *NAMES],
    ("--data-dir", "/data/mnist"): ["digits", "/data/mnist", "leave --data-dir out", "choose mnist"],
    ("--batch-size", "0"): ["--batch-size 0", "a whole number from 1 up"],
    ("--batch-size", "99999999999999999999"): ["--batch-size 99999999999999999999", "a whole number from 1 to"],
    ("--batch-size", "8", "--global-batch-size", "16"): ["--batch-size 8", "--global-batch-size 16", "give one of them"],
    ("--gpus", "2", "--sync-bn"): ["--sync-bn", "lenet has no BatchNorm", "leave it out"],
    ("--find-batch-size", "lots"): ["--find-batch-size lots", "64M"],
    ("--find-batch-size", "1k"): ["--find-batch-size", "a batch of 1 per device needs", "smaller --model"],
    ("--find-batch-size", "1G", "--batch-size", "8"): ["--find-batch-size", "leave --batch-size"],
    ("--find-batch-size", "1G", "--compare", "1,2"): ["--find-batch-size", "--compare", "one of them"],
    ("--microbatches", "0"): ["--microbatches 0", "a whole number from 1 up"],
    ("--microbatch-size", "0"): ["--microbatch-size 0", "a whole number from 1 up"],
    ("--microbatches", "2", "--microbatch-size", "8"): ["--microbatches 2", "--microbatch-size 8", "give one of them"],
    ("--gpus", "2", "--microbatches", "33"): ["--microbatches 33", "32 images (64 in all, 2 devices)", "give 1 to 32"],
    ("--microbatches", "2000", "--batch-size", "9999"): ["--microbatches 2000", "1437 images (1437 in all, 1 device)", "1 to 1437"],
    ("--lr", "nan"): ["--lr nan", "a number above 0"],
    ("--lr", "0"): ["--lr 0", "a number above 0"],
    ("--lr", "fast"): ["--lr fast", "a number above 0"],
    ("--momentum", "1"): ["--momentum 1", "from 0 and below 1"],
    ("--wd", "-1"): ["--wd -1", "from 0 up"],
    ("--epochs", "-3"): ["--epochs -3", "a whole number from 1 up"],
    ("--lr-schedule", "cosinus"): ["--lr-schedule", "'cosinus'", "choose constant, cosine, linear, step", "did you mean 'cosine'?"],
    ("--lr-decay", "0.1"): ["--lr-decay 0.1", "--lr-schedule constant", "choose step"],
    ("--lr-decay-epochs", "3", "--lr-schedule", "cosine"): ["--lr-decay-epochs 3", "--lr-schedule cosine", "choose step"],
    ("--final-lr", "0.1", "--lr-schedule", "step"): ["--final-lr 0.1", "choose cosine or linear"],
    ("--final-lr", "3", "--lr-schedule", "linear"): ["--final-lr 3", "above the learning rate 0.002", "smaller"],
    ("--lr-schedule", "step", "--lr-decay-epochs", "3,x"): ["--lr-decay-epochs 3,x", "10,20"],
    ("--lr-schedule", "step", "--lr-decay-epochs", "5,3"): ["--lr-decay-epochs 5,3", "in order"],
    ("--lr-schedule", "step", "--lr-decay-epochs", "3,10"): ["--lr-decay-epochs 3,10", "over after 10", "--epochs"],
    ("--lr-schedule", "step", "--lr-decay-epochs", "1", "--warmup-epochs", "2"): ["--lr-decay-epochs 1", "warm-up takes 2"],
    ("--lr-schedule", "cosine", "--optimizer", "adadelta"): ["--lr-schedule cosine", "adadelta uses no learning rate", "sgd"],
    ("--warmup-epochs", "1", "--optimizer", "LBSGD"): ["--warmup-epochs", "lbsgd", "sgd"],
    ("--warmup-epochs", "10"): ["--warmup-epochs 10", "the run's 10", "fewer"],
    ("--warmup-epochs", "-1"): ["--warmup-epochs -1", "from 0 up"],
    ("--no-bias-decay",): ["--no-bias-decay", "weight decay is 0", "--wd"],
    ("--clip-norm", "0"): ["--clip-norm 0", "a number from 1e-30"],
    ("--mixup", "-0.1"): ["--mixup -0.1", "a number from 0 up"],
    ("--mixup", "inf"): ["--mixup inf", "a number from 0 up"],
    ("--label-smoothing", "1"): ["--label-smoothing 1", "from 0 and below 1"],
    ("--compress", "1bit"): ["--compress 1bit", "2bit:0.5"],
    ("--compress", "2bit:none"): ["--compress 2bit:none", "the threshold none"],
    ("--compress", "2bit:0.5", "--kvstore", "local"): ["--compress 2bit:0.5", "'local' cannot compress", "choose device"],
    ("--compress", "2bit:0.5", "--kvstore", "ring"): ["--compress 2bit:0.5", "'ring' cannot compress", "choose device"],
    ("--seed", "4294967296"): ["--seed 4294967296", "from 0 to 4294967295"],
    ("--resident-bytes", "lots"): ["--resident-bytes lots", "64M"],
    ("--optimizer", "sdg"): ["'sdg'", "choose", "adam", "did you mean 'sgd'?"],
    ("--optimizer", "adam", "--momentum", "0.9"): ["--momentum 0.9", "adam has no momentum", "sgd"],
    ("--out", "/proc/gluonlab"): ["--out /proc/gluonlab", "cannot be written", "choose another place"],
    ("--out", "/sys/gluonlab"): ["--out /sys/gluonlab", "cannot be written", "choose another place"],
    ("--out", "/dev/null"): ["--out /dev/null is a file", "give a folder"],
    ("--out", "/dev/null/run"): ["--out /dev/null/run", "cannot be written", "choose another place"],
    ("--out", "/"): ["--out / is not empty", "give a new folder"],
    ("--gpu", "2"): ["'--gpu'", "--gpus", "did you mean '--gpus'?"],
    ("-g", "2"): ["'-g'", "choose", "--gpus"],
    ("2",): ["unexpected '2'", "write options only, such as --gpus N", "--help"],
    ("mnist", "2"): ["'mnist 2'", "options only", "--help"],
    ("--gpus", "1", "--devices", "cpu"): ["--gpus 1", "--devices cpu", "give one of them"],
    ("--threads", "2", "--gpus", "2"): ["--threads 2", "2 CPU devices", "leave it out"],
    ("--threads", "0"): ["--threads 0", "from 1 to 1024"],
    ("--compare", "1"): ["--compare 1", "1,2"],
    ("--compare", "x"): ["--compare x", "1,2"],
    ("--compare", "0,2"): ["--compare 0,2", "1,2"],
    ("--compare", "1,2", "--gpus", "2"): ["--compare", "leave --gpus and --devices out"],
    ("--compare", "1,2", "--devices", "cpu"): ["--compare", "leave --gpus and --devices out"],
    ("--compare", "1,2", "--threads", "2"): ["--threads 2", "2 CPU devices", "leave it out"],
    ("--compare", "1,2", "--sync-bn"): ["--sync-bn", "lenet has no BatchNorm", "leave it out"],
    ("--compare", "1,2", "--model", "gluoncv:alexnet"): ["gluoncv:alexnet", "1x28x28", "--dataset"],
    ("--compare", "1,2", "--pretrained", "missing.params"): ["--pretrained missing.params is no file", "local file"],
    ("--compare", "1,2", "--kvstore", "sharded-optimizer", "--optimizer", "lamb"): ["LAMB", "choose one of AdaDelta, "],
    ("--gpus", "2", "--kvstore", "sharded-optimizer", "--optimizer", "lamb"): ["LAMB", "Adam, ", "or another kvstore"],
    ("--compare", "1,2", "--out", "/proc/gluonlab"): ["--out /proc/gluonlab", "choose another place"],
}


@pytest.mark.parametrize(("arguments", "said"), MISTAKES.items(), ids=" ".join)
def test_a_mistake_is_one_line_with_value_and_remedy(run, empty_cwd, arguments, said):
    line = the_error(run(*arguments), empty_cwd)
    assert [words for words in said if words not in line] == [], line


def damage(name, change):
    """A data set of which one file was changed: ``change(content)`` -> content."""
    return lambda folder: write(folder / name, change((folder / name).read_bytes()))


IMAGES, LABELS = NAMES[:2]
DAMAGES = {
    "empty folder": (lambda folder: [path.unlink() for path in folder.iterdir()], [*NAMES, "fetch what is missing"]),
    "one file missing": (lambda folder: (folder / LABELS).unlink(), [LABELS, "fetch what is missing"]),
    "truncated": (damage(IMAGES, lambda content: content[:-1]), [IMAGES, "truncated", "fetch it again"]),
    "nothing in it": (damage(LABELS, lambda content: b""), [LABELS, "begins with nothing", "fetch it again"]),
    "wrong magic": (
        damage(IMAGES, lambda content: b"<htm" + content[4:]),
        [IMAGES, "no IDX file", "00 00 08 03", "fetch it again"],
    ),
    "wrong type": (damage(IMAGES, lambda content: b"\0\0\x0d\x03" + content[4:]), [IMAGES, "0x0d", "0x08", "fetch it again"]),
    "labels for images": (damage(IMAGES, lambda content: b"\0\0\x08\x01" + content[4:]), [IMAGES, "1 dimensions, expected 3"]),
    "wrong shape": (
        damage(IMAGES, lambda content: content[:8] + (14).to_bytes(4, "big") + (56).to_bytes(4, "big") + content[16:]),
        [IMAGES, "14x56", "28x28"],
    ),
    "label out of range": (damage(LABELS, lambda content: content[:-1] + b"\x0a"), [LABELS, "label 10 at position 39", "0 to 9"]),
    "fewer labels than images": (
        damage(LABELS, lambda content: content[:7] + b"\x27" + content[8:-1]),
        [LABELS, "39 labels for the 40 images", "fetch it again"],
    ),
    "damaged gzip": (
        lambda folder: [(folder / LABELS).unlink(), (folder / f"{LABELS}.gz").write_bytes(b"\x1f\x8b\x08\0 damaged")],
        [f"{LABELS}.gz", "damaged gzip file", "fetch it again"],
    ),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_data_set_is_one_line_that_names_the_file(run, empty_cwd, tmp_path, kind):
    spoil, said = DAMAGES[kind]
    folder = tmp_path / "data"
    write_mnist(folder)
    spoil(folder)
    line = the_error(run("--dataset", "mnist", "--data-dir", str(folder)), empty_cwd)
    assert [words for words in [str(folder), *said] if words not in line] == [], line


def test_results_of_an_earlier_run_are_not_touched(run, tmp_path):
    folder = tmp_path / "earlier"
    folder.mkdir()
    (folder / "config.json").write_text("results")
    status, _, err = run(*QUICK, "--out", str(folder))
    assert status == 2
    assert f"--out {folder} is not empty: give a new folder" in err
    assert [(path.name, path.read_text()) for path in folder.iterdir()] == [("config.json", "results")]


def test_a_mistake_in_a_real_process_leaves_no_traceback_and_nothing_behind(python, tmp_path):
    result = python("-m", "gluonlab.run", "--kvstore", "rign")
    the_error((result.returncode, result.stdout, result.stderr), tmp_path)


def test_debug_shows_the_traceback(run, empty_cwd):
    with pytest.raises(GluonlabError, match="--gpus 0"):
        main(["--gpus", "0", "--debug"])
    assert names(empty_cwd) == []


def test_a_bug_is_one_line_and_status_1(run, monkeypatch):
    """Whatever else goes wrong: no traceback unless it is asked for."""

    def broken(*args, **kwargs):
        raise ZeroDivisionError("division\nby zero")

    monkeypatch.setattr("gluonlab.training.loop.train", broken)
    status, out, err = run(*QUICK)
    assert (status, out) == (1, "")
    assert err == "error: ZeroDivisionError: division by zero (run again with --debug for the traceback)\n"


# --- what it prints


def test_help_names_every_setting(run):
    status, out, err = run("--help")
    assert (status, err) == (0, "")
    words = " ".join(out.split())
    for field in dataclasses.fields(TrainConfig):
        assert f"{option_name(field.name)} " in words
    for extra in ("--compare", "--evaluate", "--json", "--quiet", "--list", "--debug"):
        assert extra in words
    assert run("-h")[1] == out


def test_list_names_everything_that_can_be_chosen(run):
    status, out, err = run("--list")
    assert (status, err) == (0, "")
    for registry in (MODELS, DATASETS, KVSTORES):
        for name, kind in registry.items():
            assert re.search(rf"^  {re.escape(name)} +{re.escape(kind.summary)}$", out, re.M)


def test_json_is_one_document_and_nothing_else(run, empty_cwd):
    status, out, err = run(*QUICK, "--json", "--out", "run", "--seed", "7")
    assert status == 0
    result = json.loads(out)
    assert result["devices"] == ["cpu(0)", "cpu(1)"]
    assert (result["model"], result["epochs"], result["seed"], result["run_dir"]) == ("mlp", 1, 7, "run")
    [epoch] = [line for line in read_metrics(Path("run")) if line["kind"] == "epoch"]
    assert result["accuracy"] == epoch["accuracy"] == result["history"][0]["accuracy"]
    assert err == "warning: no GPU on this machine: 2 CPU devices stand in for GPUs\n"


def test_quiet_prints_two_lines(run):
    status, out, _ = run(*QUICK, "--quiet", "--out", "run")
    assert status == 0
    first, second = out.splitlines()
    accuracy = r"accuracy [01]\.\d{4} \(top-5 [01]\.\d{4}\)"
    assert re.fullmatch(accuracy + r", [\d,]+ images/s, [\d.]+ s in all, [\d.]+% waiting for images", first)
    assert second == "written to run"


def test_a_run_prints_what_it_does_and_ends_with_the_same_two_lines(run):
    status, out, _ = run(*QUICK, "--epochs", "2", "--out", "run")
    assert status == 0
    assert [len(re.findall(rf"^epoch {epoch}/2 ", out, re.M)) for epoch in (1, 2, 3)] == [1, 1, 0]
    for name in ("devices", "network", "data", "batch", "optimizer", "kvstore"):
        assert re.search(rf"^{name} ", out, re.M)
    assert out.splitlines()[-1] == "written to run"


def test_images_from_files_can_be_trained_on(run, tmp_path):
    write_mnist(tmp_path / "data", ending=".gz")
    status, out, _ = run("--dataset", "mnist", "--data-dir", str(tmp_path / "data"), "--json", *QUICK)
    assert status == 0
    assert json.loads(out)["history"][0]["images"] == 40


def test_a_comparison_as_json_is_one_document(run):
    status, out, _ = run("--compare", "1,2", "--model", "mlp", "--epochs", "1", "--json", "--out", "run")
    assert status == 0
    assert [row["devices"] for row in json.loads(out)] == [1, 2]


def test_the_memory_of_a_batch_larger_than_the_data_set_is_that_of_its_images(run):
    status, out, _ = run(*QUICK, "--memory", "--batch-size", "4000000000", "--out", "run")
    assert status == 0
    assert "memory     per device, for 719 images of a batch" in out.splitlines()


# --- how it ends when it goes wrong on the way


def test_a_full_disk_is_one_line_that_names_the_file_and_leaves_nothing_behind(run, empty_cwd):
    with full_at(2048):
        status, out, err = run("--model", "mlp", "--epochs", "1", "--quiet", "--out", "new/run")
    assert (status, out) == (2, "")
    assert re.fullmatch(r"error: cannot write new/run/[a-z.]+: File too large; choose another place with --out\n", err)
    assert names(empty_cwd) == []


class InterruptedAt(Reporter):
    """Ctrl-C, or what else is given, after so many steps."""

    def __init__(self, steps, error=KeyboardInterrupt):
        self.left, self.error = steps, error

    def step_done(self, images, known):
        self.left -= 1
        if not self.left:
            raise self.error


MAKE_UP = "for --confusion and --export: python -m gluonlab.run --evaluate run --confusion --export"
LEFT = {  # steps, of 23 in an epoch; more options -> what an interrupted run says
    (1, ()): "no epoch was finished; run holds the steps of the first",
    (30, ()): "run holds every epoch that was finished, 1 of 4",
    (70, ("--confusion", "--export")): f"run holds every epoch that was finished, 3 of 4; {MAKE_UP}",
    (30, ("--export",)): (
        "run holds every epoch that was finished, 1 of 4; for --export: python -m gluonlab.run --evaluate run --export"
    ),
}


@pytest.mark.parametrize(("steps", "more"), LEFT, ids=str)
def test_an_interrupted_run_says_what_is_left_of_it(run, monkeypatch, steps, more):
    monkeypatch.setattr("gluonlab.training.reporter.Reporter", lambda: InterruptedAt(steps))
    status, out, err = run("--gpus", "2", "--model", "mlp", "--epochs", "4", "--quiet", "--out", "run", *more)
    assert (status, out, err.splitlines()[-1]) == (130, "", f"interrupted: {LEFT[steps, more]}")
    assert ("curves.png" in names(Path("run"))) == (steps > 23)
    if more:
        assert run(*err.split("gluonlab.run ")[-1].split(), "--threads", "1")[0] == 0
        assert names(Path("run")) == sorted(
            ["config.json", "curves.png", "metrics.jsonl", PARAMETERS, "export", *["confusion.png"] * ("--confusion" in more)]
        )


def test_a_comparison_interrupted_between_two_runs_says_which_are_left(run, monkeypatch):
    class Interrupted(Reporter):
        def say(self, text):
            if "2 devices" in text:
                raise KeyboardInterrupt

    monkeypatch.setattr("gluonlab.training.reporter.Reporter", Interrupted)
    status, _, err = run("--compare", "1,2", "--model", "mlp", "--epochs", "1", "--quiet", "--out", "both")
    assert (status, err.splitlines()[-1]) == (130, "interrupted: both holds the runs that were finished, 1 of 2")


def test_an_interruption_before_there_is_a_folder_says_that_nothing_was_written(run, empty_cwd, monkeypatch):
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setitem(DATASETS, "digits", DATASETS["digits"]._replace(load=interrupted))
    status, _, err = run("--quiet")
    assert (status, err.splitlines()[-1], names(empty_cwd)) == (130, "interrupted: nothing was written", [])


def test_a_run_that_diverges_late_says_how_to_get_what_was_asked_for(empty_cwd):
    reporter = InterruptedAt(30, DivergedError("the loss became nan"))
    with pytest.raises(DivergedError, match=re.escape(f"the loss became nan; {MAKE_UP}")):
        train(TrainConfig(gpus=2, model="mlp", epochs=3, confusion=True, export=True, out="run"), reporter=reporter)
    [event] = [line for line in read_metrics(Path("run")) if line["kind"] == "event"]
    assert event["message"] == "the loss became nan"


def test_a_learning_rate_that_is_too_large_ends_with_the_step_that_it_spoiled(run):
    status, out, err = run("--model", "mlp", "--lr", "1e6", "--optimizer", "sgd", "--out", "run", "--quiet")
    assert (status, out) == (1, "")
    [line] = err.splitlines()
    step = int(re.fullmatch(r"error: the loss became (nan|inf|-inf) at step (\d+): use a smaller learning rate \(--lr\)", line)[2])
    metrics = read_metrics(Path("run"))
    assert [entry["message"] for entry in metrics if entry["kind"] == "event"] == [line[len("error: ") :]]
    assert all(entry["step"] < step for entry in metrics if entry["kind"] == "step")


def test_a_run_that_diverges_ends_within_eight_steps(empty_cwd):
    class Counter(Reporter):
        steps = 0

        def step_done(self, images, known):
            self.steps += 1

    counter = Counter()
    with pytest.raises(GluonlabError, match="at step") as error:
        train(TrainConfig(model="mlp", lr=1e6, optimizer="sgd", out="run"), reporter=counter)
    step = int(re.search(r"at step (\d+)", str(error.value))[1])
    assert step <= counter.steps + 1
    assert counter.steps <= step + 8


def interrupted(folder, arguments, after, sign):
    """A real process in ``folder`` that gets a signal ``after`` seconds after its second epoch: exit status and errors."""
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "gluonlab.run", *arguments],
        cwd=folder,
        env=clean_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )
    try:
        while not re.match(r"epoch +2/", process.stdout.readline()):
            assert process.poll() is None, process.stderr.read()
        time.sleep(after)
        process.send_signal(sign)
        _, err = process.communicate(timeout=60)
        return process.returncode, err
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(("sign", "after"), [(signal.SIGINT, 0), (signal.SIGINT, 0.35), (signal.SIGTERM, 0.35)])
def test_ctrl_c_and_sigterm_end_a_run_and_leave_whole_files(tmp_path, sign, after):
    status, err = interrupted(tmp_path, ["--gpus", "2", "--epochs", "1000", "--out", "run"], after, sign)
    assert status == 128 + sign
    assert "Traceback" not in err
    assert err.splitlines()[-1].startswith("interrupted: " if sign == signal.SIGINT else "ended by SIGTERM: ")
    run = tmp_path / "run"
    assert names(run) == ["config.json", "curves.png", "metrics.jsonl", PARAMETERS]
    metrics = (run / "metrics.jsonl").read_text()
    assert metrics.endswith("\n")
    assert all(json.loads(line)["kind"] in ("step", "epoch", "event") for line in metrics.splitlines())
    json.loads((run / "config.json").read_text())
    net = get_model("lenet", 10)
    net.load_parameters(str(run / PARAMETERS), ctx=mx.cpu())
    assert net(mx.nd.zeros((1, 1, 28, 28))).shape == (1, 10)


# --- all commands in one


def test_the_group_names_its_commands_and_hands_options_on(python, tmp_path):
    shown = python("-m", "gluonlab", "--help")
    assert shown.returncode == 0
    assert re.findall(r"^  (\w+) ", shown.stdout, re.M) == ["run", "scratch", "data", "report", "bench"]
    wrong = python("-m", "gluonlab", "rum")
    assert "unknown command 'rum': choose bench, data, report, run, scratch (did you mean 'run'?)" in the_error(
        (wrong.returncode, wrong.stdout, wrong.stderr), tmp_path
    )
    handed_on = python("-m", "gluonlab", "run", "--gpus", "0")
    assert "--gpus 0" in the_error((handed_on.returncode, handed_on.stdout, handed_on.stderr), tmp_path)
