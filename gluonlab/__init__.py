"""Learn, run and measure multi-GPU training with MXNet Gluon.

    gluonlab run --gpus 2

or, from Python::

    from gluonlab import TrainConfig, train
    result = train(TrainConfig(gpus=2))

Import gluonlab before mxnet. Importing gluonlab is fast and does not import MXNet. It prepares the
later import of MXNet, so that MXNet works on current machines (`gluonlab.engine.mxnet_setup`).
"""

from __future__ import annotations

from gluonlab.host import startup_errors

startup_errors.check_system()
startup_errors.install_start_handlers()  # before slow imports

import importlib  # noqa: E402
import importlib.util  # noqa: E402
from typing import TYPE_CHECKING, Any, List  # noqa: E402

from gluonlab import renamed  # noqa: E402
from gluonlab.engine import mxnet_setup  # noqa: E402
from gluonlab.host import signals  # noqa: E402

if TYPE_CHECKING:
    from gluonlab.bucketed_trainer.trainer import BucketedTrainer as BucketedTrainer
    from gluonlab.config import TrainConfig as TrainConfig
    from gluonlab.data import Loader as Loader
    from gluonlab.data import load_dataset as load_dataset
    from gluonlab.devices import gpus as gpus
    from gluonlab.inference.loaded_network import load_run as load_run
    from gluonlab.kvstores import make_kvstore as make_kvstore
    from gluonlab.models import get_model as get_model
    from gluonlab.models.optimize_network import optimize as optimize
    from gluonlab.runs.data_frame import frame as frame
    from gluonlab.training.live_plot import LivePlot as LivePlot
    from gluonlab.training.loop import train as train

__version__ = "0.3.0"

# Loaded at first use, because most of these import MXNet, which takes a third of a second.
_PUBLIC = {
    "BucketedTrainer": "gluonlab.bucketed_trainer.trainer",
    "LivePlot": "gluonlab.training.live_plot",
    "Loader": "gluonlab.data",
    "TrainConfig": "gluonlab.config",
    "frame": "gluonlab.runs.data_frame",
    "get_model": "gluonlab.models",
    "gpus": "gluonlab.devices",
    "load_dataset": "gluonlab.data",
    "load_run": "gluonlab.inference.loaded_network",
    "make_kvstore": "gluonlab.kvstores",
    "optimize": "gluonlab.models.optimize_network",
    "train": "gluonlab.training.loop",
}

__all__ = sorted(_PUBLIC)

signals.delay_signals_in_imports()
mxnet_setup.install_setup_hook()
renamed.install()


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    if name[0] != "_" and importlib.util.find_spec(f"gluonlab.{name}") is not None:
        return importlib.import_module(f"gluonlab.{name}")  # a subpackage, as an attribute
    raise AttributeError(f"module 'gluonlab' has no attribute {name!r}")


def __dir__() -> List[str]:
    return sorted({*globals(), *_PUBLIC})
