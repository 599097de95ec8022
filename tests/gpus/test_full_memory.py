"""A GPU whose memory is full ends a run in one line, which names it and what takes less."""

import pytest
from gpus.commands import run_python
from gpus.machines import Machine
from support.run_files import read_metrics

MEMORY = 128 * 2**20  # of each GPU


@pytest.mark.parametrize("count", [1, 2])
def test_a_run_that_needs_more_than_a_gpu_has_says_so(tmp_path, count):
    machine = Machine((("Tesla T4", (7, 5), MEMORY),) * count)
    options = f"--gpus {count} --model resnet18 --batch-size 512 --quiet --out run".split()
    process = run_python(machine, tmp_path, "-m", "gluonlab.run", *options)
    assert (process.returncode, process.stdout) == (1, "")
    [line] = [line for line in process.stderr.splitlines() if not line.startswith("warning: ")]
    assert line == (
        "error: there is not enough memory: the memory of a GPU is full; choose a smaller --batch-size or more "
        "--microbatches, or find one that fits with gluonlab find-batch-size BYTES"
    )
    assert all(line["kind"] for line in read_metrics(tmp_path / "run"))
