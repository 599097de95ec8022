"""What a run takes from the user's own code: a network, a loss, metrics; and what must be true."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, Callable, Collection, Dict, Iterable, List, Mapping, Optional, Sequence

import mxnet as mx
import numpy as np
from mxnet import gluon

from gluonlab.config import TrainConfig
from gluonlab.config.option_hints import aliases_of_setting, check_argument_names
from gluonlab.data.sets.dataset import Dataset
from gluonlab.data.sets.dataset_registry import find_kind
from gluonlab.engine.np_compatibility import (
    convert_parameters,
    set_block_semantics,
    user_has_set_np,
    user_semantics,
)
from gluonlab.errors import ConfigError, DataError, ModelError, UsageError, error_text
from gluonlab.models.infer_shapes import note_shapes
from gluonlab.models.symbol_graph import one_array
from gluonlab.models.wrong_gradients import check_gradients, nodes_in_backward
from gluonlab.training.user_metrics import Metric, metrics_by_name

# arguments that `train` does not have, and settings among them, are answered with what is meant
answers_others = check_argument_names(
    "train",
    {
        **{
            theirs: f"give the setting, train(TrainConfig({ours}=...))"
            for ours in (each.name for each in fields(TrainConfig))
            for theirs in (ours, *aliases_of_setting(ours))
            if ours != "dataset"  # which is an argument, too
        },
        "network": "give net, a HybridBlock or a function that makes one",
    },
)


def check_kind(name: str, given: Any, fits: bool, instead: str) -> None:
    """Raise ConfigError for an argument of `train` that is given and does not fit."""
    if given is not None and not fits:
        raise ConfigError(f"train({name}=...) is a {type(given).__name__}: {instead}")


# operators that ignore their output gradient, such as the weight of an image in a loss
HEADLESS = {
    "make_loss", "MakeLoss", "SoftmaxOutput", "LinearRegressionOutput", "LogisticRegressionOutput",
    "MAERegressionOutput", "SVMOutput",
}  # fmt: skip
DENSE = ("default", "default")
PARTS = {"net": "network", "loss": "loss", "data": "data set"}  # of a run's settings: own


@dataclass(frozen=True)
class UserComponents:
    """``net``: a HybridBlock, or what makes one, of the number of classes if it takes a number.

    It maps images (n, C, H, W) to scores (n, classes). A block that has parameters already begins
    with them. ``loss``: a HybridBlock of scores and labels (n,), a value for each image.
    ``metrics``: see `gluonlab.training.user_metrics`.
    """

    net: Any = None
    loss: Optional[gluon.HybridBlock] = None
    metrics: Mapping[str, Metric] = field(default_factory=dict)

    @property
    def net_name(self) -> str:
        """The name of the network's class, or of the function that makes it."""
        return str(getattr(self.net, "__name__", type(self.net).__name__))

    def values(self) -> Dict[str, Any]:
        """The settings of TrainConfig that these components decide."""
        values: Dict[str, Any] = {} if self.net is None else {"model": self.net_name}
        return values if self.loss is None else {**values, "label_smoothing": 0.0}

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
            with mx.name.NameManager(), user_semantics():
                net = net(classes) if _takes_classes(net) else net()
        if not isinstance(net, gluon.HybridBlock):
            kind = type(net).__name__
            raise ModelError(
                f"{name} is a {kind}, not a gluon.HybridBlock, which can be compiled: "
                "derive it from HybridBlock, or use nn.HybridSequential"
            )
        return net


NOTHING = UserComponents()


def make_own(
    net: Any = None, loss: Optional[gluon.HybridBlock] = None, metrics: Any = None
) -> UserComponents:
    """Raises ConfigError or ModelError for what is no network, loss or metric."""
    if net is not None and not callable(net):
        raise ModelError(
            f"net {net!r}: give a gluon.HybridBlock, or a function that makes one, such as "
            "lambda classes: nn.Dense(classes)"
        )
    if loss is not None and not isinstance(loss, gluon.HybridBlock):
        shown = " ".join(repr(loss).split())  # a Block's has several lines
        raise ConfigError(
            f"loss {shown}: give a gluon.HybridBlock of scores and labels, such as "
            "gluon.loss.SoftmaxCrossEntropyLoss()"
        )
    if loss is not None:
        _check_constants(loss)
    return UserComponents(net, loss, metrics_by_name(metrics))


def _check_constants(loss: gluon.HybridBlock) -> None:
    """Raise ConfigError for parameters of a loss that need training or have no shape."""
    params, name = loss.collect_params(), type(loss).__name__
    note_shapes(params.values())
    trained = [each.name for each in params.values() if each.grad_req != "null"]
    if trained:
        raise ConfigError(
            f"loss {name} has parameters ({', '.join(trained)}), which are not trained: put them "
            "into the network, or make constants of them, self.params.get_constant(name, value)"
        )
    for each in params.values():
        if not each.shape or min(each.shape) < 1:
            raise ConfigError(
                f"loss {name} has {each.name} of shape {each.shape}: give its whole shape, or "
                "make a constant of it, self.params.get_constant(name, value)"
            )


def check_own(own: UserComponents, asked: TrainConfig) -> None:
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
    _in_its_kind(loss, partial(_check_loss, loss, classes))


def check_scores(net: gluon.HybridBlock, name: str, shape: Sequence[int], classes: int) -> None:
    """Raise ModelError unless the user's own network can be compiled, and gives scores."""
    _in_its_kind(net, partial(_check_scores, net, name, shape, classes))


def _in_its_kind(block: gluon.HybridBlock, check: Callable[[], None]) -> None:
    """Check a block; after ``npx.set_np()`` as written for mx.nd or mx.np, and have it compute so.

    Its check tells which it is: there is no other sign of it.
    """
    if not user_has_set_np():
        check()
        return
    convert_parameters(block.collect_params().values(), numpy_like=False)
    errors: List[UsageError] = []
    for numpy_like in (False, True):
        set_block_semantics(block, numpy_like)
        try:
            check()
            return
        except UsageError as error:
            errors.append(error)
    # the other complains of operators of the kind that it is written for
    raise errors["legacy operator" not in str(errors[1])]


def _check_loss(loss: gluon.HybridBlock, classes: int) -> None:
    name, images = type(loss).__name__, 3
    shapes = {"scores": (images, classes), "labels": (images,)}
    values: Any = None
    try:
        values = loss(*map(mx.sym.var, shapes))
        unused = _unused(values, shapes)
        headless = _headless(values, ["scores"])
        if not (unused or headless):
            # unlike infer_shape it prints nothing
            outputs = values.infer_shape_partial(**shapes)[1]
            values.infer_type_partial(scores=np.float32, labels=np.int32)
    except Exception as error:  # whatever code of the user's own raises
        if _wants_targets(values, shapes):
            raise ConfigError(
                f"loss {name} compares scores with targets of the same shape, as for a regression, "
                f"and a run has scores (n, {classes}) and the number of a class for each image: "
                "give a loss of classes, such as gluon.loss.SoftmaxCrossEntropyLoss(), or "
                "write your own loop (docs/own-loop.md)"
            ) from None
        cast = (
            "; F.cast(labels, 'float32') makes floats of them" if "got int32" in str(error) else ""
        )
        raise ConfigError(
            f"loss {name} cannot be compiled for scores (n, {classes}) and labels (n,) of whole "
            f"numbers: {error_text(error) or type(error).__name__}{cast}"
        ) from None
    if unused:
        raise ConfigError(
            f"loss {name} takes no account of the {' and '.join(unused)}: compute it from the "
            f"scores (n, {classes}) and the labels (n,)"
        )
    if headless:
        raise ConfigError(
            f"loss {name} has {headless}, whose gradient does not use an image's weight, as in "
            f"mixup: leave {headless} out, since a run minimizes the values themselves"
        )
    check_gradients(values, f"loss {name}", ["scores"])
    if outputs != [(images,)]:
        told = ", ".join(map(str, outputs))
        raise ConfigError(
            f"loss {name} gives {told} for {images} images: give a value for each, shape (n,), "
            "so that they can be shared by devices"
        )


def _check_scores(net: gluon.HybridBlock, name: str, shape: Sequence[int], classes: int) -> None:
    images, outputs = 1, []
    try:
        _check_parameters(net, name)
        scores = one_array(net(mx.sym.var("data")), name)
        trained = [each.name for each in net.collect_params().values() if each.grad_req != "null"]
        unused, headless = _unused(scores, ["data"]), _headless(scores, trained)
        # of several images, too: a graph may have a number of images in it
        for images in () if unused or headless else (1, 3):
            outputs = scores.infer_shape_partial(data=(images, *shape))[1]
            if outputs and outputs[0] and outputs != [(images, classes)]:
                break
        kinds = [] if unused or headless else scores.infer_type_partial(data=np.float32)[1]
    except ModelError:
        raise
    except Exception as error:  # whatever code of the user's own raises
        several = "" if images == 1 else f"{images} "
        raise ModelError(
            f"{name} cannot be compiled for {several}images {tuple(shape)}: "
            f"{error_text(error) or type(error).__name__}; its hybrid_forward may use F and its "
            "arguments only, and must take any number of images"
        ) from None
    if headless:
        raise ModelError(
            f"{name} has {headless}, whose gradient does not use the loss: "
            f"let it return the input of {headless}, the scores"
        )
    if unused:
        raise ModelError(f"{name} takes no account of the images: compute its scores from them")
    check_gradients(scores, name, trained)
    if outputs and outputs[0] and outputs != [(images, classes)]:
        told = ", ".join(map(str, outputs))
        given = "an image" if images == 1 else f"{images} images"
        raise ModelError(
            f"{name} gives {told} for {given}, and the data has {classes} classes: "
            f"let it give (n, {classes})"
        )
    if kinds and kinds[0] not in (None, np.float32):
        kind = np.dtype(kinds[0])
        raise ModelError(
            f"{name} returns scores of type {kind}, but a loss needs float32: leave {kind} out"
        )


def _check_parameters(net: gluon.HybridBlock, name: str) -> None:
    """Raise ModelError for parameters that a run would not train as intended."""
    try:
        params = list(net.collect_params().values())
    except AssertionError as error:  # two of one name
        raise ModelError(
            f"{name}: {error_text(error)}: parameters are saved by name, so give each layer a "
            "different prefix, or none"
        ) from None
    for each in params:
        kind = np.dtype(each.dtype or np.float32)
        if each.grad_req == "add":
            raise ModelError(
                f"{each.name} of {name} has grad_req 'add', so its gradients would grow from step "
                "to step: use 'write'; --microbatches N adds the gradients of N parts of a batch"
            )
        if each.grad_req != "null" and kind != np.float32:
            raise ModelError(
                f"{each.name} of {name} is {kind}: leave cast({str(kind)!r}) out, since a run "
                "computes in float32, or on GPUs with --dtype float16 in both"
            )


class Xavier(mx.init.Xavier):
    """Xavier, or Gluon's default for parameters with fewer than two axes."""

    def _init_weight(self, desc: Any, array: Any) -> None:
        if len(array.shape) > 1:
            super()._init_weight(desc, array)
        else:
            mx.init.Uniform()._init_weight(desc, array)


def check_names(loss: gluon.HybridBlock, net: gluon.HybridBlock) -> None:
    """Raise ConfigError if a loss and the network have parameters with the same name."""
    both = [name for name in loss.collect_params() if name in net.collect_params()]
    if both:
        raise ConfigError(
            f"loss {type(loss).__name__} and the network both have {both[0]}: give the loss a "
            f"prefix, as in {type(loss).__name__}(prefix='loss_')"
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
            f"{name} does not use {', '.join(unknown)} for its scores, so the shape stays "
            "unknown: leave the layer out, or give it in_units or in_channels"
        )


def initialise(net: gluon.HybridBlock, ctxs: List[mx.Context]) -> None:
    """Have the parameters on these devices: those that are there, and else new ones."""
    params = net.collect_params()
    there = [each for each in params.values() if each._data is not None or each._deferred_init]
    for each in there:
        each.reset_ctx(ctxs)
    note_shapes(there)
    names = {each.name for each in there}
    for name, each in params.items():
        if name in names:
            continue
        if isinstance(each, gluon.Constant):  # its initializer copies a value that may be mx.np's
            each._load_init(each.value.as_nd_ndarray(), ctxs)
        else:
            each.initialize(ctx=ctxs, default_init=Xavier())


def _wants_targets(values: Any, shapes: Mapping[str, Any]) -> bool:
    """Whether a loss's graph can be computed for labels of the scores' shape."""
    try:
        outputs = values.infer_shape_partial(scores=shapes["scores"], labels=shapes["scores"])[1]
    except (AttributeError, mx.MXNetError):  # it has no graph, or not for such labels, either
        return False
    return bool(outputs)


def _unused(outcome: Any, inputs: Iterable[str]) -> List[str]:
    """Which inputs the graph of an own network or loss does not have. Raises TypeError for none."""
    if not isinstance(outcome, mx.sym.Symbol):
        raise TypeError(f"it gives a {type(outcome).__name__}, not one array")
    has = outcome.list_inputs()
    return [name for name in inputs if name not in has]


def _headless(graph: mx.sym.Symbol, learned: Collection[str]) -> Optional[str]:
    """Return the first operator in a graph's backward that ignores its output gradient."""
    operators = (node["op"] for node, _ in nodes_in_backward(graph, learned))
    return next((name for name in operators if name in HEADLESS), None)


def _is_known(dataset: str) -> bool:
    try:
        find_kind(dataset)
    except DataError:
        return False
    return True


def _takes_classes(make: Any) -> bool:
    # Python 3.8 would look at __new__, which says nothing of a Block's arguments.
    is_class = isinstance(make, type)
    called = partial(make.__init__, None) if is_class else make
    try:
        parameters = inspect.signature(called).parameters.values()
    except (TypeError, ValueError):
        return False
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(each.kind in kinds and each.default is each.empty for each in parameters)
