"""The user's network, loss and metrics, and checks that a run can train with them."""

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
from gluonlab.data.sets.dataset_registry import find_dataset_kind
from gluonlab.engine.nd_and_np_arrays import convert_parameters, set_block_semantics, user_has_set_np, user_semantics
from gluonlab.errors import ConfigError, DataError, ModelError, UsageError, error_text
from gluonlab.models.infer_shapes import set_missing_shapes
from gluonlab.models.replace_wrong_gradients import check_gradients, nodes_in_backward
from gluonlab.models.symbol_graph import require_single_output
from gluonlab.training.user_metrics import Metric, metrics_by_name

# adds a hint to the error for an unknown argument of `train`, such as a setting of TrainConfig
explain_unknown_arguments = check_argument_names(
    "train",
    {
        **{
            theirs: f"use the setting, train(TrainConfig({ours}=...))"
            for ours in (field.name for field in fields(TrainConfig))
            for theirs in (ours, *aliases_of_setting(ours))
            if ours != "dataset"  # also an argument of `train`
        },
        "network": "use net, a HybridBlock or a function that returns one",
    },
)


def check_argument(name: str, value: Any, fits: bool, hint: str) -> None:
    """Raise ConfigError for an argument of `train` that is given and has the wrong type."""
    if value is not None and not fits:
        raise ConfigError(f"train({name}=...) does not accept the type {type(value).__name__}: {hint}")


# operators that ignore their output gradient, such as the weight of an image in a loss
HEADLESS_OPERATORS = {
    "make_loss", "MakeLoss", "SoftmaxOutput", "LinearRegressionOutput", "LogisticRegressionOutput",
    "MAERegressionOutput", "SVMOutput",
}  # fmt: skip
DENSE_STORAGE = ("default", "default")
# argument of the user -> name of the component in messages
COMPONENT_NAMES = {"net": "network", "loss": "loss", "data": "data set"}


@dataclass(frozen=True)
class UserComponents:
    """The user's network, loss and metrics.

    Attributes:
        net: A HybridBlock, or a function that returns a HybridBlock. If the function has a
            parameter, it is called with the number of classes. The network maps images (n, C, H, W)
            to scores (n, classes). Parameters that are already initialized are kept.
        loss: A HybridBlock that maps scores (n, classes) and labels (n,) to one value per image.
        metrics: See `gluonlab.training.user_metrics`.
    """

    net: Any = None
    loss: Optional[gluon.HybridBlock] = None
    metrics: Mapping[str, Metric] = field(default_factory=dict)

    @property
    def net_name(self) -> str:
        """The name of the network's class, or of the function that makes the network."""
        return str(getattr(self.net, "__name__", type(self.net).__name__))

    def implied_settings(self) -> Dict[str, Any]:
        """Return the settings of TrainConfig that these components determine."""
        values: Dict[str, Any] = {} if self.net is None else {"model": self.net_name}
        return values if self.loss is None else {**values, "label_smoothing": 0.0}

    def settings(self, dataset: Optional[Dataset]) -> Dict[str, Any]:
        """Return the names of the components, for config.json.

        ``dataset``: the run's data set, or None if its config names the data.
        """
        names = {}
        if self.net is not None:
            names["net"] = self.net_name
        if self.loss is not None:
            names["loss"] = type(self.loss).__name__
        if dataset is not None and not _is_dataset_name(dataset.name):
            names["data"] = dataset.name
        return {"own": names} if names else {}

    def make_net(self, classes: int) -> gluon.HybridBlock:
        """Return the network, which may be uninitialized.

        Raises ModelError if the network is not a HybridBlock.
        """
        net, name = self.net, self.net_name
        if not isinstance(net, gluon.Block):
            # parameters are saved by name, so the numbers in names must start at 0 again
            with mx.name.NameManager(), user_semantics():
                net = net(classes) if _takes_classes(net) else net()
        if not isinstance(net, gluon.HybridBlock):
            kind = type(net).__name__
            raise ModelError(
                f"{name} is a {kind}, but the network of a run must be a gluon.HybridBlock, because it is compiled: "
                "derive the network from HybridBlock, or use nn.HybridSequential"
            )
        return net


NO_USER_COMPONENTS = UserComponents()


def make_user_components(
    net: Any = None, loss: Optional[gluon.HybridBlock] = None, metrics: Any = None
) -> UserComponents:
    """Check and collect the user's components.

    Raises ConfigError or ModelError for an invalid component.
    """
    if net is not None and not callable(net):
        raise ModelError(
            f"net {net!r}: pass a gluon.HybridBlock, or a function that returns one, such as "
            "lambda classes: nn.Dense(classes)"
        )
    if loss is not None and not isinstance(loss, gluon.HybridBlock):
        loss_text = " ".join(repr(loss).split())  # a Block's has several lines
        raise ConfigError(
            f"loss {loss_text}: pass a gluon.HybridBlock that takes scores and labels, such as "
            "gluon.loss.SoftmaxCrossEntropyLoss()"
        )
    if loss is not None:
        _check_loss_parameters(loss)
    return UserComponents(net, loss, metrics_by_name(metrics))


def _check_loss_parameters(loss: gluon.HybridBlock) -> None:
    """Raise ConfigError unless all parameters of a loss are constants of known shape."""
    params, name = loss.collect_params(), type(loss).__name__
    set_missing_shapes(params.values())
    trained = ", ".join(param.name for param in params.values() if param.grad_req != "null")
    if trained:
        raise ConfigError(
            f"loss {name} has parameters ({trained}), but a run trains only the network: move them to the "
            "network, or create them as constants with self.params.get_constant(name, value)"
        )
    for param in params.values():
        if not param.shape or min(param.shape) < 1:
            raise ConfigError(
                f"loss {name}: the shape {param.shape} of {param.name} is incomplete: set the whole shape, or "
                "create a constant with self.params.get_constant(name, value)"
            )


def check_user_components(own: UserComponents, requested: TrainConfig) -> None:
    """Raise ConfigError if a requested setting contradicts the user's components."""
    if own.net is not None and requested.model is not None:
        raise ConfigError(
            f"--model {requested.model} and the network {own.net_name} contradict each other: remove one of them"
        )
    if own.loss is not None and requested.label_smoothing:
        raise ConfigError(
            f"--label-smoothing {requested.label_smoothing:g} works only with gluonlab's own loss, not with "
            f"{type(own.loss).__name__}: remove --label-smoothing"
        )
    if requested.estimate_memory and (own.net is not None or own.loss is not None):
        raise ConfigError(
            "--estimate-memory measures the run in another process, which cannot use your own network or loss: "
            "remove --estimate-memory"
        )


def check_same_user_components(
    folder: str, usage: str, recorded: Mapping[str, Any], current: Mapping[str, Any]
) -> None:
    """Raise ConfigError unless a resumed or evaluated run gets the same components again.

    Args:
        folder: The run's folder.
        usage: The purpose of the components, for the message, such as ``to train``.
        recorded: The settings of the run.
        current: The settings of the resumed run or the evaluation.
    """
    recorded_names, current_names = (dict(settings.get("own") or {}) for settings in (recorded, current))
    for part, name in COMPONENT_NAMES.items():
        if recorded_names.get(part) == current_names.get(part):
            continue
        default = f"the default {name}"
        expected = f"your {name} {recorded_names[part]}" if part in recorded_names else default
        actual = f"your {name} {current_names[part]}" if part in current_names else default
        raise ConfigError(f"{folder} used {expected}, not {actual}: pass the same {name} {usage} in Python")


def check_loss(loss: gluon.HybridBlock, classes: int) -> None:
    """Raise ConfigError unless ``loss`` returns one value per image for labels (n,)."""
    _check_with_nd_or_np(loss, partial(_check_loss_outputs, loss, classes))


def check_user_network(net: gluon.HybridBlock, name: str, shape: Sequence[int], classes: int) -> None:
    """Raise ModelError unless the user's network can be compiled, and returns scores."""
    _check_with_nd_or_np(net, partial(_check_network_outputs, net, name, shape, classes))


def _check_with_nd_or_np(block: gluon.HybridBlock, check: Callable[[], None]) -> None:
    """Call ``check`` for a user's block. After ``npx.set_np()``, try mx.nd, then mx.np.

    Only these attempts can show whether a block is written for mx.nd or mx.np.
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
    # Both attempts have failed. If the attempt with mx.np rejects legacy operators, the block is
    # written for mx.nd, so raise the error of the attempt with mx.nd.
    raise errors["legacy operator" not in str(errors[1])]


def _check_loss_outputs(loss: gluon.HybridBlock, classes: int) -> None:
    """Raise ConfigError unless the loss uses its inputs and returns one value per image."""
    name, images = type(loss).__name__, 3
    shapes = {"scores": (images, classes), "labels": (images,)}
    values: Any = None
    try:
        values = loss(*map(mx.sym.var, shapes))
        unused = _unused_inputs(values, shapes)
        headless = _find_headless_operator(values, ["scores"])
        if not (unused or headless):
            # unlike infer_shape it prints nothing
            outputs = values.infer_shape_partial(**shapes)[1]
            values.infer_type_partial(scores=np.float32, labels=np.int32)
    except Exception as error:  # the user's code may raise anything
        if _is_regression_loss(values, shapes):
            raise ConfigError(
                f"loss {name} is for regression, but a run has scores of shape (n, {classes}) and class numbers as "
                "labels: "
                "use a classification loss, such as gluon.loss.SoftmaxCrossEntropyLoss(), or "
                "write your own loop (docs/own-training.md)"
            ) from None
        cast_hint = ": convert the labels with F.cast(labels, 'float32')" if "got int32" in str(error) else ""
        raise ConfigError(
            f"loss {name} cannot be compiled for scores of shape (n, {classes}) and integer labels of shape (n,)"
            f": {error_text(error) or type(error).__name__}{cast_hint}"
        ) from None
    if unused:
        raise ConfigError(
            f"loss {name} ignores the {' and '.join(unused)}: compute the loss from the scores of shape "
            f"(n, {classes}) and the labels of shape (n,)"
        )
    if headless:
        raise ConfigError(
            f"loss {name} contains {headless}, whose gradient ignores the image weights that mixup uses: "
            f"remove {headless} and return the loss values"
        )
    check_gradients(values, f"loss {name}", ["scores"])
    if outputs != [(images,)]:
        shapes_text = ", ".join(map(str, outputs))
        raise ConfigError(
            f"loss {name} returns shape {shapes_text} for {images} images: return one value per image, in an array "
            "of shape (n,)"
        )


def _check_network_outputs(net: gluon.HybridBlock, name: str, shape: Sequence[int], classes: int) -> None:
    """Raise ModelError unless the network returns scores (n, classes) for n images."""
    images, outputs = 1, []
    try:
        _check_parameters(net, name)
        scores = require_single_output(net(mx.sym.var("data")), name)
        trained = [param.name for param in net.collect_params().values() if param.grad_req != "null"]
        unused, headless = (_unused_inputs(scores, ["data"]), _find_headless_operator(scores, trained))
        # also for several images, because a graph may contain a fixed number of images
        for images in () if unused or headless else (1, 3):
            outputs = scores.infer_shape_partial(data=(images, *shape))[1]
            if outputs and outputs[0] and outputs != [(images, classes)]:
                break
        types = [] if unused or headless else scores.infer_type_partial(data=np.float32)[1]
    except ModelError:
        raise
    except Exception as error:  # the user's code may raise anything
        count_text = "" if images == 1 else f"{images} "
        raise ModelError(
            f"{name} cannot be compiled for {count_text}images of shape {tuple(shape)}: "
            f"{error_text(error) or type(error).__name__}: in hybrid_forward, use only F and the "
            "arguments, and accept any number of images"
        ) from None
    if headless:
        raise ModelError(
            f"{name} contains {headless}, whose gradient ignores the loss: "
            f"remove {headless} and return its input, the scores"
        )
    if unused:
        raise ModelError(f"{name} ignores the images: compute the scores from them")
    check_gradients(scores, name, trained)
    if outputs and outputs[0] and outputs != [(images, classes)]:
        shapes_text = ", ".join(map(str, outputs))
        image_text = "an image" if images == 1 else f"{images} images"
        raise ModelError(
            f"{name} returns shape {shapes_text} for {image_text}, but the data has {classes} classes: "
            f"return scores of shape (n, {classes})"
        )
    if types and types[0] not in (None, np.float32):
        dtype = np.dtype(types[0])
        raise ModelError(
            f"{name} returns scores of type {dtype}, but a loss needs float32: remove the conversion to {dtype}"
        )


def _check_parameters(net: gluon.HybridBlock, name: str) -> None:
    """Raise ModelError for parameters that a run would not train as intended."""
    try:
        params = list(net.collect_params().values())
    except AssertionError as error:  # two parameters have the same name
        raise ModelError(
            f"{name} has parameters with the same name, but parameters are saved by name ({error_text(error)}): "
            "use a different prefix for each layer, or no prefix"
        ) from None
    for param in params:
        dtype = np.dtype(param.dtype or np.float32)
        if param.grad_req == "add":
            raise ModelError(
                f"{param.name} of {name} has grad_req 'add', so its gradients would grow in every step: "
                "use grad_req 'write', and add --microbatches N to accumulate gradients"
            )
        if param.grad_req != "null" and dtype != np.float32:
            raise ModelError(
                f"{param.name} of {name} is {dtype}, but trained parameters must be float32: remove "
                f"cast({str(dtype)!r}), and use --dtype float16 for mixed precision on GPUs"
            )


class Xavier(mx.init.Xavier):
    """Xavier initialization, or Gluon's default for parameters with fewer than two axes."""

    def _init_weight(self, desc: Any, array: Any) -> None:
        """Fill ``array`` with Xavier if it has two or more axes, else with `mx.init.Uniform`."""
        if len(array.shape) > 1:
            super()._init_weight(desc, array)
        else:
            mx.init.Uniform()._init_weight(desc, array)


def check_distinct_names(loss: gluon.HybridBlock, net: gluon.HybridBlock) -> None:
    """Raise ConfigError if a loss and the network have parameters with the same name."""
    shared_names = [name for name in loss.collect_params() if name in net.collect_params()]
    if shared_names:
        name = type(loss).__name__
        raise ConfigError(
            f"loss {name} and the network both have a parameter named {shared_names[0]}: add a prefix to the loss, "
            f"as in {name}(prefix='loss_')"
        )


def check_trainable(net: gluon.HybridBlock, name: str) -> None:
    """Raise ModelError for parameters that are sparse or have an unknown shape."""
    params = net.collect_params()
    sparse = [param for param in params.values() if (param._stype, param._grad_stype) != DENSE_STORAGE]
    if sparse:
        raise ModelError(
            f"{name}: {sparse[0].name} has sparse values or gradients, which train does not support: "
            "make them dense, for example with sparse_grad=False in nn.Embedding"
        )
    unknown = [param.name for param in params.values() if param._data is None]
    if unknown:
        raise ModelError(
            f"{name} does not use {', '.join(unknown)} for its scores, so MXNet cannot infer the shape of these "
            "parameters: remove the unused layer, or set its in_units or in_channels"
        )


def initialize_parameters(net: gluon.HybridBlock, ctxs: List[mx.Context]) -> None:
    """Initialize new parameters on ``ctxs``, and move existing parameters to ``ctxs``."""
    params = net.collect_params()
    existing = [param for param in params.values() if param._data is not None or param._deferred_init]
    for param in existing:
        param.reset_ctx(ctxs)
    set_missing_shapes(existing)
    existing_names = {param.name for param in existing}
    for name, param in params.items():
        if name in existing_names:
            continue
        if isinstance(param, gluon.Constant):  # its initializer copies a value that may be mx.np's
            param._load_init(param.value.as_nd_ndarray(), ctxs)
        else:
            param.initialize(ctx=ctxs, default_init=Xavier())


def _is_regression_loss(values: Any, shapes: Mapping[str, Any]) -> bool:
    """Return True if a loss accepts labels with the shape of the scores.

    ``values`` is the graph of the loss.
    """
    try:
        outputs = values.infer_shape_partial(scores=shapes["scores"], labels=shapes["scores"])[1]
    except (AttributeError, mx.MXNetError):  # it has no graph, or not for such labels, either
        return False
    return bool(outputs)


def _unused_inputs(graph: Any, inputs: Iterable[str]) -> List[str]:
    """Return the inputs that a graph does not use.

    Raises TypeError if ``graph`` is not a graph.
    """
    if not isinstance(graph, mx.sym.Symbol):
        raise TypeError(f"the output is a {type(graph).__name__}, not a single array")
    graph_inputs = graph.list_inputs()
    return [name for name in inputs if name not in graph_inputs]


def _find_headless_operator(graph: mx.sym.Symbol, learned: Collection[str]) -> Optional[str]:
    """Return the first operator of a graph whose backward ignores its output gradient."""
    operators = (node["op"] for node, _ in nodes_in_backward(graph, learned))
    return next((name for name in operators if name in HEADLESS_OPERATORS), None)


def _is_dataset_name(dataset: str) -> bool:
    """Return True if gluonlab has a data set with this name."""
    try:
        find_dataset_kind(dataset)
    except DataError:
        return False
    return True


def _takes_classes(make: Any) -> bool:
    """Return True if a function that makes a network has a parameter for the number of classes."""
    # Python 3.8 would inspect __new__, which does not have a Block's arguments
    is_class = isinstance(make, type)
    function = partial(make.__init__, None) if is_class else make
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(parameter.kind in kinds and parameter.default is parameter.empty for parameter in parameters)
