"""Runs that are stopped between two steps, and what a run leaves behind, without its times."""

from pathlib import Path

from gluonlab.config import TrainConfig
from gluonlab.training.loop import train
from gluonlab.training.reporter import Reporter
from support.run_files import read_metrics

TIME_FIELDS = ("seconds", "training_seconds", "waiting")


class RunStopped(Exception):
    """Somebody pulled the plug."""


class StoppingReporter(Reporter):
    """Breaks a run off after so many steps of its own."""

    def __init__(self, steps):
        self.left = steps

    def step_done(self, images, known):
        self.left -= 1
        if not self.left:
            raise RunStopped


def interrupt_run(steps, folder, read=None, **settings):
    """Train for so many steps, or to the end; whether the run was broken off.

    ``read``: the data set, if it has been read already.
    """
    config = TrainConfig(**settings, out=str(folder))
    try:
        train(config, reporter=StoppingReporter(steps), dataset=read)
    except RunStopped:
        return True
    return False


def read_parameter_bytes(folder):
    """The bytes of a run's parameters."""
    return (Path(folder) / "parameters.params").read_bytes()


def read_comparable_metrics(folder):
    """The lines of metrics.jsonl, but for what the clock says, and for those that say 'resumed'."""
    return [
        {name: value for name, value in line.items() if name not in TIME_FIELDS}
        for line in read_metrics(Path(folder))
        if line.get("event") != "resumed"
    ]
