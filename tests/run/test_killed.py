"""A run that is killed at any moments ends with the bits of the undisturbed one."""

import json
import subprocess
import sys

import pytest
from support import kills
from support.devices import device_spec
from support.interrupted_runs import read_comparable_metrics, read_parameter_bytes
from support.processes import clean_environment

pytestmark = pytest.mark.cpu_only("simulated GPUs are not forked")
SETTINGS = {
    "devices": device_spec(2), "threads": 1, "epochs": 4, "flip": True,
    "checkpoint_every": "2 steps",
    "lr_schedule": "cosine",
}  # fmt: skip


def killed(folder, seed, times, **settings):
    process = subprocess.run(
        [sys.executable, kills.__file__, str(folder), str(seed), str(times), json.dumps({**SETTINGS, **settings})],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    told = json.loads(process.stdout)
    assert told["damaged"] == 0 and told["resumed"] >= 5
    assert read_parameter_bytes(folder / "run") == read_parameter_bytes(folder / "whole")
    assert read_comparable_metrics(folder / "run") == read_comparable_metrics(folder / "whole")
    steps = [line["step"] for line in read_comparable_metrics(folder / "run") if line["kind"] == "step"]
    assert steps == list(range(1, len(steps) + 1))


@pytest.mark.long
def test_killed_at_fifteen_moments_a_run_ends_with_the_same_bits(tmp_path):
    killed(tmp_path, 0, 15, model="mlp", epochs=8)


@pytest.mark.long
@pytest.mark.parametrize(
    "settings",
    [
        {"epochs": 12},
        {"epochs": 10, "model": "resnet8", "optimizer": "adam", "lr": 0.01},
        {"epochs": 10, "model": "resnet8", "kvstore": "sharded-optimizer", "sync_bn": True},
        {"epochs": 10, "mixup": 0.2, "resident_bytes": 0, "microbatches": 2},
    ],
    ids=str,
)
def test_killed_at_a_hundred_moments_too(tmp_path, settings):
    killed(tmp_path, 1, 25, **settings)
