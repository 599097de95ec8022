"""gluonlab scratch trains as Gluon does with every allreduce; mistakes are one line."""

import json

import numpy as np
import pytest
from mxnet import autograd, gluon, nd
from support.commands import read_error_line
from support.devices import contexts, device, runs_on_gpus
from support.idx_files import write_mnist
from support.reference import set_parameter_arrays, textbook_lenet, to_gluon_layout

from gluonlab.collectives.algorithms import ALGORITHMS
from gluonlab.data import load_dataset
from gluonlab.scratch.__main__ import main
from gluonlab.scratch.lenet import init_params
from gluonlab.scratch.recipes import he_deviation

pytestmark = pytest.mark.filterwarnings("default::gluonlab.errors.GluonlabWarning")


@pytest.fixture
def run(ended, empty_cwd):
    """``run("--gpus 2")``: gluonlab scratch, which writes nothing."""

    def run(arguments):
        result = ended(main, *arguments.split())
        assert list(empty_cwd.iterdir()) == []
        return result

    return run


def loss_of_gluon(folder):
    """The mean loss over one epoch of three batches, each before its update, on one device."""
    split = load_dataset("mnist", str(folder)).train
    order = np.random.RandomState([0, 0]).permutation(len(split))
    net, loss, total = textbook_lenet(pool="avg"), gluon.loss.SoftmaxCrossEntropyLoss(), 0.0
    set_parameter_arrays(net, to_gluon_layout(init_params(he_deviation)))
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.02}, kvstore=None)
    for indices in (order[:8], order[8:16], order[16:]):
        images, labels = split.batch(indices)
        with autograd.record():
            losses = loss(net(nd.array(images / np.float32(255))), nd.array(labels)).sum()
        losses.backward()
        trainer.step(len(images))
        total += losses.asscalar()
    return total / len(split)


@pytest.fixture
def mnist(tmp_path):
    """The options for a small copy of MNIST."""
    write_mnist(tmp_path / "mnist", train=20, test=10)
    return f"--dataset mnist --data-dir {tmp_path}"


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_the_command_with_every_allreduce_trains_as_gluon_does(run, mnist, tmp_path, name):
    status, out, _ = run(f"{mnist} --gpus 3 --global-batch-size 8 --lr 0.02 --epochs 1 --json --allreduce {name}")
    assert status == 0
    assert json.loads(out)["epochs"][0]["loss"] == pytest.approx(loss_of_gluon(tmp_path), rel=1e-5)


def test_the_command_prints_a_line_per_epoch_and_a_last_one(run, mnist):
    status, out, err = run(f"{mnist} --gpus 2 --epochs 3 --init chapter")
    *epochs, empty, last = out.splitlines()
    assert (status, empty) == (0, "")
    assert [line.split()[:2] for line in epochs] == [["epoch", str(i)] for i in (1, 2, 3)]
    assert all("images/s  loss " in line and "val accuracy 0." in line for line in epochs)
    assert last.startswith("val accuracy 0.") and last.endswith("on {} {}".format(*contexts(2)))
    assert err == ("" if runs_on_gpus() else "warning: no GPU on this machine: 2 CPU devices are used instead\n")


def test_without_the_number_of_devices_there_is_one(run, mnist):
    status, out, err = run(f"{mnist} --epochs 1")
    assert (status, err) == (0, "")
    assert out.splitlines()[-1].endswith(f"on {device()}")


MISTAKES = {
    "--global-batch-size 0": "--global-batch-size 0 | a whole number of at least 1",
    "--lr nan": "--lr nan | a number greater than 0",
    "--epochs 1.5": "--epochs 1.5 | a whole number of at least 1",
    "--seed -1": "--seed -1 | from 0 to 4294967295",
    "--gpus 0": "--gpus 0 | a whole number of at least 1",
    "--gpus 1000": "1000 CPU devices | 256",
    "--allreduce rign": "unknown allreduce 'rign' | choose | star | did you mean 'ring'?",
    "--init hee": "'hee' | choose chapter, he",
    "--dataset mnits": "'mnits' | did you mean 'mnist'?",
    "--dataset mnist": "mnist | --data-dir DIR",
    "--data-dir x": "digits | omit --data-dir",
    "--batch-size 8": "'--batch-size' | did you mean '--global-batch-size'?",
}


@pytest.mark.cpu_only("mistakes as a machine without GPUs names them")
@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_is_one_line_with_value_and_remedy(run, empty_cwd, words):
    line = read_error_line(run(words), empty_cwd)
    assert [part for part in MISTAKES[words].split(" | ") if part not in line] == [], line


def test_a_training_that_diverges_ends_with_1(run):
    status, _, err = run("--lr 1e20 --global-batch-size 8")
    assert (status, err) == (1, "error: the loss became nan: use a smaller learning rate (--lr)\n")


def test_help_needs_no_mxnet(python):
    block = "import sys; sys.modules['mxnet'] = None; sys.argv[1:] = ['--help-all']"
    result = python("-c", f"{block}; import runpy; runpy.run_module('gluonlab.scratch', run_name='__main__')")
    assert result.returncode == 0, result.stderr
    assert "--global-batch-size" in result.stdout and "1/k" in result.stdout


@pytest.mark.long
@pytest.mark.parametrize("seed", range(5))
def test_the_chapters_numbers_learn_the_digits(run, seed):
    status, out, _ = run(f"--gpus 2 --global-batch-size 256 --lr 0.2 --seed {seed} --json")
    assert status == 0 and json.loads(out)["val_accuracy"] >= 0.95
