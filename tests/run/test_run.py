"""gluonlab run: every user error is one line with its remedy."""

import dataclasses
import re
import shlex
from unittest.mock import Mock

import pytest
from support.commands import QUICK_OPTIONS, file_names, read_error_line
from support.idx_files import MNIST_NAMES, write_mnist

from gluonlab.__main__ import COMMANDS
from gluonlab.bench.__main__ import main as bench
from gluonlab.cli import run_commands
from gluonlab.config import TrainConfig
from gluonlab.data.__main__ import main as data
from gluonlab.engine.mxnet_and_cuda_libraries import installed_distributions, pip_install_command
from gluonlab.errors import GluonlabError
from gluonlab.run import main

pytestmark = pytest.mark.filterwarnings("default::gluonlab.errors.GluonlabWarning")


WHY_NO_GPU = "nvidia-smi" if "mxnet-cu112" in installed_distributions() else pip_install_command("cu112")

FILES = " | ".join(MNIST_NAMES)
# what is written -> what the line must say: the value, what is possible or what to do
MISTAKES = {
    "--gpus -1": "--gpus -1 | a whole number of at least 1",
    "--gpus ''": "--gpus '' | a whole number of at least 1",
    "--gpus": "--gpus needs a value | --gpus N | --help",
    "--gpus 2 --require-gpu": f"2 GPUs are required, but MXNet finds none | {WHY_NO_GPU} | omit --require-gpu",
    "--require-gpu": f"1 GPU is required, but MXNet finds none | {WHY_NO_GPU} | omit --require-gpu",
    "--require-gpu --devices cpu*2": "--devices cpu*2 | --require-gpu | use GPUs only | remove --require-gpu",
    "--require-gpu --devices 2": "--devices 2 | --gpus 2",
    "--devices gpu:0": f"gpu:0 | this machine has no GPUs | {WHY_NO_GPU} | cpu*N",
    "--devices cpu:": "'cpu:' is not a device | 'cpu*4'",
    "--devices gpu:[": "'gpu:[' | regular expression | 'gpu:[0-3]'",
    "--devices tpu": "'tpu' is not a device | 'gpu:0'",
    "--devices ''": "--devices is empty | remove",
    "--devices cpu,gpu": "'cpu,gpu' | use 2",
    "--devices 0": "--devices | 0 is not a valid number of GPUs | at least 1",
    "--optimizer test": "'test' | sgd",
    "--lr 1e300": "1e300 | less than 1e+31",
    "compare 1,1": "1,1 | different",
    "--kvstore devcie": "'devcie' | did you mean 'device'?",
    "--kvstore nccl": "'nccl' | choose kvstore 'device' or 'local'",
    "--model resnet": "'resnet' | lenet, lenet-avg, mlp | gluoncv:NAME | did you mean 'resnet8'?",
    "--model gluoncv:alexnett": "'gluoncv:alexnett' | did you mean alexnet,  | gluoncv:? lists all",
    "--model gluoncv:ssd_512_resnet50_v1_voc": "'gluoncv:ssd_512_resnet50_v1_voc' | resnet50_v1",
    "--model gluoncv:alexnet": "gluoncv:alexnet | 1x28x28 | that it accepts are 1x63x63 | --dataset",
    "--model gluoncv:resnest14": "gluoncv:resnest14 | 1x28x28 | the smallest square images that it accepts are 3x17x17",
    "--pretrained missing.params": "--pretrained missing.params is not a file | local parameter file",
    "--evaluate missing --compare 1,2": "--evaluate | --compare | remove one of them",
    "resume x --autoresume": "--autoresume works only with gluonlab run | remove it",
    "evaluate": "RUN_DIR is missing | gluonlab evaluate RUN_DIR",
    "--dataset mnist": f"mnist | --data-dir DIR | {FILES}",
    "--dataset mnist --data-dir missing": f"--data-dir missing is not a folder | {FILES}",
    "--data-dir /data/mnist": "digits | /data/mnist | omit --data-dir | choose mnist",
    "--batch-size 99999999999999999999": "--batch-size 99999999999999999999 | a whole number from 1 to",
    "--gpus 2 --sync-bn": "--sync-bn | lenet has no BatchNorm | omit --sync-bn",
    "find-batch-size lots": "BYTES lots | 64M",
    "find-batch-size 1k": "1,024 bytes is too little memory | a batch of 1 per device needs | smaller --model",
    "find-batch-size 1G --batch-size 8": "--batch-size has no effect | remove it",
    "find-lr --steps often": "--steps often | whole number",
    "find-lr --steps 10": "--steps 10 | must be at least 20 | a number such as 100",
    "find-lr --steps 100 --lr 0.1": "--lr has no effect | range test | remove it",
    "find-lr --steps 30 --profile 3": "--profile has no effect | remove it",
    "--microbatches 2 --microbatch-size 8": "--microbatches 2 | --microbatch-size 8 | remove one of them",
    "--gpus 2 --microbatches 33": "--microbatches 33 | a device has only 32 images | use 32 or fewer",
    "--microbatches 2000 --batch-size 9999": "--microbatches 2000 | a device has only 1437 images | use 1437 or fewer",
    "--lr fast": "--lr fast | a number greater than 0",
    "--momentum 1": "--momentum 1 | at least 0 and less than 1",
    "--wd -1": "--wd -1 | at least 0",
    "--lr-schedule cosinus": "--lr-schedule | 'cosinus' | choose constant, cosine, linear, step | "
    "did you mean 'cosine'?",
    "--final-lr 0.1 --lr-schedule step": "--final-lr 0.1 | choose --lr-schedule cosine or linear",
    "--lr-schedule step --lr-decay-epochs 5,3": "--lr-decay-epochs 5,3 | must increase",
    "--lr-schedule step --lr-decay-epochs 3,10": "--lr-decay-epochs 3,10 | number of epochs (10) | --epochs",
    "--lr-schedule step --lr-decay-epochs 1 --warmup-epochs 2": "--lr-decay-epochs 1 | warm-up ends, at epoch 2",
    "--warmup-epochs 1 --optimizer LBSGD": "--optimizer LBSGD | built-in warm-up | choose sgd",
    "--momentum-rule mxnets": "--momentum-rule | 'mxnets' | corrected, mxnet | did you mean 'mxnet'?",
    "--momentum-rule mxnet": "--momentum-rule mxnet has no effect with adam | sgd or nag",
    "--clip-norm 0": "--clip-norm 0 | a number of at least 1e-30",
    "--label-smoothing 1": "--label-smoothing 1 | at least 0 and less than 1",
    "--compress 1bit": "--compress 1bit | 2bit:0.5",
    "--optimizer adam --momentum 0.9": "--momentum 0.9 has no effect with adam | sgd",
    "--out /": "--out / is not empty | use a new folder",
    "--gpu 2": "'--gpu' | --gpus | did you mean '--gpus'?",
    "-g 2": "'-g' | see --help",
    "2": "unexpected '2' | write options only, such as --gpus N | --help",
    "mnist 2": "'mnist 2' | options only | --help",
    "--threads 2 --gpus 2": "--threads 2 | 2 CPU devices | omit --threads",
    "--threads 0": "--threads 0 | from 1 to 1024",
    "compare 1": "1 is not a list | 1,2",
    "compare 1,2 --gpus 2": "--gpus has no effect | remove it",
    "compare 1,2 --threads 2": "--threads 2 | 2 CPU devices | omit --threads",
    "compare 1,2 --sync-bn": "--sync-bn | lenet has no BatchNorm | omit --sync-bn",
    "compare 1,2 --model gluoncv:alexnet": "gluoncv:alexnet | 1x28x28 | --dataset",
    "compare 1,2 --pretrained missing.params": "--pretrained missing.params is not a file | local parameter file",
    "compare 1,2 --kvstore sharded-optimizer --optimizer lamb": "lamb needs whole parameters | : sgd, nag, adam, ",
}


@pytest.mark.cpu_only("messages on a machine without GPUs")
@pytest.mark.parametrize("words", MISTAKES)
def test_a_user_error_is_one_line_with_value_and_fix(run, empty_cwd, words):
    line = read_error_line(run(*shlex.split(words)), empty_cwd)
    assert [part for part in MISTAKES[words].split(" | ") if part not in line] == [], line


IMAGES, LABELS = MNIST_NAMES[:2]
# (a file, its content -> the content of a damaged one, what the line must say)
DAMAGES = {
    "file missing": (LABELS, None, "run gluonlab data download"),
    "truncated": (IMAGES, lambda content: content[:-1], "truncated | download it again"),
    "nothing in it": (LABELS, lambda content: b"", "starts with nothing | download it again"),
    "wrong magic": (IMAGES, lambda content: b"<htm" + content[4:], "not an IDX file | 00 00 08 03 | download it again"),
    "wrong type": (IMAGES, lambda content: b"\0\0\x0d\x03" + content[4:], "0x0d | 0x08 | download it again"),
    "labels for images": (IMAGES, lambda content: b"\0\0\x08\x01" + content[4:], "1 dimensions, expected 3"),
    "wrong shape": (IMAGES, lambda content: content[:8] + b"\0\0\0\x0e\0\0\0\x38" + content[16:], "14x56 | 28x28"),
    "label out of range": (LABELS, lambda content: content[:-1] + b"\x0a", "label 10 at position 39 | 0 to 9"),
    "fewer labels than images": (
        LABELS,
        lambda content: content[:7] + b"\x27" + content[8:-1],
        "39 labels for the 40 images | download it again",
    ),
    "damaged gzip": (
        f"{LABELS}.gz",
        lambda content: b"\x1f\x8b\x08\0 damaged",
        "damaged gzip file | download it again",
    ),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_data_set_is_one_line_that_names_the_file(run, empty_cwd, tmp_path, kind):
    name, change, message = DAMAGES[kind]
    folder = tmp_path / "data"
    write_mnist(folder)
    file = folder / name.replace(".gz", "")
    content = file.read_bytes()
    file.unlink()
    if change is not None:
        (folder / name).write_bytes(change(content))
    line = read_error_line(run("--dataset", "mnist", "--data-dir", str(folder)), empty_cwd)
    assert [part for part in [str(folder), name, *message.split(" | ")] if part not in line] == [], line


def test_debug_shows_the_traceback(run, empty_cwd):
    with pytest.raises(GluonlabError, match="--gpus 0"):
        main(["--gpus", "0", "--debug"])
    assert file_names(empty_cwd) == []


@pytest.mark.parametrize(
    ("command", "arguments", "usage"),
    [
        (main, [], "gluonlab run [OPTIONS]"),
        (bench, ["strategies"], "gluonlab bench strategies [OPTIONS]"),
        (data, ["pack"], "gluonlab data pack [OPTIONS] NAME"),
    ],
    ids=["run", "bench strategies", "data pack"],
)
def test_help_names_the_command(ended, command, arguments, usage):
    status, out, _ = ended(command, *arguments, "--help")
    assert (status, out.splitlines()[0]) == (0, f"Usage: {usage}")


def test_help_shows_every_default(ended):
    _, out, _ = ended(main, "--help-all")
    shown = re.findall(r"\[default: ([^]]*)\]", " ".join(out.split()))
    defaults = [field.default for field in dataclasses.fields(TrainConfig)]
    assert shown == [str(default) for default in defaults if default is not None and default is not False]


def test_the_defaults_of_resume_are_the_values_of_the_run(ended):
    _, out, _ = ended(run_commands.resume, "--help-all")
    shown = re.findall(r"[([]default: ([^])]*)[])]", " ".join(out.split()))
    assert set(shown) == {"the run's value", "the global batch size stays the same"}
    _, out, _ = ended(run_commands.evaluate, "--help-all")
    assert "(default: RUN_DIR)" in out and "[default: data]" in out and "(default: the run's value)" in out


def test_an_unexpected_exception_is_one_line_and_status_1(run, monkeypatch):
    monkeypatch.setattr("gluonlab.training.loop.train", Mock(side_effect=ZeroDivisionError("division\nby zero")))
    message = "ZeroDivisionError: division by zero (run again with --debug for the traceback)"
    assert run(*QUICK_OPTIONS) == (1, "", f"error: {message}\n")


# --- all commands in one


def test_the_group_names_its_commands_and_passes_options_on(python, tmp_path):
    def read_line_of(*words):
        result = python("-m", "gluonlab", *words)
        return read_error_line((result.returncode, result.stdout, result.stderr), tmp_path)

    shown = python("-m", "gluonlab", "--help")
    assert shown.returncode == 0
    commands = re.findall(r"^  ([\w-]+) ", shown.stdout, re.M)
    assert sorted(commands) == sorted(COMMANDS)
    assert f"unknown command 'rum': choose {', '.join(sorted(commands))} (did you mean 'run'?)" in read_line_of("rum")
    assert "--gpus 0" in read_line_of("run", "--gpus", "0")


def test_gluoncvs_networks_are_listed(run):
    from gluonlab.models.gluoncv_zoo import gluoncv_names

    status, out, err = run("--model", "gluoncv:?")
    assert (status, err) == (0, "")
    *columns, _, last = out.splitlines()
    assert sorted(" ".join(columns).split()) == gluoncv_names()
    assert last == f"{len(gluoncv_names())} models: train one with --model gluoncv:NAME"
