"""--deterministic and --tf32 in processes of their own on simulated GPUs, and what MXNet prints
there.
"""

import json

import numpy as np
import pytest
from gpus.commands import run_python
from gpus.machines import A100, P3_16XLARGE, Machine

RUN = """
import json, sys
import gluonlab
from gluonlab import TrainConfig, train
from gluonlab.training.reporter import Reporter
from gpus import simulated
config = TrainConfig(epochs=1, batch_size=600, **json.loads(sys.argv[1]))
result = train(config, reporter=Reporter())
first = [param.list_data()[0].asnumpy() for param in result.net.collect_params().values()]
weights = [array.ravel()[:50].tolist() for array in first]
used = json.load(open(result.run_dir / "config.json"))["settings"]
used = {name: used[name] for name in ("deterministic", "tf32")}
print(json.dumps({"weights": weights, "names": simulated.names(), "used": used}))
"""


@pytest.fixture
def train_on(tmp_path):
    """Return a function that trains on a machine; it returns what RUN prints, and the standard error."""

    def train_on_machine(machine, **config):
        settings = json.dumps({"model": "mlp", "gpus": 1, "out": "run", **config})
        process = run_python(machine, tmp_path, "-c", RUN, settings)
        assert process.returncode == 0, process.stderr
        return json.loads(process.stdout), process.stderr

    return train_on_machine


@pytest.mark.parametrize("deterministic", [False, True])
def test_algorithms_are_tuned_by_time_unless_bits_shall_repeat(train_on, deterministic):
    result, said = train_on(P3_16XLARGE, model="lenet", gpus=2, deterministic=deterministic)
    tuned = [name for name in result["names"] if name.startswith("cudnnFind")]
    assert bool(tuned) != deterministic
    assert result["used"] == {"deterministic": deterministic, "tf32": False}
    assert said == ""  # nothing of cuDNN's release or tuning, nor of pairs without access


def test_products_are_exact_on_an_a100_unless_tf32_is_asked_for(train_on):
    machine = Machine((A100,), tf32=True)
    exact, rounded = (train_on(machine, tf32=tf32, out=f"{tf32}")[0] for tf32 in (None, True))
    plain = train_on(Machine((A100,)), out="plain")[0]
    difference = [
        max(np.max(np.abs(np.subtract(a, b))) for a, b in zip(each["weights"], plain["weights"]))
        for each in (exact, rounded)
    ]
    assert difference[0] == 0 < difference[1]
    assert rounded["used"]["tf32"] is True
