"""Training runs of a second."""

from gluonlab.config import TrainConfig
from gluonlab.training.loop import train
from gluonlab.training.reporter import Reporter
from support.devices import device_spec


def run_quickly(folder, name="run", reporter=None, dataset=None, **settings):
    """The Result of a run in ``folder``; ``settings`` go before these.

    ``dataset``: a name, or the data set itself, if it has been read already.
    """
    if isinstance(dataset, str):
        settings["dataset"], dataset = dataset, None
    usual = {"devices": device_spec(2), "epochs": 1, "batch_size": 60, "model": "mlp"}
    settings = {**usual, "out": str(folder / name), **settings}
    return train(TrainConfig(**settings), reporter=reporter or Reporter(), dataset=dataset)
