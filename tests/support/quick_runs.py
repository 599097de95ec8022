"""Training runs that take a second."""

from gluonlab.config import TrainConfig
from gluonlab.training.loop import train
from gluonlab.training.reporter import Reporter
from support.devices import device_spec


def run_quickly(folder, name="run", reporter=None, dataset=None, **settings):
    """Train a small model in ``folder``; return the Result.

    ``dataset``: the name of a data set, or a loaded data set. ``settings`` override the defaults.
    """
    if isinstance(dataset, str):
        settings["dataset"], dataset = dataset, None
    defaults = {"devices": device_spec(2), "epochs": 1, "batch_size": 60, "model": "mlp"}
    settings = {**defaults, "out": str(folder / name), **settings}
    return train(TrainConfig(**settings), reporter=reporter or Reporter(), dataset=dataset)
