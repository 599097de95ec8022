"""What a run takes from the user's own code: a network, a loss, metrics; and what must be true."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence

import mxnet as mx
import numpy as np
from mxnet import gluon

from gluonlab.config import TrainConfig
from gluonlab.data.sets.dataset import Dataset
from gluonlab.data.sets.registry import find_kind
from gluonlab.errors import ConfigError, DataError, ModelError, said_by
from gluonlab.models.graphs import one_array
from gluonlab.training.metrics import Metric, metrics_by_name

DENSE = ("default", "default")
PARTS = {"net": "network", "loss": "loss", "data": "data set"}  # of a run's settings: own


@dataclass(frozen=True)
class Own:
    """``net``: a HybridBlock, or what makes one, of the number of classes if it takes a number.

    It maps images (n, C, H, W) to scores (n, classes). A block that has parameters already begins
    with them. ``loss``: a HybridBlock of scores and labels (n,), a value for each image.
    ``metrics``: see `gluonlab.training.metrics`.
    """

    net: Any = None
    loss: Optional[gluon.HybridBlock] = None
    metrics: Mapping[str, Metric] = field(default_factory=dict)

    @property
    def net_name(self) -> str:
        """The name of the network's class, or of the function that makes it."""
        return str(getattr(self.net, "__name__", type(self.net).__name__))

    def settled(self, config: TrainConfig) -> TrainConfig:
        """A config without gaps, with the names of what is the user's own."""
        if self.net is not None:
            config = config.replace(model=self.net_name)
        return config if self.loss is None else config.replace(label_smoothing=0.0)

    def settings(self, dataset: Optional[Dataset]) -> Dict[str, Any]:
        """The names of what is the user's own, for config.json.

        ``dataset``: the run's, unless its config names a folder.
        """
        found = {}
        if self.net is not None:
            found["net"] = self.net_name
        if self.loss is not None:
            found["loss"] = type(self.loss).__name__
        if dataset is not None and not _is_known(dataset.name):
            found["data"] = dataset.name
        return {"own": found} if found else {}

    def make_net(self, classes: int) -> gluon.HybridBlock:
        """The network, not initialised unless it was. Raises ModelError for what is none."""
        net, name = self.net, self.net_name
        if not isinstance(net, gluon.Block):
            # parameters are saved by name, so names count from 0 whatever was made before
            with mx.name.NameManager():
                net = net(classes) if _takes_classes(net) else net()
        if not isinstance(net, gluon.HybridBlock):
            kind = type(net).__name__
            raise ModelError(
                f"{name} is a {kind}, not a gluon.HybridBlock, which can be compiled: "
                "derive it from HybridBlock, or use nn.HybridSequential"
            )
        return net


NOTHING = Own()


def make_own(net: Any = None, loss: Optional[gluon.HybridBlock] = None, metrics: Any = None) -> Own:
    """Raises ConfigError or ModelError for what is no network, loss or metric."""
    if net is not None and not callable(net):
        raise ModelError(
            f"net {net!r}: give a gluon.HybridBlock, or a function that makes one, such as "
            "lambda classes: nn.Dense(classes)"
        )
    if loss is not None and not isinstance(loss, gluon.HybridBlock):
        raise ConfigError(
            f"loss {loss!r}: give a gluon.HybridBlock of scores and labels, such as "
            "gluon.loss.SoftmaxCrossEntropyLoss()"
        )
    trained = [] if loss is None else list(loss.collect_params())
    if trained:
        names = ", ".join(trained)
        raise ConfigError(
            f"loss {type(loss).__name__} has parameters ({names}), which nothing trains: "
            "put them into the network"
        )
    return Own(net, loss, metrics_by_name(metrics))


def check_own(own: Own, asked: TrainConfig) -> None:
    """Raise ConfigError where the TrainConfig ``asked`` contradicts what is the user's own."""
    if own.net is not None and asked.model is not None:
        raise ConfigError(
            f"--model {asked.model} and the network {own.net_name} contradict each other: "
            "give one of them"
        )
    if own.loss is not None and asked.label_smoothing:
        raise ConfigError(
            f"--label-smoothing {asked.label_smoothing:g} is of gluonlab's own loss, not of "
            f"{type(own.loss).__name__}: leave it out"
        )
    if asked.memory and (own.net is not None or own.loss is not None):
        raise ConfigError(
            "--memory measures in another process, which has no network or loss of your own: "
            "leave it out"
        )


def check_same_own(named: str, how: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise ConfigError unless the own network, loss and data of a run are given again.

    ``named``: its folder. ``before``, ``now``: settings of the run, and of what goes on with it.
    ``how``: what takes them.
    """
    was, is_now = (dict(settings.get("own") or {}) for settings in (before, now))
    for part, name in PARTS.items():
        if was.get(part) == is_now.get(part):
            continue
        had = f"had the {name} {was[part]}" if part in was else f"had no {name} of your own"
        gets = f"gets {is_now[part]}" if part in is_now else "gets none"
        raise ConfigError(f"{named} {had}, and now {gets}: give the same, in Python, {how}")


def check_loss(loss: gluon.HybridBlock, classes: int) -> None:
    """Raise ConfigError unless ``loss`` has a value for each image, for labels (n,)."""
    name, images = type(loss).__name__, 3
    shapes = {"scores": (images, classes), "labels": (images,)}
    try:
        values = loss(*map(mx.sym.var, shapes))
        unused = _unused(values, shapes)
        if not unused:
            # unlike infer_shape it prints nothing
            outputs = values.infer_shape_partial(**shapes)[1]
            values.infer_type(scores=np.float32, labels=np.int32)
    except Exception as error:  # whatever code of the user's own raises
        raise ConfigError(
            f"loss {name} cannot be compiled for scores (n, {classes}) and labels (n,) of whole "
            f"numbers: {said_by(error) or type(error).__name__}"
        ) from None
    if unused:
        raise ConfigError(
            f"loss {name} takes no account of the {' and '.join(unused)}: compute it from the "
            f"scores (n, {classes}) and the labels (n,)"
        )
    if outputs != [(images,)]:
        told = ", ".join(map(str, outputs))
        raise ConfigError(
            f"loss {name} gives {told} for {images} images: give a value for each, shape (n,), "
            "so that they can be shared by devices"
        )


def check_scores(net: gluon.HybridBlock, name: str, shape: Sequence[int], classes: int) -> None:
    """Raise ModelError unless the user's own network can be compiled, and gives scores."""
    try:
        scores = one_array(net(mx.sym.var("data")), name)
        unused = _unused(scores, ["data"])
        outputs = [] if unused else scores.infer_shape_partial(data=(1, *shape))[1]
    except ModelError:
        raise
    except Exception as error:  # whatever code of the user's own raises
        raise ModelError(
            f"{name} cannot be compiled for images {tuple(shape)}: "
            f"{said_by(error) or type(error).__name__}; its hybrid_forward may use F and its "
            "arguments only"
        ) from None
    if unused:
        raise ModelError(f"{name} takes no account of the images: compute its scores from them")
    if outputs and outputs[0] and outputs != [(1, classes)]:
        told = ", ".join(map(str, outputs))
        raise ModelError(
            f"{name} gives {told} for an image, and the data has {classes} classes: "
            f"let it give (n, {classes})"
        )


def check_params(net: gluon.HybridBlock, name: str) -> None:
    """Raise ModelError for parameters that cannot be trained: all that are used have shapes."""
    params = net.collect_params()
    sparse = [each for each in params.values() if (each._stype, each._grad_stype) != DENSE]
    if sparse:
        raise ModelError(
            f"{name}: {sparse[0].name} has sparse values or gradients, which train does not sum: "
            "make them dense, such as by sparse_grad=False in nn.Embedding"
        )
    unknown = [each.name for each in params.values() if each._data is None]
    if unknown:
        raise ModelError(
            f"{name} makes no use of {', '.join(unknown)} for its scores, so that the shape stays "
            "unknown: leave the layer out, or give it in_units or in_channels"
        )


def initialise(net: gluon.HybridBlock, ctxs: List[mx.Context]) -> None:
    """Have the parameters on these devices: those that are there, and else new ones."""
    params = net.collect_params()
    there = [each for each in params.values() if each._data is not None or each._deferred_init]
    for each in there:
        each.reset_ctx(ctxs)
    names = {each.name for each in there}
    for name, each in params.items():
        if name not in names:
            each.initialize(ctx=ctxs, default_init=mx.init.Xavier())


def _unused(outcome: Any, inputs: Iterable[str]) -> List[str]:
    """Which inputs the graph of an own network or loss does not have. Raises TypeError for none."""
    if not isinstance(outcome, mx.sym.Symbol):
        raise TypeError(f"it gives a {type(outcome).__name__}, not one array")
    has = outcome.list_inputs()
    return [name for name in inputs if name not in has]


def _is_known(dataset: str) -> bool:
    try:
        find_kind(dataset)
    except DataError:
        return False
    return True


def _takes_classes(make: Any) -> bool:
    try:
        parameters = inspect.signature(make).parameters.values()
    except (TypeError, ValueError):
        return False
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(each.kind in kinds and each.default is each.empty for each in parameters)
