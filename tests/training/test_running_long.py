"""Nothing grows from epoch to epoch, nor from training to training."""

import json
from itertools import combinations

import pytest
from support import long_trainings
from support.long_trainings import (
    AUGMENTATION,
    MIXED_SETTINGS,
    ResourceReporter,
    count_resources,
    make_tiny_dataset,
    train_on_dataset,
)


@pytest.mark.parametrize(
    "settings",
    [MIXED_SETTINGS[2], pytest.param(MIXED_SETTINGS[0], marks=pytest.mark.long)],
    ids=["streamed", "resident"],
)
def test_trainings_one_after_the_other_leave_nothing(tmp_path, settings):
    dataset = make_tiny_dataset(32)
    train_on_dataset(dataset, tmp_path / "warm", **settings)
    before = count_resources()
    for number in range(2):
        train_on_dataset(dataset, tmp_path / f"{number}", **settings)
    assert count_resources() == before


def test_epochs_take_no_threads_and_no_files(tmp_path):
    watching = ResourceReporter(2, 9)
    train_on_dataset(make_tiny_dataset(16), tmp_path / "run", watching, model="mlp", epochs=9, **AUGMENTATION)
    assert watching.resources[0] == watching.resources[1]


@pytest.mark.long
@pytest.mark.cpu_only("the resident memory, which simulated GPUs share with the host")
@pytest.mark.parametrize(("epochs", "images", "model"), [(41, 1400, "lenet"), (1000, 64, "mlp")])
def test_memory_does_not_grow_with_the_epochs(tmp_path, python, epochs, images, model):
    words = map(str, (tmp_path, "epochs", epochs, images, model))
    result = python(long_trainings.__file__, *words, timeout=300)
    assert result.returncode == 0, result.stderr
    (early, late), (before, after) = json.loads(result.stdout)
    assert early == late
    assert after - before < 2 * 2**20


@pytest.mark.long
@pytest.mark.cpu_only("the resident memory, which simulated GPUs share with the host")
def test_sixty_mixed_trainings_end_with_the_memory_of_twenty(tmp_path, python):
    result = python(long_trainings.__file__, str(tmp_path), "mixed", timeout=300)
    assert result.returncode == 0, result.stderr
    (early, late), (before, after) = json.loads(result.stdout)
    assert early == late
    assert after - before < 30 * 2**20


@pytest.mark.long
@pytest.mark.cpu_only("teams of threads, which GPUs have none of")
def test_a_runs_bits_do_not_depend_on_the_runs_before(tmp_path, python):
    """1, 2 and 4 devices, 1 and 2 threads in every order of two, against a process of its own."""
    code = (
        "import sys, hashlib, warnings; warnings.simplefilter('ignore')\n"
        "from support.quick_runs import run_quickly\n"
        "from support.reference import parameter_arrays\n"
        "import pathlib, tempfile; runs = pathlib.Path(tempfile.mkdtemp(dir='.'))\n"
        "for i, run in enumerate(sys.argv[1:]):\n"
        "    n, threads = map(int, run.split(','))\n"
        "    net = run_quickly(runs, str(i), devices=f'cpu*{n}' if n > 1 else 'cpu', "
        "threads=threads, model='lenet', batch_size=32, seed=3).net\n"
        "    parameters = b''.join(array.tobytes() for array in parameter_arrays(net))\n"
        "    print(hashlib.sha256(parameters).hexdigest())"
    )
    runs = ["1,2", "2,1", "4,1", "1,1"]
    alone = {}
    for run in runs:
        alone[run] = python("-c", code, run).stdout.strip()
    pairs = combinations(runs, 2)
    order = [run for first, second in pairs for run in (first, second, first)]
    result = python("-c", code, *order, timeout=300)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == [alone[run] for run in order]
