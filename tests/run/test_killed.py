"""A run that is killed at any moments ends with the bits of the uninterrupted one."""

import json

import pytest
from support import kills
from support.devices import device_spec
from support.interrupted_runs import read_comparable_metrics, read_parameter_bytes

pytestmark = pytest.mark.cpu_only("simulated GPUs are not forked")
SETTINGS = {
    "devices": device_spec(2), "threads": 1, "epochs": 4, "flip": True,
    "checkpoint_every": "2 steps",
    "lr_schedule": "cosine",
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize(
    ("seed", "times", "settings"),
    [
        (0, 15, {"model": "mlp", "epochs": 8}),
        (1, 25, {"epochs": 12}),
        (1, 25, {"epochs": 10, "model": "resnet8", "optimizer": "adam", "lr": 0.01}),
        (1, 25, {"epochs": 10, "model": "resnet8", "kvstore": "sharded-optimizer", "sync_bn": True}),
        (1, 25, {"epochs": 10, "mixup": 0.2, "device_cache_bytes": 0, "microbatches": 2}),
    ],
    ids=str,
)
def test_a_run_that_is_killed_many_times_ends_with_the_same_bits(python, tmp_path, seed, times, settings):
    result = python(kills.__file__, str(tmp_path), str(seed), str(times), json.dumps({**SETTINGS, **settings}))
    assert result.returncode == 0, result.stderr
    counts = json.loads(result.stdout)
    assert counts["damaged"] == 0 and counts["resumed"] >= 5
    assert read_parameter_bytes(tmp_path / "run") == read_parameter_bytes(tmp_path / "whole")
    lines = read_comparable_metrics(tmp_path / "run")
    assert lines == read_comparable_metrics(tmp_path / "whole")
    steps = [line["step"] for line in lines if line["kind"] == "step"]
    assert steps == list(range(1, len(steps) + 1))
