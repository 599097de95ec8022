"""Runs that are interrupted between two steps, and the contents of run folders without times."""

from pathlib import Path

from gluonlab.config import TrainConfig
from gluonlab.training.loop import train
from gluonlab.training.reporter import Reporter
from support.run_files import read_metrics

TIME_FIELDS = ("seconds", "training_seconds", "waiting")


class RunStopped(Exception):
    """The interruption of a run."""


class StoppingReporter(Reporter):
    """A reporter that interrupts a run after some steps of this process."""

    def __init__(self, steps):
        self.steps_left = steps

    def step_done(self, images, known):
        self.steps_left -= 1
        if not self.steps_left:
            raise RunStopped


def interrupt_run(steps, folder, loaded_dataset=None, **settings):
    """Train for some steps, or to the end; return whether the run was interrupted."""
    config = TrainConfig(**settings, out=str(folder))
    try:
        train(config, reporter=StoppingReporter(steps), dataset=loaded_dataset)
    except RunStopped:
        return True
    return False


def read_parameter_bytes(folder):
    """Return the content of the parameter file of a run."""
    return (Path(folder) / "parameters.params").read_bytes()


def read_comparable_metrics(folder):
    """Return the lines of metrics.jsonl without times and without the events 'resumed'."""
    return [
        {name: value for name, value in line.items() if name not in TIME_FIELDS}
        for line in read_metrics(Path(folder))
        if line.get("event") != "resumed"
    ]
