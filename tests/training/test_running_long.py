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
    expected = count_resources()
    for number in range(2):
        train_on_dataset(dataset, tmp_path / f"{number}", **settings)
    assert count_resources() == expected


def test_epochs_take_no_threads_and_no_files(tmp_path):
    reporter = ResourceReporter(2, 9)
    train_on_dataset(make_tiny_dataset(16), tmp_path / "run", reporter, model="mlp", epochs=9, **AUGMENTATION)
    assert reporter.resources[0] == reporter.resources[1]


@pytest.mark.long
@pytest.mark.cpu_only("the resident memory, which simulated GPUs share with the host")
@pytest.mark.parametrize(
    ("words", "limit_mib"), [("epochs 41 1400 lenet", 2), ("epochs 1000 64 mlp", 2), ("mixed", 30)]
)
def test_memory_grows_neither_with_epochs_nor_with_trainings(tmp_path, python, words, limit_mib):
    result = python(long_trainings.__file__, str(tmp_path), *words.split(), timeout=300)
    assert result.returncode == 0, result.stderr
    (early, late), (early_bytes, late_bytes) = json.loads(result.stdout)
    assert early == late and late_bytes - early_bytes < limit_mib * 2**20


BITS_PROGRAM = """
import hashlib, pathlib, sys, tempfile, warnings
warnings.simplefilter("ignore")
from support.quick_runs import run_quickly
from support.reference import parameter_arrays
runs = pathlib.Path(tempfile.mkdtemp(dir="."))
for number, words in enumerate(sys.argv[1:]):
    devices, threads = map(int, words.split(","))
    settings = dict(devices=f"cpu*{devices}", threads=threads, model="lenet", batch_size=32, seed=3)
    net = run_quickly(runs, str(number), **settings).net
    print(hashlib.sha256(b"".join(array.tobytes() for array in parameter_arrays(net))).hexdigest())
"""


@pytest.mark.long
@pytest.mark.cpu_only("teams of threads, which GPUs have none of")
def test_a_runs_bits_do_not_depend_on_the_runs_before(tmp_path, python):
    """Devices, threads: in every order of two, compared with a separate process."""
    runs = ["1,2", "2,1", "4,1", "1,1"]
    alone = {run: python("-c", BITS_PROGRAM, run).stdout.strip() for run in runs}
    order = [run for first, second in combinations(runs, 2) for run in (first, second, first)]
    result = python("-c", BITS_PROGRAM, *order, timeout=300)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == [alone[run] for run in order]
