"""For the tests of `gluonlab.bench allreduce` and `gradients`: the command in this process, and a
schedule that is wrong.
"""

from dataclasses import replace

import pytest

from gluonlab.bench.__main__ import main
from gluonlab.bench.allreduce.measure import Row
from gluonlab.bench.allreduce.variants import CHOICES
from gluonlab.bench.harness import turns
from gluonlab.bench.harness.machine import Others
from gluonlab.collectives.algorithms import ALGORITHMS
from support.devices import CHOICE

# what sums over the devices of the tests
HERE = {name for name in CHOICES if name != "nccl" or CHOICE.asked == "gpu"}
ROW = Row(
    "ring", 4, 4096, 1024, "float32", 1, (0.002, 0.001, 0.004), 0.0, 0.0005, (0.0005, 0.0005, 0.002)
)
RING = ALGORITHMS["ring"]


@pytest.fixture
def short(monkeypatch):
    """What is measured with it is not to be trusted, only the rest."""
    monkeypatch.setattr(turns, "BLOCK_S", 0.001)


@pytest.fixture
def bench(capsys, monkeypatch, short):
    """``bench("allreduce", ...)`` -> (exit status, standard output, standard error) of the command,
    in this process.
    """
    # a busy machine is no fault of the command
    monkeypatch.setattr(Others, "cores", lambda self: 0.0)

    def run(*args):
        with pytest.raises(SystemExit) as ended:
            main(list(args))
        said = capsys.readouterr()
        return ended.value.code, said.out, said.err

    return run


def without_its_last_transfer(world_size, *, chunks=None, groups=None):
    """A ring that forgets one copy: the last device ends with a chunk of a part sum."""
    ring = RING(world_size)
    return replace(ring, steps=(*ring.steps[:-1], ring.steps[-1][:-1]))
